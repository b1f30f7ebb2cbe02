"""The input of /v1/responses, from its items to the messages of a chat.

Owns: the kinds of items, and which of them are parts of one message. Must not know: templates.

- A text is a message of the user. The instructions are a message of the system, before all others.
- The calls of functions that follow a message of the assistant, or one another, are the tool calls of one message.
- The thoughts of a reasoning item are ``reasoning_content`` of the message of the assistant that comes next.
- What only tells about an item, such as its id and its status, is taken, so that the output of one response can be
  the input of the next one as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.wire.calls import Message
from trioserve.wire.fields import Fields
from trioserve.wire.messages import PART_SEPARATOR, open_arguments
from trioserve.wire.neutral import Labels, Neutral, take_labels, take_neutral

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
ITEM_LABELS: Final[Labels] = {
    "choice": (int, "an integer"),
    "id": (str, "a string"),
    "phase": (str, "a string"),
    "status": (str, "a string"),
}
"""What items of ours, and of other servers, tell about themselves."""
CALL_NEUTRAL: Final[Neutral] = {"async": (False,), "caller": ({"type": "direct"},), "namespace": ()}
REASONING_NEUTRAL: Final[Neutral] = {"encrypted_content": ()}
REASONING_LABELS: Final[Labels] = {"summary": (list, "an array")}
PART_NEUTRAL: Final[Neutral] = {"annotations": ([],), "prompt_cache_breakpoint": ()}
PART_LABELS: Final[Labels] = {"logprobs": (list, "an array")}


def build_input(value: object, instructions: str | None) -> tuple[Message, ...]:
    """The messages of a request.

    Raises:
        ParamError: the input is empty, or an item is wrong.
    """
    conversation = _Conversation()
    if instructions is not None:
        conversation.say({"role": "system", "content": instructions})
    if isinstance(value, str):
        conversation.say({"role": "user", "content": value})
        return conversation.messages()
    if not isinstance(value, list):
        raise Fields({}).wrong("input", "a string or an array of items", value)
    if not value:
        raise ParamError("input must have at least one item.", "input")
    for i, item in enumerate(value):
        _add_item(conversation, Fields.of(item, f"input.{i}"))
    return conversation.messages()


class _Conversation:
    """Messages, as items make them one by one."""

    def __init__(self) -> None:
        self._messages: Final[list[dict[str, object]]] = []
        self._calls: list[object] | None = None
        """Those of the last message, if calls that follow are of that message too."""
        self._thoughts: Final[list[str]] = []

    def say(self, message: dict[str, object]) -> None:
        assistant = message["role"] == "assistant"
        if assistant and self._thoughts:
            message["reasoning_content"] = PART_SEPARATOR.join(self._thoughts)
            self._thoughts.clear()
        self._messages.append(message)
        self._calls = [] if assistant else None

    def call(self, call: Mapping[str, object]) -> None:
        if self._calls is None or self._thoughts:
            self.say({"role": "assistant", "content": ""})
        assert self._calls is not None
        self._calls.append(call)
        self._messages[-1]["tool_calls"] = self._calls

    def think(self, thoughts: list[str]) -> None:
        self._thoughts.extend(thoughts)

    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)


def _add_item(conversation: _Conversation, fields: Fields) -> None:
    kind = fields.text("type", "message")
    if kind == "message":
        conversation.say(_build_message(fields))
    elif kind == "function_call":
        conversation.call(_build_call(fields))
    elif kind == "function_call_output":
        conversation.say(_build_output(fields))
    elif kind == "reasoning":
        conversation.think(_take_thoughts(fields))
    else:
        raise fields.wrong("type", "one of message, function_call, function_call_output, reasoning", kind)
    take_labels(fields, ITEM_LABELS)
    fields.finish()


def _build_message(fields: Fields) -> dict[str, object]:
    role = fields.required_text("role")
    if role not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}", role)
    return {"role": _ROLES[role], "content": _take_text(fields, "content")}


def _build_call(fields: Fields) -> Mapping[str, object]:
    call_id = fields.required_text("call_id")
    name = fields.required_text("name")
    arguments = fields.required_text("arguments")
    take_neutral(fields, CALL_NEUTRAL)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": open_arguments(arguments)}}


def _build_output(fields: Fields) -> dict[str, object]:
    call_id = fields.required_text("call_id")
    output = _take_text(fields, "output")
    take_neutral(fields, CALL_NEUTRAL)
    message: dict[str, object] = {"role": "tool", "content": output, "tool_call_id": call_id}
    name = fields.text("name", None)
    return message if name is None else {**message, "name": name}


def _take_thoughts(fields: Fields) -> list[str]:
    # a summary is about thoughts: no model has thought it
    take_labels(fields, REASONING_LABELS)
    take_neutral(fields, REASONING_NEUTRAL)
    path = fields.path("content")
    parts = fields.array("content") or []
    return [_part_text(Fields.of(part, f"{path}.{i}"), ("reasoning_text",)) for i, part in enumerate(parts)]


def _take_text(fields: Fields, name: str) -> str:
    value = fields.take(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list):
        raise fields.wrong(name, "a string or an array of text parts", value)
    path = fields.path(name)
    if not value:
        raise ParamError(f"{path} must have at least one part.", path)
    parts = [_part_text(Fields.of(part, f"{path}.{i}"), ("input_text", "output_text")) for i, part in enumerate(value)]
    return PART_SEPARATOR.join(parts)


def _part_text(fields: Fields, kinds: tuple[str, ...]) -> str:
    kind = fields.required_text("type")
    if kind not in kinds:
        known = " or ".join(repr(each) for each in kinds)
        raise fields.wrong("type", f"{known}: this server takes no other kind of content", kind)
    text = fields.required_text("text")
    if kind != "reasoning_text":
        take_neutral(fields, PART_NEUTRAL)
        take_labels(fields, PART_LABELS)
    fields.finish()
    return text
