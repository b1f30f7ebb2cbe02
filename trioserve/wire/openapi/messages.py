"""/v1/messages, as the document shows it.

Owns: type and meaning of every field of its requests, answers and errors. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from trioserve.tools import MAX_TOOLS
from trioserve.wire.anthropic import blocks, decode, tools
from trioserve.wire.neutral import Labels, Neutral
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.requests import DrawingRequest
from trioserve.wire.openapi.responses import ChoiceEnding
from trioserve.wire.openapi.sampling import Count, JsonObject, Share, StopString, StopStrings, TopK
from trioserve.wire.openapi.tools import ToolName

# ---- what is read


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


# ---- what is written

BlockChoice = Annotated[int, extension("The index of the choice that the block belongs to.", 17)]
Endings = Annotated[list[ChoiceEnding], extension("How each choice ended, in index order.", 17)]
StopReason = Annotated[
    Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None,
    meaning("That of choice 0; null until it has ended, and if it was cancelled or has failed."),
]
StopSequence = Annotated[str | None, meaning("The one of stop_sequences that ended choice 0.")]
Number = Annotated[int, meaning("Counts the blocks of the stream from 0, as they begin, those of all choices.")]


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text"):
    """A text for the user."""

    text: str
    citations: None
    choice: BlockChoice


class ThinkingBlock(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What a choice thinks before it goes on."""

    thinking: str
    signature: Annotated[Literal[""], meaning("Nothing is signed.")]
    choice: BlockChoice


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: Annotated[
        JsonObject,
        meaning('What the model wrote, if that is a JSON object; else an object with it, as a text, in "arguments".'),
    ]
    choice: BlockChoice


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(Struct, kw_only=True):
    """The tokens of the choices, further divided."""

    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """The tokens of a message: the prompt counted once, whatever n is."""

    input_tokens: Annotated[int, meaning("Without those found in the cache, once it is known how many these are.")]
    cache_read_input_tokens: int
    cache_creation_input_tokens: Annotated[int, meaning("0: what is kept in the cache costs nothing.")]
    output_tokens: int
    output_tokens_details: ThinkingTokens


class BegunMessage(Struct, kw_only=True):
    """The message before its first block."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[
        list[Block],
        meaning("What the choices say: a block at least for each. Those of one choice stand together, in index order."),
    ]
    stop_reason: StopReason
    stop_sequence: StopSequence
    usage: MessageUsage


class AssistantAnswer(BegunMessage, kw_only=True):
    """The answer to /v1/messages that is not streamed."""

    choices: Endings


class TokenCount(Struct, kw_only=True):
    """The answer to /v1/messages/count_tokens."""

    input_tokens: int


class MessagesErrorFields(Struct, kw_only=True):
    """What went wrong."""

    type: Annotated[str, meaning("The kind of error.")]
    message: str
    param: Annotated[str | None, extension("The field of the request at fault, such as messages.0.content.")]
    code: Annotated[str | None, extension("A word for programs.")]


class MessagesError(Struct, kw_only=True, tag_field="type", tag="error"):
    """The body of every error of these paths, and the event in place of the rest of a stream that failed."""

    error: MessagesErrorFields


class MessageStart(Struct, kw_only=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: BegunMessage


class BlockStart(Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """A block begins, with nothing in it."""

    index: Number
    content_block: Block


class TextPiece(Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingPiece(Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class InputPiece(Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of the arguments of a call, as the model writes them."""

    partial_json: str


class BlockDelta(Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: Number
    delta: TextPiece | ThinkingPiece | InputPiece


class BlockStop(Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: Number


class StopFields(Struct, kw_only=True):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: StopSequence


class MessageDelta(Struct, kw_only=True, tag_field="type", tag="message_delta"):
    """Why the message ended and what it cost: once, after all blocks."""

    delta: StopFields
    usage: MessageUsage
    choices: Endings


class MessageStop(Struct, kw_only=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Struct, kw_only=True, tag_field="type", tag="ping"):
    """A sign of life."""


EVENTS: Final = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, Ping, MessagesError)
STREAM: Final = (
    'With "stream": the data of each event, which has the name of its type. The blocks of different choices take '
    "turns. What goes wrong half way is an error in place of the rest. A long silence is filled with pings. A client "
    "that reads nothing for the --slow-reader-timeout is cut off."
)
