"""Text, thoughts and calls told apart: the formats, and that cutting the text changes nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from time import process_time
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.testing.tokenizer import TURN, ByteTokenizer
from trioserve.text.parser import OutputFormat
from trioserve.text.pipeline import ChoiceText
from trioserve.text.reasoning import MISTRAL as BRACKETS
from trioserve.text.reasoning import REASONING_FORMATS, THINK, ReasoningFormat
from trioserve.text.tools.format import ToolFormat
from trioserve.text.tools.formats import HERMES, LLAMA, MISTRAL, PYTHONIC, TOOL_FORMATS

Said = list[tuple[str, ...]]


def output(tools: ToolFormat | None, reasoning: ReasoningFormat | None = None, *, inside: bool = False) -> OutputFormat:
    numbers = itertools.count()
    return OutputFormat(
        tools=tools, reasoning=reasoning, starts_inside=inside, new_id=lambda: f"{next(numbers):09}{'0' * 23}"
    )


def read(form: OutputFormat, pieces: Sequence[str]) -> Said:
    """What the parser makes of a text: ("text", ...), ("reasoning", ...), ("call", name, arguments), ids checked."""
    parser = form.parser()
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.end()
    said: list[list[str]] = []
    ids: set[str] = set()
    for part in parts:
        if part.id is not None:
            assert part.name is not None
            assert part.text == ""
            assert part.id not in ids
            assert part.call == len(ids)
            ids.add(part.id)
            said.append(["call", part.name, ""])
        elif part.kind == "tool_call":
            assert part.name is None
            assert part.call == len(ids) - 1
            assert said[-1][0] == "call"
            said[-1][2] += part.text
        elif said and said[-1][0] == part.kind:
            said[-1][1] += part.text
        else:
            said.append([part.kind, part.text])
    return [tuple(each) for each in said]


def call(name: str, arguments: str) -> tuple[str, ...]:
    return ("call", name, arguments)


def text(value: str) -> tuple[str, ...]:
    return ("text", value)


F = '<tool_call>\n{"name": "f", "arguments": {"q": 1}}\n</tool_call>'

TABLE: list[tuple[ToolFormat, str, Said]] = [
    # case tool-stream-deltas
    (
        HERMES,
        (
            'See.\n<tool_call>\n{"name": "f", "arguments": {"q":"a}\\"<é"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "f", "arguments": {"q":"b"}}\n</tool_call>'
        ),
        [text("See."), call("f", '{"q":"a}\\"<é"}'), call("f", '{"q":"b"}')],
    ),
    (HERMES, "a < b <tool> c", [text("a < b <tool> c")]),
    (HERMES, f"\n\n{F}\n", [call("f", '{"q": 1}')]),
    (
        HERMES,
        f"so \n{F}\n\n{F} and {F} \n",
        [text("so"), *[call("f", '{"q": 1}')] * 2, text(" \n\n\n and"), call("f", '{"q": 1}')],
    ),
    (HERMES, f"{F} and", [call("f", '{"q": 1}'), text("and")]),
    (HERMES, f"{F} and \n", [call("f", '{"q": 1}'), text("and \n")]),
    # no arguments
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', [call("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', [call("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool_call>', [call("f", "{}")]),
    # another order, another name, more members, arguments as text
    (HERMES, '<tool_call>{"arguments": {"q": [1]}, "name": "f"}</tool_call>', [call("f", '{"q": [1]}')]),
    (
        HERMES,
        '<tool_call>{"id": [{}], "name": "f", "parameters": {"q": 1}, "x": "}"}</tool_call>',
        [call("f", '{"q": 1}')],
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"q\\": 1}"}</tool_call>', [call("f", '{"q": 1}')]),
    # two in one block; braces too few and too many; no end
    (HERMES, '<tool_call>{"name": "f"}\n{"name": "g"}</tool_call>', [call("f", "{}"), call("g", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}\n</tool_call>', [call("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>', [call("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"q": "cut', [call("f", '{"q": "cut')]),
    # no calls: all of it stays
    (HERMES, '<tool_call>{"nam</tool_call>', [text('<tool_call>{"nam</tool_call>')]),
    (HERMES, '<tool_call>{"name": 1}</tool_call> ', [text('<tool_call>{"name": 1}</tool_call> ')]),
    (HERMES, '<tool_call>{"name": ""}</tool_call>', [text('<tool_call>{"name": ""}</tool_call>')]),
    (HERMES, '<tool_call>{"name": "\\ud800"}</tool_call>', [text('<tool_call>{"name": "\\ud800"}</tool_call>')]),
    (HERMES, "<tool_call></tool_call>", [text("<tool_call></tool_call>")]),
    (HERMES, '<tool_call>{"q":}</tool_call>', [text('<tool_call>{"q":}</tool_call>')]),
    (HERMES, f"<tool_call>\n{F}", [text("<tool_call>"), call("f", '{"q": 1}')]),
    # what is behind the arguments and no member is text
    (HERMES, '<tool_call>{"name": "f", "arguments": {}, "x', [call("f", "{}"), text(', "x')]),
    # arguments are passed on whatever they are
    (HERMES, '<tool_call>{"name": "f", "arguments": {"q": }}</tool_call>', [call("f", '{"q": }')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', [call("f", "[1]")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"q": "a\nb"}}</tool_call>', [call("f", '{"q": "a\nb"}')]),
    (LLAMA, '{"name": "f", "parameters": {"q": 1}}', [call("f", '{"q": 1}')]),
    (LLAMA, ' {"type": "function", "name": "f", "parameters": {}}', [call("f", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [call("f", "{}"), call("g", "{}")]),
    (LLAMA, 'ok <|python_tag|>{"name": "f", "parameters": {}};', [text("ok"), call("f", "{}")]),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}} done', [call("f", "{}"), text("done")]),
    (LLAMA, '{"name": "Ann", "age": {"x": 3}}', [text('{"name": "Ann", "age": {"x": 3}}')]),
    (LLAMA, 'so {"name": "f", "parameters": {}}', [text('so {"name": "f", "parameters": {}}')]),
    (LLAMA, "<|python_tag|>f.call(x)", [text("<|python_tag|>f.call(x)")]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}}]', [call("f", '{"q": 1}')]),
    (
        MISTRAL,
        'ok [TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}] ',
        [text("ok"), call("f", "{}"), call("g", "{}")],
    ),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"q": [1]}[TOOL_CALLS]g{}', [call("f", '{"q": [1]}'), call("g", "{}")]),
    (MISTRAL, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", [call("f", "{}")]),
    (MISTRAL, "a [1] [TOOL_CALLS] b", [text("a [1] [TOOL_CALLS] b")]),
    (MISTRAL, "[TOOL_CALLS] []", [text("[TOOL_CALLS] []")]),
    (MISTRAL, "[TOOL_CALLS]f[ARGS]x", [text("[TOOL_CALLS]f[ARGS]x")]),
    (PYTHONIC, "[f(q=1), g()]", [call("f", '{"q": 1}'), call("g", "{}")]),
    (
        PYTHONIC,
        '[f(a=\'x\\\'\\n\\x41\\u00e9\\N\', b=[1, (2,), {\'k\': None, 3: True,}], c=-.5, d=1_0, e="""x"y""")]',
        [call("f", '{"a": "x\'\\nAé\\\\N", "b": [1, [2], {"k": null, "3": true}], "c": -0.5, "d": 10, "e": "x\\"y"}')],
    ),
    (PYTHONIC, "[f(a='', b=[], c={}, d=())]", [call("f", '{"a": "", "b": [], "c": {}, "d": []}')]),
    (PYTHONIC, 'ok <|python_start|>[f(q="\\/")]<|python_end|> so', [text("ok"), call("f", '{"q": "/"}'), text("  so")]),
    (PYTHONIC, "[f(1)]", [text("[f(1)]")]),
    (PYTHONIC, "[see f(q=1)]", [text("[see f(q=1)]")]),
    (PYTHONIC, "[f(q==1)]", [text("[f(q==1)]")]),
    (PYTHONIC, "so [f(q=1)]", [text("so [f(q=1)]")]),
    (PYTHONIC, "[f(q=1, r=zz) then", [call("f", '{"q": 1, "r": '), text("zz) then")]),
]


