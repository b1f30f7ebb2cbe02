"""Requests to /v1/responses: what they mean, and what is refused, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.structure import Structure
from trioserve.wire.responses.call import ResponsesCall
from trioserve.wire.responses.decode import parse_response

LIMITS = Limits()
USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ResponsesCall:
    return parse_response(json.dumps({"model": "tiny", "input": "hi", **fields}).encode(), LIMITS)


def refusal(**fields: Any) -> ParamError:
    with pytest.raises(ParamError) as caught:
        parse(**fields)
    return caught.value


def messages(*items: object) -> list[Any]:
    return list(parse(input=list(items)).messages)


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    assert parse().messages == (USER,)
    assert parse(instructions="be brief").messages == ({"role": "system", "content": "be brief"}, USER)


def test_messages_have_texts_or_parts() -> None:
    assert messages(
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
    ) == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b\nc"},
    ]


def test_the_output_of_one_response_can_be_the_input_of_the_next() -> None:
    part = {"type": "output_text", "text": "let me see", "annotations": [], "logprobs": []}
    ours = {"status": "completed", "choice": 0}
    call = {"type": "function_call", "id": "fc_1_2", "call_id": "c1", "name": "f", "arguments": '{"a":1}', **ours}
    thought = {
        "type": "reasoning",
        "id": "rs_1_0",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
        "encrypted_content": None,
        **ours,
    }
    assert messages(
        USER,
        thought,
        {"type": "message", "id": "msg_1_1", "role": "assistant", "content": [part], **ours},
        call,
        {**call, "call_id": "c2", "arguments": "oops"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}]},
    ) == [
        USER,
        {
            "role": "assistant",
            "content": "let me see",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "oops"}},
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "tool", "content": "no", "tool_call_id": "c2"},
    ]


def test_a_call_without_a_text_is_a_message_too_and_a_thought_begins_a_new_one() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    first, second = messages(call, thought, call)
    made = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert first == {"role": "assistant", "content": "", "tool_calls": [made]}
    assert second == {"role": "assistant", "content": "", "tool_calls": [made], "reasoning_content": "hm"}


def test_every_parameter_of_a_chat_has_its_place() -> None:
    call = parse(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        n=3,
        seed=5,
        stream=True,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        text={"format": {"type": "json_object"}},
    )
    params = call.params
    assert (params.max_tokens, params.temperature, params.top_p) == (7, 0.5, 0.9)
    assert (params.n, params.seed, params.logprobs) == (3, 5, 2)
    assert params.structure == Structure(kind="json_object", text="", param="text.format")
    assert call.stream


def test_the_schema_is_kept_as_it_was_written() -> None:
    properties = {"b": {"type": "integer"}, "a": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    format_ = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    call = parse(text={"format": format_, "verbosity": "medium"})
    assert call.params.structure is not None
    assert call.params.structure.kind == "json_schema"
    assert list(json.loads(call.params.structure.text)["properties"]) == ["b", "a"]
    assert call.repeated["text"] == {"format": {**format_, "description": None}}


def test_a_response_repeats_what_it_was_asked() -> None:
    labels = {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}
    repeated = parse(instructions="x", max_tool_calls=3, reasoning={"effort": "low"}, **labels).repeated
    assert {name: repeated[name] for name in labels} == labels
    assert (repeated["instructions"], repeated["max_tool_calls"]) == ("x", 3)
    assert repeated["reasoning"] == {"effort": "low", "summary": None}
    assert parse().repeated["metadata"] == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input.0"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": []}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "x": 1}]}, "input.0.x"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]}, "input.1.content.0.type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input.0.call_id"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input.0.encrypted_content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [USER]}, "messages"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}},
            "text.format",
        ),
        ({"text": {"format": {"type": "json_object"}}, "min_tokens": 1}, "min_tokens"),
        (
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "x"}},
            "structured_outputs",
        ),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


FUNCTION = {"type": "function", "name": "f", "description": "x", "parameters": {"type": "object"}, "strict": True}


def test_tools_are_those_of_a_chat_one_level_flatter() -> None:
    call = parse(tools=[FUNCTION, {"type": "function", "name": "g", "parameters": None, "strict": None}])
    assert call.tools is not None
    first, second = call.tools.tools
    assert first.definition() == {
        "type": "function",
        "function": {"name": "f", "description": "x", "parameters": {"type": "object"}},
    }
    assert (first.strict, first.param) == (True, "tools.0.parameters")
    assert (second.name, second.parameters, second.strict) == ("g", None, False)
    assert (call.tools.mode, call.tools.allowed, call.tools.parallel) == ("auto", None, True)
    assert call.repeated["tools"] == [
        FUNCTION,
        {"type": "function", "name": "g", "description": None, "parameters": None, "strict": False},
    ]


@pytest.mark.parametrize(
    ("fields", "mode", "allowed", "parallel"),
    [
        ({}, "auto", None, True),
        ({"tool_choice": "required"}, "required", None, True),
        ({"tool_choice": "none"}, "none", None, True),
        ({"parallel_tool_calls": False}, "auto", None, False),
        ({"tool_choice": {"type": "function", "name": "f"}}, "required", {"f"}, False),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "f"}],
                }
            },
            "required",
            {"f"},
            True,
        ),
    ],
)
def test_which_tools_may_be_called(fields: dict[str, Any], mode: str, allowed: set[str] | None, parallel: bool) -> None:
    call = parse(tools=[FUNCTION, {**FUNCTION, "name": "g"}], **fields)
    assert call.tools is not None
    assert (call.tools.mode, call.tools.allowed, call.tools.parallel) == (mode, allowed, parallel)
    assert call.repeated["tool_choice"] == fields.get("tool_choice", "auto")
    assert call.repeated["parallel_tool_calls"] == fields.get("parallel_tool_calls", True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools.1.name"),
        ({"tools": [{**FUNCTION, "parameters": []}]}, "tools.0.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": 5}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "none"}}, "tool_choice.mode"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]},
            },
            "tool_choice.tools.0.type",
        ),
    ],
)
def test_what_is_wrong_about_tools_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_how_much_to_think_is_a_matter_of_the_template() -> None:
    assert parse(reasoning={"effort": "low"}).rendering.reasoning_effort == "low"
    assert parse(reasoning={"effort": "low"}).rendering.needs_setting
    assert parse().rendering.reasoning_effort is None
    assert refusal(reasoning={"effort": "much"}).param == "reasoning.effort"


def test_what_would_need_a_store_is_refused_with_the_reason() -> None:
    assert str(refusal(previous_response_id="resp_1")) == (
        "previous_response_id can't be 'resp_1': this server stores nothing. Send the whole conversation as input."
    )
    assert parse(store=False, previous_response_id=None).messages == (USER,)
