"""The events of a request as the events of a streamed response (FAN-18, FAN-19, FAN-20).

Owns: their order, their numbers and their form. Must not know: when they are written.

The items of a stream are numbered as they begin, so that those of different choices take turns; an item that has not
begun has no number, as nobody knows yet what a choice is going to say.
"""

from __future__ import annotations

from typing import Final

from trioserve.errors import TrioserveError
from trioserve.events import ChoiceFinished, Event, PromptScored
from trioserve.wire.chunks import PING
from trioserve.wire.line import named_event
from trioserve.wire.responses.shapes import Shapes
from trioserve.wire.segments import Begun, Ended, Grown, Segment, Segments, Step
from trioserve.wire.tally import Head, Tally

_NAMES: Final = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "tool_call": "response.function_call_arguments",
}


class ResponseStreamBuilder:
    """Makes the bytes of one stream: ``start``, ``feed`` for every event, ``end``, each returning frames to write.

    A stream that fails half way gets ``fail`` in place of the rest.
    """

    def __init__(self, head: Head, shapes: Shapes) -> None:
        self._shapes: Final = shapes
        self._tally: Final = Tally(head)
        self._segments: Final = Segments(head.choices)
        self._sent = 0

    def __repr__(self) -> str:
        return f"<ResponseStreamBuilder: {self._sent} events sent, {self._tally!r}>"

    def start(self) -> bytes:
        """The events before any item."""
        response = self._shapes.opening()
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def feed(self, event: Event) -> bytes:
        """The events of one event of the engine; b"" if it says nothing yet."""
        if isinstance(event, PromptScored):
            return b""
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        return b"".join(self._tell(step) for step in self._segments.feed(event))

    def end(self) -> bytes:
        """The whole response, after all choices have finished."""
        response = self._shapes.closing(self._tally, self._segments.in_order_of_beginning())
        # there is no event of its own for a response that was cancelled
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return self._event(kind, response=response)

    def fail(self, error: TrioserveError) -> bytes:
        """What takes the place of the rest when the request fails after its headers (FAN-28)."""
        return self._event(
            "response.failed", response=self._shapes.failed(error, self._segments.in_order_of_beginning())
        )

    def ping(self) -> bytes:
        """What fills a long silence."""
        return PING

    def _tell(self, step: Step) -> bytes:
        if isinstance(step, Begun):
            return self._begin(step.segment)
        if isinstance(step, Ended):
            return self._finish(step.segment)
        return self._grow(step)

    def _begin(self, segment: Segment) -> bytes:
        item = self._shapes.item(segment, empty=True)
        added = self._event("response.output_item.added", output_index=segment.position, item=item)
        if segment.kind == "tool_call":
            return added
        part = self._shapes.part(segment, empty=True)
        return added + self._item_event("response.content_part.added", segment, part=part)

    def _grow(self, step: Grown) -> bytes:
        logprobs = {"logprobs": self._shapes.logprobs(step.logprobs)} if step.segment.kind == "text" else {}
        return self._item_event(f"{_NAMES[step.segment.kind]}.delta", step.segment, delta=step.text, **logprobs)

    def _finish(self, segment: Segment) -> bytes:
        whole = f"{_NAMES[segment.kind]}.done"
        if segment.kind == "tool_call":
            done = self._item_event(whole, segment, arguments=segment.text, name=segment.name)
        else:
            part = self._shapes.part(segment)
            said = {name: value for name, value in part.items() if name in ("text", "logprobs")}
            done = self._item_event(whole, segment, **said)
            done += self._item_event("response.content_part.done", segment, part=part)
        item = self._shapes.item(segment)
        return done + self._event("response.output_item.done", output_index=segment.position, item=item)

    def _item_event(self, kind: str, segment: Segment, **fields: object) -> bytes:
        place: dict[str, object] = {"item_id": self._shapes.item_id(segment), "output_index": segment.position}
        if segment.kind != "tool_call":
            place["content_index"] = 0
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return named_event({"type": kind, "sequence_number": number, **fields})