@pytest.mark.parametrize(("tools", "written", "said"), TABLE, ids=lambda value: str(value)[:40])
def test_what_a_format_reads_however_it_is_cut(tools: ToolFormat, written: str, said: Said) -> None:
    # cases tool-stream-deltas, tool-finish-reason
    assert read(output(tools), [written]) == said
    assert read(output(tools), list(written)) == said
    for cut in range(len(written)):
        assert read(output(tools), [written[:cut], "", written[cut:]]) == said


@pytest.mark.parametrize(
    ("written", "inside", "said"),
    [
        ("<think>hm </thi\n</think>\n\nok", False, [("reasoning", "hm </thi"), text("ok")]),
        ("\n<think>\n\n</think>\n\nok", False, [text("ok")]),
        ("hm</think> ok", True, [("reasoning", "hm"), text("ok")]),
        ("<think>hm</think> ok", True, [("reasoning", "hm"), text("ok")]),
        ("hm ", True, [("reasoning", "hm ")]),
        ("<think>hm ", False, [("reasoning", "hm ")]),
        ("so <think>hm</think>", False, [text("so <think>hm</think>")]),
        (" \n", False, [text(" \n")]),
        ("", False, []),
        (f"<think>{F}</think>\n{F}", False, [("reasoning", F), call("f", '{"q": 1}')]),
    ],
)
def test_a_thought_comes_first(written: str, inside: bool, said: Said) -> None:
    for pieces in ([written], list(written)):
        assert read(output(HERMES, THINK, inside=inside), pieces) == said


