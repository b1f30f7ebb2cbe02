"""The events of a request as the events of a streamed message (FAN-18, FAN-19, FAN-20).

Owns: their order and their form. Must not know: when they are written.

The blocks of a stream are numbered as they begin, so that those of different choices take turns.
"""

from __future__ import annotations

from typing import Final

from trioserve.errors import TrioserveError
from trioserve.events import ChoiceFinished, Event, PromptScored
from trioserve.wire.anthropic import shapes
from trioserve.wire.anthropic.errors import error_event
from trioserve.wire.line import named_event
from trioserve.wire.segments import Begun, Ended, Segments, Step
from trioserve.wire.tally import Head, Tally

PING: Final = named_event({"type": "ping"})
_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}


class MessageStreamBuilder:
    """Makes the bytes of one stream: ``start``, ``feed`` for every event, ``end``, each returning frames to write.

    A stream that fails half way gets ``fail`` in place of the rest.
    """

    def __init__(self, head: Head) -> None:
        self._head: Final = head
        self._tally: Final = Tally(head)
        self._segments: Final = Segments(head.choices)

    def __repr__(self) -> str:
        return f"<MessageStreamBuilder: {self._tally!r}>"

    def start(self) -> bytes:
        """The message before any block, and a sign of life."""
        return named_event({"type": "message_start", "message": shapes.opening(self._head)}) + PING

    def feed(self, event: Event) -> bytes:
        """The events of one event of the engine; b"" if it says nothing yet."""
        if isinstance(event, PromptScored):
            return b""
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        return b"".join(_tell(step) for step in self._segments.feed(event))

    def end(self) -> bytes:
        """Why the message ended and what it cost, after all choices have finished."""
        delta: dict[str, object] = {
            "type": "message_delta",
            "delta": shapes.stop(self._tally),
            "usage": shapes.usage(self._tally),
            "choices": shapes.choices(self._head, self._tally),
        }
        return named_event(delta) + named_event({"type": "message_stop"})

    def fail(self, error: TrioserveError) -> bytes:
        """What takes the place of the rest when the request fails after its headers (FAN-28)."""
        return error_event(error)

    def ping(self) -> bytes:
        """What fills a long silence."""
        return PING


def _tell(step: Step) -> bytes:
    segment = step.segment
    if isinstance(step, Begun):
        block = shapes.block(segment, empty=True)
        return named_event({"type": "content_block_start", "index": segment.position, "content_block": block})
    if isinstance(step, Ended):
        return named_event({"type": "content_block_stop", "index": segment.position})
    if not step.text:
        # log-probabilities alone, for which there is no place
        return b""
    kind, name = _DELTAS[segment.kind]
    return named_event(
        {"type": "content_block_delta", "index": segment.position, "delta": {"type": kind, name: step.text}}
    )
