"""The bodies of requests to /v1/messages, as the document shows them.

Owns: type and meaning of every field that is read. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from trioserve.tools import MAX_TOOLS
from trioserve.wire.anthropic import blocks, decode, tools
from trioserve.wire.neutral import Labels, Neutral
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import meaning
from trioserve.wire.openapi.requests import DrawingRequest
from trioserve.wire.openapi.sampling import Count, JsonObject, Share, StopString, StopStrings, TopK
from trioserve.wire.openapi.tools import ToolName


class CacheControl(Body, kw_only=True):
    """A mark for a cache that has to be told what to keep. Every prefix is kept here, for as long as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


CacheControlField = Annotated[CacheControl | None, meaning("Accepted, and of no effect.")]


class GivenText(Body, kw_only=True, tag_field="type", tag="text"):
    """A text; those of one message are joined by line feeds."""

    text: str
    cache_control: CacheControlField = None


Texts = Annotated[list[GivenText], Meta(min_length=1)]


class GivenThinking(Body, kw_only=True, tag_field="type", tag="thinking"):
    """What the assistant thought."""

    thinking: str
    cache_control: CacheControlField = None


class GivenToolUse(Body, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: JsonObject
    cache_control: CacheControlField = None


class GivenToolResult(Body, kw_only=True, tag_field="type", tag="tool_result"):
    """What came of a call."""

    tool_use_id: str
    content: str | Texts | None = None
    is_error: Annotated[
        bool | None, meaning(f'The tool failed: the model reads "{blocks.FAILURE}" in front of the content.')
    ] = False
    cache_control: CacheControlField = None


class SystemTurn(Body, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: str | Texts


class UserTurn(Body, kw_only=True, tag_field="role", tag="user"):
    """What the user says, and what came of calls."""

    content: str | Annotated[list[GivenText | GivenToolResult], Meta(min_length=1)]


class AssistantTurn(Body, kw_only=True, tag_field="role", tag="assistant"):
    """An earlier answer."""

    content: str | Annotated[list[GivenText | GivenThinking | GivenToolUse], Meta(min_length=1)]


Turns = Annotated[
    list[SystemTurn | UserTurn | AssistantTurn],
    Meta(
        min_length=1,
        description="The conversation, written as the model's chat template says. The last message is not one of the "
        "assistant: an answer is begun, and can't be continued.",
    ),
]


class CustomTool(Body, kw_only=True):
    """A function that the caller runs when the model asks for it."""

    type: Literal["custom"] | None = "custom"
    name: Annotated[ToolName, meaning("No other tool of the request has it.")]
    description: str | None = None
    input_schema: Annotated[JsonObject, meaning("The JSON schema of the arguments, which are an object.")]
    strict: Annotated[
        bool | None, meaning("The arguments always follow the schema, which must be one that can be enforced.")
    ] = False
    cache_control: CacheControlField = None


class FreeChoice(Body, kw_only=True):
    """How tools are called, if they are."""

    disable_parallel_tool_use: Annotated[bool | None, meaning("A choice has one call at most.")] = False


class AutoChoice(FreeChoice, kw_only=True, tag_field="type", tag="auto"):
    """A choice may call tools."""


class AnyChoice(FreeChoice, kw_only=True, tag_field="type", tag="any"):
    """A choice must call tools, which is enforced."""


class NamedChoice(FreeChoice, kw_only=True, tag_field="type", tag="tool"):
    """A choice must call this tool, which is enforced."""

    name: ToolName


class NoChoice(Body, kw_only=True, tag_field="type", tag="none"):
    """A choice must not call tools."""


class ThinkingOn(Body, kw_only=True, tag_field="type", tag="enabled"):
    """Think before the answer."""

    budget_tokens: Annotated[Count, meaning("There is no limit on thoughts alone: max_tokens is for all of an answer.")]


class ThinkingAdaptive(Body, kw_only=True, tag_field="type", tag="adaptive"):
    """Think as the model does by default."""


class ThinkingOff(Body, kw_only=True, tag_field="type", tag="disabled"):
    """Answer at once."""


class OutputSchema(Body, kw_only=True):
    """JSON that is valid by a schema."""

    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(Body, kw_only=True):
    """The form of an answer."""

    format: OutputSchema | None = None
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        meaning("How much to think, for a model whose template knows it."),
    ] = None


class MessageMetadata(Body, kw_only=True):
    """Accepted, and of no effect."""

    user_id: str | None = None


System = Annotated[str | Texts | None, meaning("A message of the system before all others.")]
Thinking = Annotated[
    ThinkingOn | ThinkingAdaptive | ThinkingOff | None, meaning("For a model whose template knows it.")
]
Tools = Annotated[Annotated[list[CustomTool], Meta(max_length=MAX_TOOLS)] | None, meaning("What the model may call.")]
ToolChoiceField = Annotated[
    AutoChoice | AnyChoice | NamedChoice | NoChoice | None,
    meaning("Whether a choice may call tools, must not, or must. Only with tools may it be more than auto or none."),
]
OutputConfigField = Annotated[OutputConfig | None, meaning("The form of an answer.")]


class CountRequest(Body, kw_only=True):
    """A request to /v1/messages/count_tokens."""

    model: Annotated[str, meaning("The id of the served model, as /v1/models tells it.")]
    messages: Turns
    system: System = None
    tools: Tools = None
    tool_choice: ToolChoiceField = None
    thinking: Thinking = None
    output_config: OutputConfigField = None
    cache_control: CacheControlField = None


class MessagesRequest(DrawingRequest, kw_only=True):
    """A request to /v1/messages."""

    messages: Turns
    max_tokens: Annotated[Count, meaning("Tokens of a choice; they must fit.")]
    system: System = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=decode.MAX_TEMPERATURE)] | None,
        meaning(
            "Exactly 0 is greedy: always the most likely token. By default that of the model's generation_config.json, "
            "if it asks for sampling, or else 1."
        ),
    ] = None
    top_k: Annotated[TopK | None, meaning("Keep this many most likely tokens; -1 and 0 keep all.")] = -1
    top_p: Annotated[
        Share | None, meaning("Keep the smallest set of most likely tokens whose probability reaches this.")
    ] = 1.0
    stop_sequences: Annotated[
        StopString | StopStrings | None,
        meaning("Texts that end a choice; none of them is in its text. One may be given without an array (+)."),
    ] = None
    tools: Tools = None
    tool_choice: ToolChoiceField = None
    thinking: Thinking = None
    output_config: OutputConfigField = None
    cache_control: CacheControlField = None
    metadata: Annotated[MessageMetadata | None, meaning("Accepted, and of no effect.")] = None


UNSERVED: Final[tuple[tuple[str, Neutral, Labels], ...]] = (
    (
        "MessagesRequest",
        {**decode.NEUTRAL, **decode.COUNT_NEUTRAL},
        decode.COUNT_LABELS,
    ),
    ("CountRequest", decode.COUNT_NEUTRAL, decode.COUNT_LABELS),
    ("CustomTool", tools.TOOL_NEUTRAL, tools.TOOL_LABELS),
    ("GivenText", blocks.TEXT_NEUTRAL, blocks.BLOCK_LABELS),
    ("GivenThinking", {}, {**blocks.THINKING_LABELS, **blocks.BLOCK_LABELS}),
    ("GivenToolUse", blocks.TOOL_USE_NEUTRAL, blocks.BLOCK_LABELS),
    ("GivenToolResult", blocks.TOOL_RESULT_NEUTRAL, blocks.BLOCK_LABELS),
    ("ThinkingOn", decode.THINKING_NEUTRAL, {}),
    ("ThinkingAdaptive", decode.THINKING_NEUTRAL, {}),
)
"""Fields of the schemas above that are known but not served, and those that ask for nothing."""