@pytest.mark.parametrize("form", REASONING_FORMATS.values())
def test_a_prompt_may_open_the_thought(form: ReasoningFormat) -> None:
    assert form.opened_by(f"assistant\n{form.open}\n")
    assert not form.opened_by(f"assistant\n{form.open}\n\n{form.close}\n\n")
    assert not form.opened_by("assistant\n")


def test_every_token_until_the_end_of_the_closing_mark_is_reasoning() -> None:
    parser = output(None, BRACKETS).parser()
    seen = []
    for piece in ("[TH", "INK]", "a", "[/THINK]", "b"):
        seen.append(parser.is_reasoning)
        parser.feed(piece)
    assert seen == [False, False, True, True, False]


def test_arguments_are_told_as_they_come() -> None:
    parser = output(HERMES).parser()
    written = '<tool_call>\n{"name": "f", "arguments": {"q": "abc"}}\n</tool_call>'
    at = written.index("abc")
    parser.feed(written[:at])
    assert [part.text for part in parser.feed("a")] == ["a"]
    assert [part.text for part in parser.feed("b")] == ["b"]
    parser = output(PYTHONIC).parser()
    parser.feed("[f(q='z")
    assert [part.text for part in parser.feed("a")] == ["a"]


def test_text_waits_only_where_a_mark_may_have_begun() -> None:
    parser = output(HERMES).parser()
    assert [part.text for part in parser.feed("ab <tool")] == ["ab"]
    assert [part.text for part in parser.feed("s")] == [" <tools"]


def test_ids_are_as_the_templates_want_them() -> None:
    lengths = {}
    for name, tools in TOOL_FORMATS.items():
        made = tools.id_maker(lambda: "0123456789abcdef" * 2)()
        lengths[name] = (made[:5] == "call_", len(made))
    assert lengths.pop("mistral") == lengths.pop("mistral_v11") == (False, 9)
    assert set(lengths.values()) == {(True, 29)}


