"""The tools of a message, from JSON to a ToolUse.

Owns: the form that this API has for ``tools`` and ``tool_choice``. Must not know: how a model calls tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.tools import Tool, ToolUse
from trioserve.wire.anthropic.blocks import take_cache_control
from trioserve.wire.fields import Fields
from trioserve.wire.neutral import Labels, Neutral, take_labels, take_neutral
from trioserve.wire.tools import Mode, take_each_tool, take_function, take_known_name

TOOL_NEUTRAL: Final[Neutral] = {"allowed_callers": (["direct"],), "defer_loading": (False,)}
TOOL_LABELS: Final[Labels] = {
    # arguments are told as they are made in any case
    "eager_input_streaming": (bool, "true or false"),
    "input_examples": (list, "an array"),
}
_MODES: Final[Mapping[str, Mode]] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def take_tools(fields: Fields) -> ToolUse | None:
    """``tools`` and ``tool_choice``; None if there are no tools.

    Raises:
        ParamError: a tool is wrong, or the choice is one that can't be made.
    """
    tools = take_each_tool(fields, _build_tool)
    choice = fields.nested("tool_choice")
    kind, mode, allowed, parallel = "auto", _MODES["auto"], None, True
    if choice is not None:
        kind = choice.required_text("type")
        if kind not in _MODES:
            raise choice.wrong("type", f"one of {', '.join(_MODES)}", kind)
        mode = _MODES[kind]
        if kind == "tool":
            allowed = frozenset({take_known_name(choice, [tool.name for tool in tools])})
        if kind != "none":
            parallel = not choice.flag("disable_parallel_tool_use")
        choice.finish()
    if not tools:
        if mode == "required":
            raise ParamError("tool_choice is only allowed when there are tools.", fields.path("tool_choice"))
        return None
    return ToolUse(tools=tools, mode=mode, allowed=allowed, parallel=parallel)


def _build_tool(fields: Fields) -> tuple[Tool, str]:
    kind = fields.text("type", "custom")
    if kind != "custom":
        raise fields.wrong("type", "'custom': this server has no tools of its own", kind)
    tool = take_function(fields, "input_schema")
    if tool.parameters is None:
        raise fields.missing("input_schema")
    take_neutral(fields, TOOL_NEUTRAL)
    take_labels(fields, TOOL_LABELS)
    take_cache_control(fields)
    fields.finish()
    return tool, fields.path("name")
