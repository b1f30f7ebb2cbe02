"""Grammars of calls: whatever is drawn from them is read as the calls that were demanded, and validates."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from trioserve.abc import Part
from trioserve.errors import ParamError
from trioserve.text.parser import OutputFormat
from trioserve.text.reasoning import THINK, ReasoningFormat
from trioserve.text.tools.format import ToolFormat
from trioserve.text.tools.formats import PYTHONIC, TOOL_FORMATS
from trioserve.text.tools.grammar import CallRule, Demand, Spelling, whole_grammar

BYTES = llguidance.LLTokenizer("byte")
SPACE = {"x-guidance": {"whitespace_pattern": " ?"}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"q": {"$ref": "#/$defs/short"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["q"],
        "additionalProperties": False,
        "$defs": {"short": {"type": "string", "maxLength": 4}},
    },
    "g": {"type": "object", "properties": {}, "additionalProperties": False},
    "h": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": [None, 1]}, "c": {"const": [{"k": "v"}]}},
        "additionalProperties": False,
    },
}
TOOLS = [CallRule(name, json.dumps({**schema, **SPACE}), f"tools.{name}") for name, schema in SCHEMAS.items()]
TEXT = Spelling(ids=lambda mark: None)
STARTS = {
    "hermes": "so <tool_call>",
    "llama3_json": '{"name": ',
    "mistral": "so [TOOL_CALLS]",
    "mistral_v11": "so [TOOL_CALLS]",
    "pythonic": "[",
}
every_format = pytest.mark.parametrize("tools", TOOL_FORMATS.values(), ids=lambda tools: tools.name)


def draw(grammar: str, rng: random.Random, start: str = "") -> str | None:
    """A text of the grammar that goes on with ``start``; None if it gets too long. Closing letters are likelier."""
    matcher = llguidance.LLMatcher(BYTES, grammar)
    assert not matcher.is_error(), (matcher.get_error(), grammar)
    drawn = list(start.encode())
    assert matcher.try_consume_tokens(drawn) == len(drawn), grammar
    while len(drawn) < 500:
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(256) if mask[token // 8] >> token % 8 & 1]
        if matcher.is_accepting() and (not allowed or rng.random() < 0.2):
            return bytes(drawn).decode(errors="replace")
        likely = [token for token in allowed if chr(token) in '"}])<>/;']
        token = rng.choice(likely if likely and rng.random() < 0.4 else allowed)
        matcher.consume_token(token)
        drawn.append(token)
    return None


def parts_of(written: str, tools: ToolFormat, reasoning: ReasoningFormat | None, *, inside: bool) -> list[Part]:
    numbers = itertools.count()
    form = OutputFormat(
        tools=tools, reasoning=reasoning, starts_inside=inside, new_id=lambda: f"{next(numbers):09}{'0' * 23}"
    )
    parser = form.parser()
    return parser.feed(written) + parser.end()


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.name is not None:
            calls.append((part.name, ""))
        elif part.kind == "tool_call":
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return calls


@every_format
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("reasoning", "inside"), [(None, False), (THINK, False), (THINK, True)])
def test_what_is_drawn_are_calls_that_validate(
    tools: ToolFormat, required: bool, parallel: bool, reasoning: ReasoningFormat | None, inside: bool
) -> None:  # case tool-finish-reason
    demand = Demand(tools=TOOLS, required=required, parallel=parallel, spelling=TEXT)
    grammar = whole_grammar(tools.rules(demand), reasoning, TEXT, starts_inside=inside)
    rng = random.Random(f"{tools.name} {required} {parallel}")
    start = "hm</think>" if inside else ""
    start += "" if required else STARTS[tools.name]
    drawn = [text for text in (draw(grammar, rng, start) for _ in range(8)) if text is not None]
    assert drawn
    for written in drawn:
        parts = parts_of(written, tools, reasoning, inside=inside)
        calls = calls_of(parts)
        assert calls, written
        assert parallel or len(calls) == 1
        assert not required or all(part.kind != "text" for part in parts), written
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@every_format
def test_an_answer_without_calls_is_any_text_or_what_is_demanded(tools: ToolFormat) -> None:
    def accepts(answer: str | None, text: str) -> bool:
        demand = Demand(tools=TOOLS, required=False, parallel=True, spelling=TEXT, answer=answer)
        matcher = llguidance.LLMatcher(BYTES, whole_grammar(tools.rules(demand), None, TEXT, starts_inside=False))
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert accepts(None, "any text: é < or a]")
    assert accepts('%json {"type": "integer"}', "12")
    assert not accepts('%json {"type": "integer"}', "any text")


@every_format
def test_marks_that_are_special_tokens_are_tokens_in_the_grammar(tools: ToolFormat) -> None:
    ids = {mark: 70 + at for at, mark in enumerate(sorted(tools.marks))}
    spelling = Spelling(ids=ids.get)
    for required in (True, False):
        rules = tools.rules(Demand(tools=TOOLS, required=required, parallel=True, spelling=spelling))
        grammar = whole_grammar(rules, None, spelling, starts_inside=False)
        assert not llguidance.LLMatcher(BYTES, grammar).is_error(), grammar
        assert not any(mark in grammar for mark in tools.marks)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "anyOf": [{}]},
        {"type": "object", "properties": {"not a name": {}}},
        {"type": "object", "properties": {}, "required": ["x"]},
    ],
)
def test_what_keyword_arguments_cannot_be_held_to_is_refused(schema: dict[str, Any]) -> None:
    rule = CallRule("f", json.dumps(schema), "tools.0.function.parameters")
    with pytest.raises(ParamError, match="keyword arguments") as caught:
        PYTHONIC.rules(Demand(tools=[rule], required=True, parallel=True, spelling=TEXT))
    assert caught.value.param == "tools.0.function.parameters"
