"""A choice task: turns the tokens of one choice into its events.

Owns: the detokeniser, the stop matcher and the token count of one choice (FAN-9).
Must not know: its siblings, scheduling.
"""

from __future__ import annotations

import attrs
import trio

from trioserve.engine.ticket import Ticket
from trioserve.engine.verdict import Verdict
from trioserve.engine.watch import ChoiceWatch
from trioserve.errors import ChoiceFailedError, TrioserveError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, FinishReason, TextDelta
from trioserve.sched.outbox import Progress
from trioserve.text.pipeline import ChoiceText


@attrs.define(eq=False)
class PromptUsage:
    """What one prompt of a request cost: its length, and how much of it was found in the prefix cache."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Fixed when the prompt is first scheduled; 0 before."""


@attrs.frozen
class Place:
    """Where a choice stands in its request."""

    index: int
    """prompt_index * n + j"""
    seed: int
    """int64"""
    shared_tokens: int
    """Prompt tokens that come from choice 0 of the same prompt; 0 for choice 0 itself."""


@attrs.define(eq=False)
class Choice:
    """One choice of a request, while it runs; or several that are copies of one another, decoded once (FAN-6)."""

    request_id: str
    places: tuple[Place, ...]
    """Of the choice, and of its copies."""
    ticket: Ticket
    text: ChoiceText
    prompt: PromptUsage
    verdict: Verdict
    watch: ChoiceWatch
    completion_tokens: int = attrs.field(default=0, init=False)
    """Generated and kept so far; each copy has as many."""
    finished: bool = attrs.field(default=False, init=False)
    """Its last event was made."""
    _texts: list[str] = attrs.field(factory=list, init=False)

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Send the events, the last one a ChoiceFinished; leave the ticket closed however it ends.

        Raises:
            ChoiceFailedError: it failed in the engine, or its tokens could not be turned into events.
            TrioserveError: the same, if there is an error of ours for it: the engine may refuse it, late.
            EngineClosedError: the engine ended first.
        """
        try:
            while not self.finished:
                for event in self._next_events(await self.ticket.receive()):
                    try:
                        # not send(): it would cost a turn of the event loop for each event
                        events.send_nowait(event)
                    except trio.WouldBlock:
                        await events.send(event)
            # Only now: if the last choice to run fails, the end of the channel would reach the consumer before the
            # cancellation does, and pass for the end of the answer.
            events.close()
        except trio.BrokenResourceError:
            return  # the consumer takes no more events
        finally:
            self.ticket.close()

    def _next_events(self, progress: Progress) -> list[Event]:
        try:
            events = self._events(progress)
        except Exception as error:
            return self._failed(error)
        if progress.error is not None and not self.finished:
            events += self._failed(progress.error)
        return events

    def _failed(self, error: Exception) -> list[Event]:
        message = f"Choice {self.places[0].index} failed: {type(error).__name__}: {error}"
        last = self._finish("error", None, message)
        if self.verdict.is_isolated(copies=len(self.places)):
            return last
        if isinstance(error, TrioserveError):
            raise error  # it says best itself what it means to the caller
        raise ChoiceFailedError(message, self.request_id, self.places[0].index) from error

    def _events(self, progress: Progress) -> list[Event]:
        self.watch.received(progress)
        if progress.admitted is not None and self.places[0].shared_tokens == 0:
            self.prompt.cached_tokens = progress.admitted.cached_tokens
        # the token that ends a sequence is counted, and has no text
        ids = progress.token_ids if progress.stop_id is None else progress.token_ids[:-1]
        piece = self.text.feed(ids)
        if piece.stop is not None:
            return self._last(piece.text, piece.token_ids, "stop", piece.stop)
        if progress.finish is None or progress.error is not None:
            return self._delta(piece.text, progress.token_ids)
        tail = self.text.end()
        if tail.stop is not None:
            return self._last(piece.text + tail.text, progress.token_ids, "stop", tail.stop)
        return self._last(piece.text + tail.text, progress.token_ids, progress.finish, progress.stop_id)

    def _delta(self, text: str, ids: tuple[int, ...]) -> list[Event]:
        if not text and not ids:
            return []
        self.completion_tokens += len(ids)
        if self.verdict.reads_text:
            self._texts.append(text)
        return [TextDelta(place.index, text, ids) for place in self.places]

    def _last(self, text: str, ids: tuple[int, ...], reason: FinishReason, stop: str | int | None) -> list[Event]:
        events = self._delta(text, ids) + self._finish(reason, stop, None)
        if reason in ("stop", "length"):
            self.verdict.finished("".join(self._texts), copies=len(self.places))
        return events

    def _finish(self, reason: FinishReason, stop: str | int | None, error: str | None) -> list[Event]:
        self.finished = True
        self.watch.finished(reason, self.completion_tokens)
        return [
            ChoiceFinished(
                place.index,
                reason,
                ChoiceUsage(
                    completion_tokens=self.completion_tokens,
                    cached_tokens=0 if place.shared_tokens else self.prompt.cached_tokens,
                    shared_tokens=place.shared_tokens,
                ),
                place.seed,
                stop,
                error,
            )
            for place in self.places
        ]
