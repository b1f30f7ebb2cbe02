"""The events of a request, gathered for an answer that is a list of things said.

Owns: what has been said, and what is known of the choices, until all have finished. Must not know: how it is written.
"""

from __future__ import annotations

from typing import Final

from trioserve.events import ChoiceFinished, Event, PromptScored
from trioserve.wire.segments import Segments
from trioserve.wire.tally import Head, Tally


class Gathering:
    """The base of what makes a whole answer: ``feed`` for every event."""

    def __init__(self, head: Head) -> None:
        self.tally: Final = Tally(head)
        self.segments: Final = Segments(head.choices)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.tally!r}>"

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, PromptScored):
            return
        if isinstance(event, ChoiceFinished):
            self.tally.finish(event)
        self.segments.feed(event)
