"""Chats that are prepared for a model, and what a program gets of them."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from trioserve import EngineOptions, ParamError, ReasoningDelta, SamplingParams, Structure, Tool, ToolCallDelta, ToolUse
from trioserve.engine.chats import is_small
from trioserve.testing.engine import FAKE_OPTIONS, open_fake_engine, say

MESSAGES = [{"role": "user", "content": "q"}]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
F = Tool(name="f", parameters=SCHEMA)
STRICT = attrs.evolve(F, name="s", strict=True)
THINKING = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
CALL = '<tool_call>{"name": "f", "arguments": {"q": "x"}}</tool_call>'


async def test_a_program_gets_thoughts_and_calls() -> None:
    block, _ = open_fake_engine(say(f"<think>hm</think>so {CALL}"), options=THINKING)
    async with block as engine:
        chat = await engine.prepare_chat(MESSAGES, SamplingParams(n=2), tools=ToolUse(tools=(F,)))
        answer = await engine.complete(chat.prompt, chat.params, output=chat.output)
        for choice in answer.choices:
            assert (choice.reasoning, choice.text, choice.reason) == ("hm", "so", "tool_calls")
            assert [(call.name, call.arguments) for call in choice.tool_calls] == [("f", '{"q": "x"}')]
            assert len(choice.token_ids) == choice.usage.completion_tokens
        async with engine.generate(chat.prompt, chat.params, output=chat.output) as generation:
            events = [event async for event in generation]
        assert any(isinstance(event, ReasoningDelta) for event in events)
        # every token is told of once, by one event or another
        ids = [
            token for event in events if getattr(event, "index", None) == 0 for token in getattr(event, "token_ids", ())
        ]
        assert tuple(ids) == answer.choices[0].token_ids
        assert any(isinstance(event, ToolCallDelta) and event.token_ids for event in events)


async def test_log_probabilities_are_told_of_every_token() -> None:
    block, _ = open_fake_engine(say(f"<think>hm</think>so {CALL}"), options=THINKING)
    async with block as engine:
        chat = await engine.prepare_chat(MESSAGES, SamplingParams(logprobs=0), tools=ToolUse(tools=(F,)))
        ids: list[int] = []
        scored: list[int] = []
        async with engine.generate(chat.prompt, chat.params, output=chat.output) as generation:
            async for event in generation:
                ids += getattr(event, "token_ids", ())
                scored += [score.token_id for score in getattr(event, "logprobs", ())]
        assert ids == scored


@pytest.mark.parametrize(
    ("use", "param"),
    [
        (ToolUse(tools=(F,)), None),
        (ToolUse(tools=(F, STRICT), mode="none"), None),
        (ToolUse(tools=(F,), mode="required"), "tool_choice"),
        (ToolUse(tools=(F, STRICT), allowed=frozenset({"f"})), "tool_choice"),
        (ToolUse(tools=(F, STRICT)), "tools"),
        (ToolUse(tools=(F,), parallel=False), "parallel_tool_calls"),
    ],
)
async def test_a_choice_is_held_to_a_grammar_where_something_is_demanded(use: ToolUse, param: str | None) -> None:
    block, _ = open_fake_engine(say("x"))
    async with block as engine:
        structure = (await engine.prepare_chat(MESSAGES, tools=use)).params.structure
    assert (structure and structure.param) == param


async def test_no_stop_string_cuts_off_what_must_be_called() -> None:
    block, _ = open_fake_engine(say("x"))
    params = SamplingParams(stop=("Observation:",), include_stop=True)
    async with block as engine:
        chat = await engine.prepare_chat(MESSAGES, params, tools=ToolUse(tools=(F,), mode="required"))
        assert (chat.params.stop, chat.params.structure is None) == ((), False)
        free = await engine.prepare_chat(MESSAGES, params, tools=ToolUse(tools=(F,)))
        assert free.params == params
        with pytest.raises(ParamError, match="stop can't be given together with tools"):
            await engine.prepare_chat(MESSAGES, params, tools=ToolUse(tools=(STRICT,)))


async def test_a_schema_is_for_the_arguments_of_strict_tools_and_of_those_that_must_be_called() -> None:
    async def grammar(use: ToolUse) -> str:
        structure = (await engine.prepare_chat(MESSAGES, tools=use)).params.structure
        assert structure is not None
        return structure.text

    block, _ = open_fake_engine(say("x"))
    async with block as engine:
        assert (await grammar(ToolUse(tools=(F, STRICT)))).count('"properties"') == 1
        assert (await grammar(ToolUse(tools=(F, STRICT), mode="required"))).count('"properties"') == 2
        plain = attrs.evolve(F, parameters=None)
        assert '"additionalProperties": false' in await grammar(ToolUse(tools=(plain,), mode="required"))


async def test_what_an_answer_must_be_may_follow_a_thought_or_be_a_call() -> None:
    structure = Structure(kind="json_object", text="", param="response_format")
    block, _ = open_fake_engine(say("x"), options=THINKING)
    async with block as engine:
        params = SamplingParams(structure=structure)
        alone = (await engine.prepare_chat(MESSAGES, params)).params.structure
        assert alone is not None
        assert (alone.kind, alone.param) == ("lark", "response_format")
        assert 'start: ("<think>"' in alone.text
        called = (await engine.prepare_chat(MESSAGES, params, tools=ToolUse(tools=(F,)))).params.structure
        assert called is not None
        assert "<tool_call>" in called.text
        pattern = attrs.evolve(structure, kind="regex", text="a+")
        kept = (await engine.prepare_chat(MESSAGES, SamplingParams(structure=pattern))).params.structure
        assert kept == pattern
        with pytest.raises(ParamError, match="together with response_format"):
            await engine.prepare_chat(MESSAGES, SamplingParams(structure=pattern), tools=ToolUse(tools=(F,)))


def test_a_format_that_is_not_known_is_refused() -> None:
    for name in ("tool_format", "reasoning_format"):
        with pytest.raises(ParamError, match="must be one of none, ") as caught:
            EngineOptions(**{name: "xml"})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("value", "size"),
    [("abc", 3), ([], 0), (["ab", 7, None], 3 + 2 + 2), ({"key": ["v"]}, 1 + 3 + 1 + 1), ([{}, {"a": {}}], 2 + 1 + 1)],
)
def test_what_is_small_has_few_characters_and_values(value: object, size: int) -> None:
    assert is_small(value, size)
    assert not size or not is_small(value, size - 1)


def test_what_is_large_is_not_looked_at_to_its_end() -> None:
    class Endless(list[object]):
        """Has no end for who goes on after its first items."""

        def __iter__(self) -> Iterator[object]:
            raise AssertionError

    assert not is_small([Endless(range(10))], 5)
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    assert is_small(deep, 5001)


@pytest.mark.parametrize("kind", ["string", ["object", "null"]])
async def test_arguments_that_are_no_object_are_not_enforced_but_refused(kind: object) -> None:
    tool = Tool(name="f", parameters={"type": kind}, strict=True, param="tools.0.function.parameters")
    block, _ = open_fake_engine(say("x"))
    async with block as engine:
        with pytest.raises(ParamError, match="must be of the type object") as caught:
            await engine.prepare_chat(MESSAGES, tools=ToolUse(tools=(tool,)))
        assert caught.value.param == "tools.0.function.parameters"


async def test_arguments_of_which_nothing_is_said_are_an_object() -> None:
    block, _ = open_fake_engine(say("x"))
    async with block as engine:
        tools = ToolUse(tools=(Tool(name="f", parameters={}),), mode="required")
        chat = await engine.prepare_chat(MESSAGES, tools=tools)
        assert chat.params.structure is not None
        assert '%json {"type": "object"}' in chat.params.structure.text
