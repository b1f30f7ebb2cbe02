"""The tools of a response, from JSON to a ToolUse, and back.

Owns: the form that this API has for ``tools`` and ``tool_choice``: that of chats, one level flatter.
Must not know: how a model calls tools.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.tools import Tool, ToolUse
from trioserve.wire.fields import Fields
from trioserve.wire.neutral import Neutral, take_neutral
from trioserve.wire.tools import Mode, as_mode, take_each_tool, take_function, take_known_name

TOOL_NEUTRAL: Final[Neutral] = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False,),
    "output_schema": (),
}
_FORMS: Final = "'auto', 'none', 'required', or an object that names a function or the allowed tools"
_ALLOWED_MODES: Final = "'auto' or 'required'"


def take_tools(fields: Fields) -> tuple[ToolUse | None, dict[str, object]]:
    """``tools`` and what is said about their use; None if there are none. And how a response repeats it.

    Raises:
        ParamError: a tool is wrong, or the choice is one that can't be made.
    """
    tools = take_each_tool(fields, _build_tool)
    parallel = fields.switch("parallel_tool_calls") is not False
    given = fields.take("tool_choice")
    choice = "auto" if given is None else given
    repeated = {
        "tools": [_repeat(tool) for tool in tools],
        # nothing is left of it once it has been taken apart
        "tool_choice": copy.deepcopy(choice),
        "parallel_tool_calls": parallel,
    }
    if not tools:
        # without tools, these two ask for nothing
        if choice not in ("auto", "none"):
            raise ParamError("tool_choice is only allowed when there are tools.", fields.path("tool_choice"))
        return None, repeated
    is_named = isinstance(choice, dict) and choice.get("type") == "function"
    mode, allowed = _build_choice(fields, choice, [tool.name for tool in tools])
    return ToolUse(tools=tools, mode=mode, allowed=allowed, parallel=parallel and not is_named), repeated


def _build_tool(fields: Fields) -> tuple[Tool, str]:
    kind = fields.required_text("type")
    if kind != "function":
        raise fields.wrong("type", "'function', the only kind of tool this server has", kind)
    tool = take_function(fields, "parameters")
    take_neutral(fields, TOOL_NEUTRAL)
    fields.finish()
    return tool, fields.path("name")


def _build_choice(fields: Fields, value: object, names: Collection[str]) -> tuple[Mode, frozenset[str] | None]:
    if isinstance(value, str):
        return as_mode(fields, "tool_choice", value, _FORMS), None
    if not isinstance(value, dict):
        raise fields.wrong("tool_choice", _FORMS, value)
    choice = Fields.of(value, fields.path("tool_choice"))
    kind = choice.required_text("type")
    if kind == "function":
        mode: Mode = "required"
        allowed = frozenset({take_known_name(choice, names)})
    elif kind == "allowed_tools":
        mode = as_mode(choice, "mode", choice.required_text("mode"), _ALLOWED_MODES)
        if mode == "none":
            raise choice.wrong("mode", _ALLOWED_MODES, mode)
        allowed = _take_allowed(choice, names)
    else:
        raise choice.wrong("type", "'function' or 'allowed_tools'", kind)
    choice.finish()
    return mode, allowed


def _take_allowed(choice: Fields, names: Collection[str]) -> frozenset[str]:
    path = choice.path("tools")
    items = choice.array("tools") or []
    if not items:
        raise ParamError(f"{path} must have at least one tool.", path)
    allowed = []
    for i, item in enumerate(items):
        entry = Fields.of(item, f"{path}.{i}")
        kind = entry.required_text("type")
        if kind != "function":
            raise entry.wrong("type", "'function'", kind)
        allowed.append(take_known_name(entry, names))
        entry.finish()
    return frozenset(allowed)


def _repeat(tool: Tool) -> Mapping[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
