"""The messages of a chat, from JSON to what a chat template is given.

Owns: roles, the forms of content, and the tool calls of earlier turns. Must not know: templates.

- A message has ``role`` and ``content``, always a string; ``name``, ``tool_calls``, ``tool_call_id`` and
  ``reasoning_content`` only if the caller gave them. An empty list of tool calls is none.
- Content given as text parts is joined by newlines.
- Content may be null only beside tool calls; it is then "", so that no template can print "None".
- The role "developer" becomes "system", the name that templates know for it.
- The arguments of a tool call are given as the object that their JSON text stands for, as templates iterate over
  them, and nothing as the empty object. A text that is not a JSON object stays text: a model wrote it, and a
  conversation must be able to go on after that.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trioserve.errors import ParamError
from trioserve.wire.calls import Message
from trioserve.wire.fields import Fields
from trioserve.wire.neutral import MESSAGE, take_neutral

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""The roles a caller may write, and what templates call them."""

PART_SEPARATOR: Final = "\n"


def build_messages(items: list[object], path: str) -> tuple[Message, ...]:
    """The messages of a request, from its JSON array at ``path``.

    Raises:
        ParamError: there is none, or one is wrong.
    """
    if not items:
        raise ParamError(f"{path} must have at least one message.", path)
    return tuple(_build_message(Fields.of(item, f"{path}.{i}")) for i, item in enumerate(items))


def _build_message(fields: Fields) -> Message:
    role = fields.required_text("role")
    if role not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}", role)
    message: dict[str, object] = {"role": _ROLES[role]}
    calls: list[object] = []
    if role == "assistant":
        calls = _take_tool_calls(fields)
        thought = fields.text("reasoning_content", None)
        if thought is not None:
            message["reasoning_content"] = thought
        take_neutral(fields, MESSAGE)
    message["content"] = take_content(fields, optional=bool(calls))
    name = fields.text("name", None)
    if name is not None:
        message["name"] = name
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = fields.required_text("tool_call_id")
    fields.finish()
    return message


def take_content(fields: Fields, *, optional: bool = False) -> str:
    """``content``: a string, or text parts to join.

    Raises:
        ParamError: it is neither, or absent and not ``optional``.
    """
    value = fields.take("content")
    if isinstance(value, str):
        return value
    if value is None:
        if not optional:
            raise fields.missing("content")
        return ""
    if not isinstance(value, list):
        raise fields.wrong("content", "a string or an array of text parts", value)
    path = fields.path("content")
    if not value:
        raise ParamError(f"{path} must have at least one part.", path)
    return PART_SEPARATOR.join(_part_text(Fields.of(part, f"{path}.{i}")) for i, part in enumerate(value))


def _part_text(fields: Fields) -> str:
    kind = fields.required_text("type")
    if kind != "text":
        raise fields.wrong("type", "'text', the only kind of content this server takes", kind)
    text = fields.required_text("text")
    fields.finish()
    return text


def _take_tool_calls(fields: Fields) -> list[object]:
    path = fields.path("tool_calls")
    calls = fields.array("tool_calls") or []
    return [_build_tool_call(Fields.of(call, f"{path}.{i}")) for i, call in enumerate(calls)]


def _build_tool_call(fields: Fields) -> Message:
    call_id = fields.required_text("id")
    kind = fields.text("type", "function")
    if kind != "function":
        raise fields.wrong("type", "'function'", kind)
    function = fields.nested("function")
    if function is None:
        raise fields.missing("function")
    name = function.required_text("name")
    arguments = function.required_text("arguments")
    function.finish()
    fields.finish()
    return {"id": call_id, "type": kind, "function": {"name": name, "arguments": open_arguments(arguments)}}


def open_arguments(text: str) -> object:
    """What the arguments of a call stand for; the text itself if that is no JSON object."""
    if not text:
        return {}
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
