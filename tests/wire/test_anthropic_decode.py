"""Requests to /v1/messages: what they mean, and what is refused, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.wire.anthropic.call import MessagesCall
from trioserve.wire.anthropic.decode import parse_count, parse_message

LIMITS = Limits()
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


def parse(**fields: Any) -> MessagesCall:
    least = {"model": "tiny", "max_tokens": 9, "messages": [USER]}
    return parse_message(json.dumps({**least, **fields}).encode(), LIMITS)


def refusal(**fields: Any) -> ParamError:
    with pytest.raises(ParamError) as caught:
        parse(**fields)
    return caught.value


def messages(*items: object) -> list[Any]:
    return list(parse(messages=list(items)).messages)


def text(said: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": said, **more}


def test_a_text_may_be_given_in_blocks() -> None:
    assert parse(system="be brief").messages == ({"role": "system", "content": "be brief"}, USER)
    cached = text("a", cache_control={"type": "ephemeral", "ttl": "1h"})
    assert parse(system=[cached, text("b", citations=None)]).messages[0]["content"] == "a\nb"
    assert messages({"role": "user", "content": [text("a"), text("b")]}) == [{"role": "user", "content": "a\nb"}]
    assert messages(USER, {"role": "system", "content": "x"})[1] == {"role": "system", "content": "x"}


def test_an_answer_can_be_given_back_with_the_results_of_its_tools() -> None:
    answer = [
        {"type": "thinking", "thinking": "hm", "signature": "", "choice": 0},
        text("let me see", citations=None, choice=0),
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}, "choice": 0},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}, "caller": {"type": "direct"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "2"},
        text("first"),
        text("second"),
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("no"), text("way")], "is_error": True},
        {"type": "tool_result", "tool_use_id": "c3"},
        text("and now?"),
    ]
    assert messages(USER, {"role": "assistant", "content": answer}, {"role": "user", "content": results}) == [
        USER,
        {
            "role": "assistant",
            "content": "let me see",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "user", "content": "first\nsecond"},
        {"role": "tool", "content": "Error: no\nway", "tool_call_id": "c2"},
        {"role": "tool", "content": "", "tool_call_id": "c3"},
        {"role": "user", "content": "and now?"},
    ]


def test_every_parameter_has_its_place() -> None:
    call = parse(temperature=1, top_p=0.9, top_k=5, stop_sequences=["a", "b"], n=3, seed=5, stream=True)
    params = call.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 1.0, 0.9, 5)
    assert (params.stop, params.n, params.seed) == (("a", "b"), 3, 5)
    assert call.stream


def test_a_schema_is_what_the_answer_must_be() -> None:
    structure = parse(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}).params.structure
    assert structure is not None
    assert (structure.kind, structure.text, structure.param) == (
        "json_schema",
        '{"type":"object"}',
        "output_config.format",
    )


def test_what_asks_for_nothing_is_taken() -> None:
    plain = parse()
    for fields in (
        {"metadata": {"user_id": "x"}},
        {"service_tier": "auto"},
        {"cache_control": {"type": "ephemeral"}},
        {"speed": "standard"},
        {"tools": [], "tool_choice": {"type": "none"}},
    ):
        assert parse(**fields) == plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "So"}]}, "messages.1.role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [{**USER, "name": "x"}]}, "messages.0.name"),
        ({"messages": [USER, {"role": "user", "content": [text("x"), IMAGE]}]}, "messages.1.content.1.type"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, USER]},
            "messages.0.content.0.type",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}]}
                ]
            },
            "messages.0.content.0.content.0.type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}, USER]},
            "messages.0.content.0.input",
        ),
        ({"system": [IMAGE]}, "system.0.type"),
        ({"system": [text("x", citations=[{}])]}, "system.0.citations"),
        ({"system": [text("x", cache_control={"type": "forever"})]}, "system.0.cache_control.type"),
        ({"system": [text("x", cache_control={"type": "ephemeral", "ttl": "9h"})]}, "system.0.cache_control.ttl"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop_sequences": "x" * 2000}, "stop_sequences"),
        ({"stop_sequences": 5}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"metadata": {"x": 1}}, "metadata.x"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "x"}, "container"),
        ({"stream_options": {}}, "stream_options"),
        ({"x": 1}, "x"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "f", "description": "x", "input_schema": SCHEMA}


@pytest.mark.parametrize(
    ("choice", "mode", "allowed", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "required", {"f"}, False),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_tools_and_which_may_be_called(choice: object, mode: str, allowed: set[str] | None, parallel: bool) -> None:
    call = parse(tools=[TOOL, {**TOOL, "name": "g", "type": "custom", "strict": True}], tool_choice=choice)
    assert call.tools is not None
    first, second = call.tools.tools
    assert first.definition() == {
        "type": "function",
        "function": {"name": "f", "description": "x", "parameters": SCHEMA},
    }
    assert (first.strict, first.param, second.strict) == (False, "tools.0.input_schema", True)
    assert (call.tools.mode, call.tools.allowed, call.tools.parallel) == (mode, allowed, parallel)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "none", "name": "f"}}, "tool_choice.name"),
    ],
)
def test_what_is_wrong_about_tools_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "medium"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"output_config": {"effort": "max"}}, "xhigh"),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "low"),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "disabled"}}, "none"),
    ],
)
def test_how_much_to_think_is_a_wish(fields: dict[str, Any], effort: str | None) -> None:
    rendering = parse(**fields).rendering
    assert (rendering.reasoning_effort, rendering.needs_setting) == (effort, False)


def test_a_count_takes_what_a_message_has_but_for_what_is_about_drawing() -> None:
    body = {"model": "tiny", "messages": [USER], "system": "x", "thinking": {"type": "disabled"}}
    call = parse_count(json.dumps(body).encode(), LIMITS)
    assert call.messages == ({"role": "system", "content": "x"}, USER)
    for name, value in (("max_tokens", 5), ("temperature", 1), ("stream", True)):
        with pytest.raises(ParamError, match=name):
            parse_count(json.dumps({**body, name: value}).encode(), LIMITS)
