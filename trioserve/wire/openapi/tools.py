"""Tools in requests, as the document shows them.

Owns: the fields that wire.tools and wire.rendering read, and those of calls in answers. Must not know: other fields.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trioserve.tools import MAX_TOOLS, TOOL_NAME
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import extension, extension_marks, meaning

NAME_PATTERN: Final = f"^{TOOL_NAME.pattern}$"
ANY_OBJECT: Final[dict[str, object]] = {"anyOf": [{"type": "object"}, {"type": "null"}]}
ToolName = Annotated[str, Meta(pattern=NAME_PATTERN)]


class ToolFunction(Body, kw_only=True):
    """A function that the caller runs when the model asks for it."""

    name: Annotated[ToolName, meaning("No other tool of the request has it.")]
    description: str | None = None
    parameters: Annotated[
        object,
        Meta(
            description="The JSON schema of the arguments, which are an object. By default there are none.",
            extra_json_schema=ANY_OBJECT,
        ),
    ] = None
    strict: Annotated[
        bool | None, meaning("The arguments always follow the schema, which must be one that can be enforced.")
    ] = False


class Tool(Body, kw_only=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Body, kw_only=True):
    """The name of one of the tools."""

    name: ToolName


class ToolByName(Body, kw_only=True):
    """One of the tools."""

    type: Literal["function"]
    function: NamedFunction


class ChosenTool(Body, kw_only=True, tag_field="type", tag="function"):
    """Every choice is one call of this tool."""

    function: NamedFunction


class AllowedTools(Body, kw_only=True):
    """Some of the tools."""

    mode: Annotated[Literal["auto", "required"], meaning("Whether a choice may call them or must.")]
    tools: Annotated[list[ToolByName], Meta(min_length=1)]


class ChosenTools(Body, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model is told of all tools, and can call these."""

    allowed_tools: AllowedTools


Tools = Annotated[Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None, meaning("What the model may call.")]
ToolChoice = Annotated[
    Literal["auto", "none", "required"] | ChosenTool | ChosenTools | None,
    meaning(
        "Whether a choice may call tools, must not, or must. Only with tools may it be more than auto or none. What a "
        "choice must do is enforced: its calls are of tools that there are, and follow their schemas."
    ),
]
ParallelToolCalls = Annotated[bool | None, meaning("A choice may have more than one call.")]
ReasoningEffort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
    meaning("Given to the model's chat template, which must know of it, or of enable_thinking."),
]
TemplateArguments = Annotated[
    object,
    Meta(
        description="Values for variables of the model's chat template, such as enable_thinking; it must have them.",
        extra_json_schema={**ANY_OBJECT, **extension_marks(None)},
    ),
]
AddGenerationPrompt = Annotated[
    bool | None, extension("The prompt ends with the start of an answer; so it does by default.")
]
ContinueFinalMessage = Annotated[
    bool | None, extension("The answer goes on with the last message. Not with add_generation_prompt.")
]


class MadeFunction(Struct, kw_only=True):
    """A function that the model calls."""

    name: str
    arguments: Annotated[str, meaning("JSON, unless the model wrote something else.")]


class MadeCall(Struct, kw_only=True):
    """A call of a tool."""

    id: Annotated[str, meaning("No other call has it.")]
    type: Literal["function"]
    function: MadeFunction


class FunctionPiece(Struct, kw_only=True):
    """More of a call: the name in its first event only."""

    arguments: str
    name: str | UnsetType = UNSET


class CallPiece(Struct, kw_only=True):
    """More of a call of a tool: id, type and name in its first event only."""

    index: Annotated[int, meaning("Counts the calls of the choice from 0.")]
    function: FunctionPiece
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