MARKS = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"],
    *[
        "<|python_start|>",
        "<|python_end|>",
        '{"name": "f", "arguments": ',
        '{"name": "f", "parameters": ',
        "{",
        "}",
        "[",
    ],
    *[
        "]",
        '"',
        "\\",
        ",",
        ";",
        ":",
        "f(",
        "q=",
        ")",
        "'",
        "1",
        "None",
        " ",
        "\n",
        "x",
        "é",
        "\\u00e9",
        "<",
        "arguments",
    ],
]
WRITTEN = st.lists(st.sampled_from(MARKS), max_size=25).map("".join)
FORMS = st.builds(
    output,
    st.sampled_from([None, *TOOL_FORMATS.values()]),
    st.sampled_from([None, *REASONING_FORMATS.values()]),
    inside=st.booleans(),
)


@settings(max_examples=300)
@given(FORMS, WRITTEN, st.data())
def test_however_a_text_is_cut_the_parts_are_the_same(form: OutputFormat, written: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    pieces = [written[start:end] for start, end in itertools.pairwise([0, *cuts, len(written)])]
    whole = read(form, [written])
    assert read(form, pieces) == whole
    assert read(form, list(written)) == whole


@settings(max_examples=200)
@given(st.sampled_from([HERMES, MISTRAL]), WRITTEN)
def test_nothing_but_marks_and_white_space_is_lost(tools: ToolFormat, written: str) -> None:
    """Reference: where nothing was a call, the text is what was written, to the letter."""
    said = read(output(tools), [written])
    if not any(each[0] == "call" for each in said):
        assert "".join(each[1] for each in said) == written
    kept = "".join(each[-1] for each in said if each[0] == "text")
    # in order, what was kept is in what was written
    rest = iter(written)
    assert all(letter in rest for letter in kept)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab<>{}[]\"\\'é\n/", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"}', min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["q", "r", "name", "arguments"]), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "get_it"]), ARGUMENTS), min_size=1, max_size=3)


def write_calls(tools: ToolFormat, calls: list[tuple[str, Any]]) -> str:
    """Calls as a model writes them; the reference is that they are read back."""
    if tools.name == "hermes":
        objects = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    if tools.name == "llama3_json":
        return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
    if tools.name == "mistral":
        return "[TOOL_CALLS] " + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    if tools.name == "mistral_v11":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    )
    return f"[{', '.join(written)}]"


@settings(max_examples=200)
@given(st.sampled_from(list(TOOL_FORMATS.values())), CALLS, st.integers(1, 7))
def test_calls_are_read_back(tools: ToolFormat, calls: list[tuple[str, Any]], step: int) -> None:
    written = write_calls(tools, calls)
    pieces = [written[at : at + step] for at in range(0, len(written), step)]
    said = read(output(tools), pieces)
    assert [(each[0], each[1], json.loads(each[2])) for each in said] == [("call", *each) for each in calls]


@pytest.mark.parametrize("unit", ["<", "[", " ", '<tool_call>{"', "[TOOL_CALLS]", "[f(q=[", '{"a":', "\\"])
def test_the_time_is_proportional_to_the_text(unit: str) -> None:
    def cost(tools: ToolFormat, count: int) -> float:
        parser = output(tools, THINK).parser()
        start = process_time()
        for _ in range(count):
            parser.feed(unit)
        parser.end()
        return process_time() - start

    for tools in TOOL_FORMATS.values():
        # of 16 times as much text; it would be 256 times as much time if that were quadratic
        assert min(cost(tools, 3200) / cost(tools, 200) for _ in range(3)) < 100


def test_special_tokens_that_are_marks_have_their_text() -> None:
    tokenizer = ByteTokenizer()
    form = attrs.evolve(output(None), reasoning=ReasoningFormat("turn", "<|turn|>", "</turn>"))
    spelled = form.spelled(tokenizer)
    assert spelled == {TURN: b"<|turn|>"}
    ids = [TURN, ord("a"), 257]
    assert ChoiceText(tokenizer, spelled=spelled).feed(ids).text == "<|turn|>a"
    assert ChoiceText(tokenizer).feed(ids).text == "a"
    assert ChoiceText(tokenizer, spelled=spelled, skip_special=False).feed(ids).text == "<|turn|>a<|bos|>"
