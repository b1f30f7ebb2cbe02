"""The tools of a chat, from JSON to a ToolUse.

Owns: ``tools``, ``tool_choice`` and ``parallel_tool_calls``. Must not know: how a model calls tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Literal

from trioserve.errors import ParamError
from trioserve.tools import MAX_TOOLS, TOOL_NAME, Tool, ToolUse
from trioserve.wire.fields import Fields, shorten

Mode = Literal["auto", "none", "required"]

_FORMS: Final = "'auto', 'none', 'required', or an object that names a function or the allowed tools"


def take_tools(fields: Fields) -> ToolUse | None:
    """``tools`` and what is said about their use; None if there are none.

    Raises:
        ParamError: a tool is wrong, or the choice is one that can't be made.
    """
    tools = take_each_tool(fields, _build_tool)
    names = [tool.name for tool in tools]
    parallel = fields.switch("parallel_tool_calls")
    choice = fields.take("tool_choice")
    if not tools:
        # without tools, these two ask for nothing
        if choice not in (None, "auto", "none"):
            raise ParamError("tool_choice is only allowed when there are tools.", fields.path("tool_choice"))
        return None
    mode, allowed = _build_choice(fields, choice, names)
    is_named = isinstance(choice, dict) and choice.get("type") == "function"
    return ToolUse(tools=tools, mode=mode, allowed=allowed, parallel=parallel is not False and not is_named)


def take_each_tool(fields: Fields, build: Callable[[Fields], tuple[Tool, str]]) -> tuple[Tool, ...]:
    """``tools``, of which ``build`` makes each, and says the path of its name.

    Raises:
        ParamError: there are too many, or two have one name; or what ``build`` raises.
    """
    path = fields.path("tools")
    items = fields.array("tools") or []
    if len(items) > MAX_TOOLS:
        raise ParamError(f"{path} takes at most {MAX_TOOLS} tools, got {len(items)}.", path)
    tools: dict[str, Tool] = {}
    for i, item in enumerate(items):
        tool, name_path = build(Fields.of(item, f"{path}.{i}"))
        if tool.name in tools:
            raise ParamError(f"There are two tools with the name {tool.name}.", name_path)
        tools[tool.name] = tool
    return tuple(tools.values())


def take_function(fields: Fields, schema: str) -> Tool:
    """A function that the model may call; ``schema``: what the dialect calls the schema of its arguments.

    Raises:
        ParamError: it is wrong.
    """
    name = fields.required_text("name")
    if TOOL_NAME.fullmatch(name) is None:
        raise fields.wrong("name", "1 to 128 letters, digits, underscores, dots and dashes", name)
    description = fields.text("description", None)
    parameters = fields.take(schema)
    if parameters is not None and not isinstance(parameters, dict):
        raise fields.wrong(schema, "a JSON schema, which is an object", parameters)
    strict = fields.flag("strict")
    return Tool(name=name, description=description, parameters=parameters, strict=strict, param=fields.path(schema))


def take_known_name(fields: Fields, names: Collection[str]) -> str:
    """``name``, which must be that of a tool.

    Raises:
        ParamError: there is none, or no such tool.
    """
    name = fields.required_text("name")
    if name not in names:
        raise ParamError(f"There is no tool with the name {shorten(name)!r}.", fields.path("name"))
    return name


def _build_tool(fields: Fields) -> tuple[Tool, str]:
    kind = fields.required_text("type")
    if kind != "function":
        raise fields.wrong("type", "'function', the only kind of tool this server has", kind)
    function = fields.nested("function")
    if function is None:
        raise fields.missing("function")
    tool = take_function(function, "parameters")
    function.finish()
    fields.finish()
    return tool, function.path("name")


def _build_choice(fields: Fields, value: object, names: list[str]) -> tuple[Mode, frozenset[str] | None]:
    if value is None:
        return "auto", None
    if isinstance(value, str):
        return as_mode(fields, "tool_choice", value, _FORMS), None
    if not isinstance(value, dict):
        raise fields.wrong("tool_choice", _FORMS, value)
    choice = Fields.of(dict(value), fields.path("tool_choice"))
    kind = choice.required_text("type")
    if kind == "function":
        name = _take_name(choice, names)
        choice.finish()
        return "required", frozenset({name})
    if kind != "allowed_tools":
        raise choice.wrong("type", "'function' or 'allowed_tools'", kind)
    allowed = choice.nested("allowed_tools")
    if allowed is None:
        raise choice.missing("allowed_tools")
    choice.finish()
    return _build_allowed(allowed, names)


def _build_allowed(fields: Fields, names: list[str]) -> tuple[Mode, frozenset[str]]:
    value = fields.required_text("mode")
    mode = as_mode(fields, "mode", value, "'auto' or 'required'")
    if mode == "none":
        raise fields.wrong("mode", "'auto' or 'required'", value)
    path = fields.path("tools")
    items = fields.array("tools") or []
    if not items:
        raise ParamError(f"{path} must have at least one tool.", path)
    fields.finish()
    return mode, frozenset(_take_entry(Fields.of(item, f"{path}.{i}"), names) for i, item in enumerate(items))


def _take_entry(fields: Fields, names: list[str]) -> str:
    kind = fields.required_text("type")
    if kind != "function":
        raise fields.wrong("type", "'function'", kind)
    name = _take_name(fields, names)
    fields.finish()
    return name


def as_mode(fields: Fields, field: str, value: str, expected: str) -> Mode:
    """How tools may be called, or a ParamError that says what was ``expected`` of ``field``."""
    if value == "auto":
        return "auto"
    if value == "none":
        return "none"
    if value == "required":
        return "required"
    raise fields.wrong(field, expected, value)


def _take_name(fields: Fields, names: list[str]) -> str:
    """``function.name``, which must be that of a tool."""
    function = fields.nested("function")
    if function is None:
        raise fields.missing("function")
    name = take_known_name(function, names)
    function.finish()
    return name
