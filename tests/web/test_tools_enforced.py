"""Calls that are demanded: whatever a model would rather write, what comes out are calls that validate."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import jsonschema
import pytest

from trioserve.testing.device import Draw
from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.server import CHAT, FakeServer, serving
from trioserve.testing.tokenizer import EOS
from trioserve.text.tools.formats import TOOL_FORMATS

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"q": {"type": "string", "maxLength": 5}},
        "required": ["q"],
        "additionalProperties": False,
    },
    "g": {"type": "object", "properties": {"n": {"enum": [1, None, "a"]}}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "g"}}


def babble(draw: Draw) -> int:
    """A model without sense: it would write anything, and ends what can end."""
    rng = random.Random(draw.seed * 100_003 + len(draw.generated))
    tokens = (EOS, *b'"])}<', rng.randrange(256))
    return tokens[rng.randrange(len(tokens))]


def check(choice: dict[str, Any]) -> list[str]:
    """The names of a choice's calls, whose arguments validate."""
    calls = choice["message"].get("tool_calls", [])
    for call in calls:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in calls]


every_format = pytest.mark.parametrize("name", TOOL_FORMATS)


def server_of(name: str, **options: Any) -> Any:
    return serving(babble, options=attrs.evolve(FAKE_OPTIONS, tool_format=name, **options))


async def finished(server: FakeServer, **fields: Any) -> list[dict[str, Any]]:
    """The choices that ended by themselves, of some with different seeds."""
    answer = await server.chat(tools=TOOLS, n=12, max_tokens=300, **fields)
    return [choice for choice in answer["choices"] if choice["finish_reason"] != "length"]


@every_format
async def test_required_tools_are_called(name: str) -> None:  # case tool-finish-reason
    async with server_of(name) as server:
        choices = await finished(server, tool_choice="required")
        assert choices
        for choice in choices:
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            assert check(choice)


@every_format
async def test_a_named_tool_is_called_once_and_no_other(name: str) -> None:  # case tool-finish-reason
    async with server_of(name, reasoning_format="none") as server:
        choices = await finished(server, tool_choice=NAMED)
        assert choices
        assert all(check(choice) == ["g"] for choice in choices)


async def test_a_strict_tool_is_called_by_its_schema_and_the_rest_is_free() -> None:
    wished = 'Well, <tool_call>\n{"name": "f", "arguments": {"x": "too long a text"}}\n</tool_call>'
    async with serving(say(wished)) as server:
        (choice,) = (await server.chat(tools=STRICT, max_tokens=200))["choices"]
        assert choice["message"]["content"].startswith("Well,")
        assert check(choice)[0] == "f"
    async with serving(say("Just text, no < call.")) as server:
        (choice,) = (await server.chat(tools=STRICT))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Just text, no < call.", "stop")


async def test_without_parallel_calls_there_is_one_at_most() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"q": "a"}}\n</tool_call>'
    async with serving(say(call + call)) as server:
        (choice,) = (await server.chat(tools=TOOLS))["choices"]
        assert check(choice) == ["f", "f"]
        (choice,) = (await server.chat(tools=TOOLS, parallel_tool_calls=False, max_tokens=200))["choices"]
        assert check(choice) == ["f"]


async def test_a_tool_that_is_not_allowed_is_not_called() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    async with serving(say('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')) as server:
        (choice,) = (await server.chat(tools=TOOLS, tool_choice=allowed, max_tokens=200))["choices"]
        assert set(check(choice)) <= {"g"}


async def test_a_thought_comes_before_calls_that_are_demanded() -> None:
    options = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
    wished = '<think>hm <tool_call></think>\n\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    async with serving(say(wished), options=options) as server:
        (choice,) = (await server.chat(tools=TOOLS, tool_choice="required"))["choices"]
        assert choice["message"]["reasoning_content"] == "hm <tool_call>"
        assert check(choice) == ["g"]


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tool_choice": NAMED}])
async def test_a_schema_that_cannot_be_enforced_is_refused_by_name(fields: dict[str, Any]) -> None:
    bad = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "not": {"required": ["a"]}}}}
    async with serving(say("x")) as server:
        response = await server.post(CHAT, tools=[TOOLS[0], bad], **fields)
        assert (response.status, json.loads(response.body)["error"]["param"]) == (
            400,
            "tools.1.function.parameters",
        ), response.body
        # nothing is enforced
        assert (await server.post(CHAT, tools=[TOOLS[0], bad])).status == 200


async def test_what_must_be_called_has_no_least_number_of_tokens() -> None:
    async with serving(say("x")) as server:
        response = await server.post(CHAT, tools=TOOLS, tool_choice="required", min_tokens=3)
        assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "min_tokens")


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}


async def test_an_answer_of_a_form_is_that_or_calls() -> None:
    call = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    async with serving(say(["12", call])) as server:
        answer, calling = (await server.chat(tools=TOOLS, response_format=FORM, n=2))["choices"]
        assert (answer["message"]["content"], answer["finish_reason"]) == ("12", "stop")
        assert (check(calling), calling["message"]["content"]) == (["g"], None)


async def test_an_answer_of_a_form_may_follow_a_thought() -> None:
    options = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
    async with serving(say(["<think>hm</think>12", "34"]), options=options) as server:
        first, second = (choice["message"] for choice in (await server.chat(response_format=FORM, n=2))["choices"])
        assert (first["reasoning_content"], first["content"]) == ("hm", "12")
        assert (second.get("reasoning_content"), second["content"]) == (None, "34")
