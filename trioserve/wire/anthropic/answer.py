"""The events of a request as one message (FAN-17), and the body of a count.

Owns: what has been said until all choices have finished. Must not know: how events come about.
"""

from __future__ import annotations

from typing import Final

from trioserve.wire.anthropic import shapes
from trioserve.wire.gathering import Gathering
from trioserve.wire.line import json_line
from trioserve.wire.tally import Head


class MessageBuilder(Gathering):
    """Makes the body of one message: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self._head: Final = head

    def answer(self) -> bytes:
        """The body, in JSON, the blocks of one choice together. Only once all choices have finished."""
        return json_line(shapes.whole(self._head, self.tally, self.segments.in_order_of_choices()))


def count_body(input_tokens: int) -> bytes:
    """The body of /v1/messages/count_tokens."""
    return json_line({"input_tokens": input_tokens})
