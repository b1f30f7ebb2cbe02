"""The tools that a model may call, and what a request says about their use.

Owns: Tool and ToolUse. Must not know: how a model is told of them, or how it calls them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import attrs

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_TOOLS: Final = 128


@attrs.frozen(kw_only=True)
class Tool:
    """A function that the caller runs when the model asks for it."""

    name: str
    """As TOOL_NAME has it; no other tool of the request has this name."""
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    """The JSON schema of its arguments, which are an object; None: there are none."""
    strict: bool = False
    """Its arguments always follow the schema."""
    param: str = "tools"
    """What the request calls the schema, for errors: "tools.0.function.parameters"."""

    def definition(self) -> dict[str, object]:
        """As chat templates are given it."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@attrs.frozen(kw_only=True)
class ToolUse:
    """The tools of a request, of which there is at least one, and whether and how they may be called."""

    tools: tuple[Tool, ...]
    mode: Literal["auto", "none", "required"] = "auto"
    """A choice may call tools, must not, or must."""
    allowed: frozenset[str] | None = None
    """The names of those that may be called; None: all. The model is told of all of them."""
    parallel: bool = True
    """A choice may make more than one call."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if self.allowed is None or tool.name in self.allowed)

    @property
    def enforced_by(self) -> str | None:
        """The field of the request for whose sake a choice has to be held to a grammar; None: none is."""
        if self.mode == "required" or (self.mode == "auto" and self.allowed is not None):
            return "tool_choice"
        if self.mode == "auto" and not self.parallel:
            return "parallel_tool_calls"
        return "tools" if any(tool.strict for tool in self.callable) else None
