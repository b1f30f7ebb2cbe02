"""The events of a streamed response, as the document shows them.

Owns: type and meaning of every field of an event. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from trioserve.wire.openapi.details import ChatToken
from trioserve.wire.openapi.marks import meaning
from trioserve.wire.openapi.response_answers import OutputItem, OutputText, ReasoningText, Response

Number = Annotated[int, meaning("Counts the events of the stream from 0.")]
Position = Annotated[int, meaning("Counts the items of the stream from 0, as they begin, those of all choices.")]


class Event(Struct, kw_only=True, tag_field="type"):
    """What every event of a stream has."""

    sequence_number: Number


class ResponseEvent(Event, kw_only=True):
    """What events of the response as a whole have."""

    response: Response


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The first event."""


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The second event."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The last event, of a response with that status."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The last event, of a response that is incomplete or was cancelled."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The last event, in place of the rest, of a response that failed half way."""


class ItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """An item begins, with nothing in it."""

    output_index: Position
    item: OutputItem


class ItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: Position
    item: OutputItem


class ItemEvent(Event, kw_only=True):
    """What events inside an item have."""

    item_id: str
    output_index: Position


class ContentEvent(ItemEvent, kw_only=True):
    """What events inside the content of an item have."""

    content_index: Literal[0]


class PartAdded(ContentEvent, kw_only=True, tag="response.content_part.added"):
    """The content of a message or of a thought begins, with nothing in it."""

    part: OutputText | ReasoningText


class PartDone(ContentEvent, kw_only=True, tag="response.content_part.done"):
    """The content of a message or of a thought is whole."""

    part: OutputText | ReasoningText


class TextDelta(ContentEvent, kw_only=True, tag="response.output_text.delta"):
    """More of a text."""

    delta: str
    logprobs: list[ChatToken]


class TextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """A text is whole."""

    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """A thought is whole."""

    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of the arguments of a call."""

    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a call are whole."""

    arguments: str
    name: str


EVENTS: Final = (
    *(ResponseCreated, ResponseInProgress, ResponseCompleted, ResponseIncomplete, ResponseFailed),
    *(ItemAdded, ItemDone, PartAdded, PartDone),
    *(TextDelta, TextDone, ReasoningDelta, ReasoningDone, ArgumentsDelta, ArgumentsDone),
)
STREAM: Final = (
    'With "stream": the data of each event, which has the name of its type. The items of different choices take turns. '
    "What goes wrong half way is response.failed in place of the rest. A long silence is filled with comment lines. A "
    "client that reads nothing for the --slow-reader-timeout is cut off."
)
