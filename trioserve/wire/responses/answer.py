"""The events of a request as one response (FAN-17).

Owns: what has been said until all choices have finished. Must not know: how events come about.
"""

from __future__ import annotations

from typing import Final

from trioserve.wire.gathering import Gathering
from trioserve.wire.line import json_line
from trioserve.wire.responses.shapes import Shapes
from trioserve.wire.tally import Head


class ResponseBuilder(Gathering):
    """Makes the body of one response: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head, shapes: Shapes) -> None:
        super().__init__(head)
        self._shapes: Final = shapes

    def answer(self) -> bytes:
        """The body, in JSON, the items of one choice together. Only once all choices have finished."""
        return json_line(self._shapes.closing(self.tally, self.segments.in_order_of_choices()))
