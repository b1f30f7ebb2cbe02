"""A message, its blocks and its errors, as the document shows them.

Owns: type and meaning of every field that is written. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.response_answers import ChoiceEnding
from trioserve.wire.openapi.sampling import JsonObject

BlockChoice = Annotated[int, extension("The index of the choice that the block belongs to.", 17)]
Endings = Annotated[list[ChoiceEnding], extension("How each choice ended, in index order.", 17)]
StopReason = Annotated[
    Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None,
    meaning("That of choice 0; null until it has ended, and if it was cancelled or has failed."),
]
StopSequence = Annotated[str | None, meaning("The one of stop_sequences that ended choice 0.")]


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
