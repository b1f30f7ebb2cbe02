"""The events of a streamed message, as the document shows them.

Owns: type and meaning of every field of an event. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from trioserve.wire.openapi.marks import meaning
from trioserve.wire.openapi.message_answers import (
    BegunMessage,
    Block,
    Endings,
    MessagesError,
    MessageUsage,
    StopReason,
    StopSequence,
)

Number = Annotated[int, meaning("Counts the blocks of the stream from 0, as they begin, those of all choices.")]


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
