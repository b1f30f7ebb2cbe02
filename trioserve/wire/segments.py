"""The events of a request as the things that its choices say: texts, thoughts and calls of tools.

Owns: where one thing ends and the next begins, and what has been said of each.
Must not know: how any of it is written.

OpenAI's older formats have one message for each choice, with a place for everything in it. The newer dialects have
lists: of items in /v1/responses, of blocks in /v1/messages. A segment is an entry of such a list. Those of one choice
follow one another; those of different choices grow side by side.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from trioserve.events import ChoiceFinished, Delta, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta

SegmentKind = Literal["text", "reasoning", "tool_call"]


@attrs.define(eq=False, kw_only=True)
class Segment:
    """One thing that a choice says."""

    position: int
    """Counts the segments of the whole answer from 0, in the order in which they began."""
    choice: int
    kind: SegmentKind
    call: int = 0
    """Of a call of a tool: counts those of the choice from 0."""
    call_id: str = ""
    """Of a call of a tool."""
    name: str = ""
    """Of a call of a tool: the tool."""
    parts: list[str] = attrs.field(factory=list, repr=False)
    logprobs: list[TokenLogprob] = attrs.field(factory=list, repr=False)
    """Of a text, if they were asked for."""
    state: Literal["growing", "complete", "cut"] = "growing"
    """In the end: whether the choice went on to something else or came to its own end, or was ended from outside."""

    @property
    def text(self) -> str:
        """The text, the thought, or the arguments of the call, as far as they are known."""
        return "".join(self.parts)


@attrs.frozen
class Begun:
    """A segment begins, with nothing in it."""

    segment: Segment


@attrs.frozen
class Grown:
    """There is more of a segment. Of a text with log-probabilities it may be these only."""

    segment: Segment
    text: str
    logprobs: tuple[TokenLogprob, ...]


@attrs.frozen
class Ended:
    """Nothing follows in a segment."""

    segment: Segment


Step = Begun | Grown | Ended


class Segments:
    """All segments of one answer. Each choice has one at least, in the end: an empty text if it says nothing at all."""

    def __init__(self, choices: int) -> None:
        self._all: Final[list[Segment]] = []
        self._open: Final[list[Segment | None]] = [None] * choices
        self._silent: Final = set(range(choices))
        # of tokens without a text, as long as no text has begun that they could be told with
        self._waiting: Final[list[list[TokenLogprob]]] = [[] for _ in range(choices)]

    def __repr__(self) -> str:
        growing = sum(segment is not None for segment in self._open)
        return f"<Segments: {len(self._all)}, {growing} of them growing>"

    def feed(self, event: Delta | ChoiceFinished) -> list[Step]:
        """What an event means, step by step."""
        if isinstance(event, ChoiceFinished):
            return self._finish(event)
        if isinstance(event, ToolCallDelta):
            return self._call(event)
        if isinstance(event, ReasoningDelta):
            return self._grow(event.index, "reasoning", event.text) if event.text else []
        return self._say(event)

    def in_order_of_beginning(self) -> list[Segment]:
        """All segments: the position of each is its index here."""
        return list(self._all)

    def in_order_of_choices(self) -> list[Segment]:
        """All segments: those of one choice together, in index order (FAN-17)."""
        return sorted(self._all, key=lambda segment: (segment.choice, segment.position))

    def _say(self, event: TextDelta) -> list[Step]:
        current = self._open[event.index]
        is_text = current is not None and current.kind == "text"
        if event.text or (is_text and event.logprobs):
            return self._grow(event.index, "text", event.text, event.logprobs)
        self._waiting[event.index] += event.logprobs
        return []

    def _call(self, event: ToolCallDelta) -> list[Step]:
        current = self._open[event.index]
        steps: list[Step] = []
        if current is None or current.kind != "tool_call" or current.call != event.call:
            assert event.id is not None, f"call {event.call} of choice {event.index} begins without its id"
            assert event.name is not None
            steps += self._begin(event.index, "tool_call", event.call, event.id, event.name)
        return steps + (self._grow(event.index, "tool_call", event.arguments) if event.arguments else [])

    def _grow(self, choice: int, kind: SegmentKind, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[Step]:
        steps: list[Step] = []
        current = self._open[choice]
        if current is None or current.kind != kind:
            steps += self._begin(choice, kind)
            current = self._open[choice]
            assert current is not None
        if kind == "text" and self._waiting[choice]:
            logprobs = (*self._waiting[choice], *logprobs)
            self._waiting[choice].clear()
        current.parts.append(text)
        current.logprobs += logprobs
        return [*steps, Grown(current, text, logprobs)]

    def _begin(self, choice: int, kind: SegmentKind, call: int = 0, call_id: str = "", name: str = "") -> list[Step]:
        steps = self._close(choice, "complete")
        segment = Segment(position=len(self._all), choice=choice, kind=kind, call=call, call_id=call_id, name=name)
        self._all.append(segment)
        self._open[choice] = segment
        self._silent.discard(choice)
        return [*steps, Begun(segment)]

    def _finish(self, event: ChoiceFinished) -> list[Step]:
        steps: list[Step] = []
        if event.index in self._silent:
            waiting = tuple(self._waiting[event.index])
            steps += self._grow(event.index, "text", "") if waiting else self._begin(event.index, "text")
        return steps + self._close(event.index, "complete" if event.reason in ("stop", "tool_calls") else "cut")

    def _close(self, choice: int, state: Literal["complete", "cut"]) -> list[Step]:
        segment, self._open[choice] = self._open[choice], None
        if segment is None:
            return []
        segment.state = state
        return [Ended(segment)]
