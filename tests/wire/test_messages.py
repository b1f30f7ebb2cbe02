"""The messages of a chat, as a template will be given them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.wire.decode import parse_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"q":1}'}}


def read(*messages: object) -> tuple[Mapping[str, object], ...]:
    return parse_chat(json.dumps({"model": "m", "messages": messages}).encode(), Limits()).messages


def refusal(*messages: object) -> ParamError:
    with pytest.raises(ParamError) as caught:
        read(*messages)
    return caught.value


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_role_content_and_name_are_passed_on(role: str) -> None:
    assert read({"role": role, "content": "hi", "name": "x"}) == ({"role": role, "content": "hi", "name": "x"},)


def test_an_empty_text_is_a_content() -> None:
    assert read({"role": "user", "content": ""}) == ({"role": "user", "content": ""},)


def test_a_developer_is_called_system_in_templates() -> None:
    assert read({"role": "developer", "content": "be brief"}) == ({"role": "system", "content": "be brief"},)


def test_text_parts_are_joined_by_newlines() -> None:  # case message-content-forms
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read({"role": "user", "content": parts}) == read({"role": "user", "content": "a\nb"})


def test_a_tool_conversation_is_passed_on_with_its_arguments_as_objects() -> None:  # case message-content-forms
    messages = read(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
    )
    opened = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"q": 1}}}
    assert messages == (
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [opened]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    )


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("", {}),
        ("{}", {}),
        ('{"q": [1, {"r": null}]}', {"q": [1, {"r": None}]}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ('"x"', '"x"'),
        ('{"q": NaN}', '{"q": NaN}'),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_that_are_no_object_stay_text(text: str, given: object) -> None:  # case message-content-forms
    call = {"id": "c1", "function": {"name": "f", "arguments": text}}
    (message,) = read({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": given}}]


@pytest.mark.parametrize("calls", [None, []])
def test_no_tool_calls_are_the_same_as_absent(calls: list[object] | None) -> None:  # case message-content-forms
    assert read({"role": "assistant", "content": "x", "tool_calls": calls}) == ({"role": "assistant", "content": "x"},)


def test_an_answer_of_ours_can_be_given_back() -> None:
    nothing: dict[str, object] = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert read({"role": "assistant", "content": "x", **nothing}) == ({"role": "assistant", "content": "x"},)


IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages.0"),
        (None, "messages.0"),
        ({}, "messages.0.role"),
        ({"content": "hi"}, "messages.0.role"),
        ({"role": "banana", "content": "hi"}, "messages.0.role"),
        ({"role": "function", "name": "f", "content": "hi"}, "messages.0.role"),
        ({"role": 1, "content": "hi"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "assistant", "content": None}, "messages.0.content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages.0.content"),
        ({"role": "user", "content": 1}, "messages.0.content"),
        ({"role": "user", "content": []}, "messages.0.content"),
        ({"role": "user", "content": ["a"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages.0.content.0.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages.0.content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "messages.0.content.0.x"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}, "messages.0.content.1.type"),
        ({"role": "user", "content": "a", "name": 1}, "messages.0.name"),
        ({"role": "user", "content": "a", "foo": 1}, "messages.0.foo"),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "messages.0.tool_calls"),
        ({"role": "user", "content": "a", "tool_call_id": "c1"}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": "a"}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "c1"}, "messages.0.content"),
        ({"role": "assistant", "content": "a", "refusal": "no"}, "messages.0.refusal"),
        ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "messages.0.audio"),
        ({"role": "assistant", "tool_calls": {}}, "messages.0.tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages.0.tool_calls.0"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, "messages.0.tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "messages.0.tool_calls.0.type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "x": 1}]}, "messages.0.tool_calls.0.x"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": None}]}, "messages.0.tool_calls.0.function"),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"arguments": "{}"}}]},
            "messages.0.tool_calls.0.function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "", "x": 1}}]},
            "messages.0.tool_calls.0.function.x",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_the_path_of_its_fault(message: object, param: str) -> None:
    # case message-content-forms
    assert refusal(message).param == param
    later = refusal({"role": "user", "content": "a"}, message).param
    assert later == param.replace("messages.0", "messages.1")


def test_a_chat_without_a_message_is_refused() -> None:
    assert refusal().param == "messages"
