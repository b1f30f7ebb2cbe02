"""The events of a request as one response (FAN-17).

Owns: what has been said until all choices have finished. Must not know: how events come about.
"""

from __future__ import annotations

from typing import Final

from trioserve.events import ChoiceFinished, Event, PromptScored
from trioserve.wire.line import json_line
from trioserve.wire.responses.shapes import Shapes
from trioserve.wire.segments import Segments
from trioserve.wire.tally import Head, Tally


class ResponseBuilder:
    """Makes the body of one response: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head, shapes: Shapes) -> None:
        self._shapes: Final = shapes
        self._tally: Final = Tally(head)
        self._segments: Final = Segments(head.choices)

    def __repr__(self) -> str:
        return f"<ResponseBuilder: {self._tally!r}>"

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, PromptScored):
            return
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        self._segments.feed(event)

    def answer(self) -> bytes:
        """The body, in JSON, the items of one choice together. Only once all choices have finished."""
        return json_line(self._shapes.closing(self._tally, self._segments.in_order_of_choices()))
