"""A choice task: turns the tokens of one choice into its events.

Owns: the detokeniser, the stop matcher and the token count of one choice (FAN-9).
Must not know: its siblings, scheduling.
"""

from __future__ import annotations

import logging
from array import array

import attrs
import trio

from trioserve.abc import Part
from trioserve.engine.deltas import deltas
from trioserve.engine.ranking import Ranking
from trioserve.engine.ticket import Ticket
from trioserve.engine.verdict import Verdict
from trioserve.engine.watch import ChoiceWatch
from trioserve.errors import ChoiceFailedError, TrioserveError
from trioserve.events import (
    ChoiceFinished,
    ChoiceUsage,
    Event,
    FinishReason,
    PromptScored,
    TextDelta,
    TokenLogprob,
)
from trioserve.params import SamplingParams
from trioserve.sched.commit import Drafted
from trioserve.sched.outbox import Progress
from trioserve.text.output import ChoiceOutput
from trioserve.text.pipeline import ChoiceText, Piece

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class PromptUsage:
    """One prompt of a request, and what it cost."""

    index: int
    """Counts the prompts of the request from 0."""
    token_ids: array[int] = attrs.field(repr=False)
    """"i" not to be changed."""
    cached_tokens: int = 0
    """How many of them were found in the prefix cache. Fixed when the prompt is first scheduled; 0 before."""
    is_scored: bool = attrs.field(default=False, init=False)
    """Its log-probabilities have been told."""

    vector: array[float] | None = attrs.field(default=None, init=False, repr=False)
    """"f" if one was asked for, once it is computed."""

    @property
    def prompt_tokens(self) -> int:
        """Its length."""
        return len(self.token_ids)


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
    params: SamplingParams
    """Those of the request."""
    text: ChoiceText | ChoiceOutput
    """The latter if thoughts and calls are told from text."""
    prompt: PromptUsage
    verdict: Verdict
    watch: ChoiceWatch
    ranking: Ranking | None
    """What its events go through if it is a candidate of best_of."""
    completion_tokens: int = attrs.field(default=0, init=False)
    """Generated and kept so far; each copy has as many."""
    drafted: Drafted = attrs.field(default=Drafted(0, 0), init=False)
    """Draft tokens that are among those, and that are not."""
    finished: bool = attrs.field(default=False, init=False)
    """Its last event was made."""
    _texts: list[str] = attrs.field(factory=list, init=False)
    _logprob_sum: float = attrs.field(default=0.0, init=False)
    """Of the completion tokens, if their log-probabilities are known."""

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Send the events, the last one a ChoiceFinished; leave the ticket closed however it ends.

        Raises:
            ChoiceFailedError: it failed in the engine, or its tokens could not be turned into events.
            TrioserveError: the same, if there is an error of ours for it: the engine may refuse it, late.
            EngineClosedError: the engine ended first.
        """
        try:
            while not self.finished:
                news = self._next_events(await self.ticket.receive())
                for event in news if self.ranking is None else self.ranking.feed(news):
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
        # here, where no choice of any request gets lost: a caller may never look at the error, or at any but one
        logger.error("request %s: choice %d failed", self.request_id, self.places[0].index, exc_info=error)
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
        if progress.vector is not None:
            self.prompt.vector = progress.vector
        if progress.drafted is not None:
            self.drafted += progress.drafted
        scored = [] if progress.prompt_logprobs is None else self._prompt_scored(progress.prompt_logprobs)
        # the token that ends a sequence is counted, and has no text as a rule
        has_silent_end = progress.stop_id is not None and not self.params.include_stop
        count = len(progress.token_ids) - has_silent_end
        wanted = progress.logprobs if self.params.logprobs is not None else ()
        piece = self.text.feed(progress.token_ids[:count], wanted[:count])
        if piece.stop is not None:
            # what a draft had right after the end of the text is of no use to anybody
            lost = min(self.drafted.accepted, len(progress.token_ids) - len(piece.token_ids))
            self.drafted += Drafted(-lost, lost)
            self._add_up(progress.logprobs[: len(piece.token_ids)])
            return scored + self._last(piece, "stop", piece.stop)
        if progress.logprobs:
            self._add_up(progress.logprobs)
        if has_silent_end:
            piece = attrs.evolve(piece, token_ids=progress.token_ids)
        if progress.finish is None or progress.error is not None:
            return scored + self._delta(piece)
        tail = self.text.end()
        piece = attrs.evolve(
            piece, text=piece.text + tail.text, logprobs=piece.logprobs + tail.logprobs + wanted[count:]
        )
        # Where a cancel cuts a character in two, there is a U+FFFD that the model has not written: it may be a stop
        # string, and so no part of the text, but it is not what ended the choice.
        if tail.stop is not None and progress.finish != "cancelled":
            return scored + self._last(piece, "stop", tail.stop)
        return scored + self._last(piece, progress.finish, progress.stop_id)

    def _prompt_scored(self, logprobs: tuple[TokenLogprob | None, ...]) -> list[Event]:
        """The log-probabilities of the prompt, which every choice has with its first token: the first to come tells."""
        if self.prompt.is_scored:
            return []
        self.prompt.is_scored = True
        return [PromptScored(self.prompt.index, tuple(self.prompt.token_ids), logprobs)]

    def _add_up(self, scores: tuple[TokenLogprob, ...]) -> None:
        # Not by sum(), which rounds less from Python 3.12 on: the result must not depend on which tokens came together.
        for score in scores:
            self._logprob_sum += score.logprob

    def _delta(self, piece: Piece) -> list[Event]:
        text, ids = piece.text, piece.token_ids
        self.completion_tokens += len(ids)
        if isinstance(self.text, ChoiceOutput):
            return self._parsed(piece, self.text.take())
        if not text and not ids and not piece.logprobs:
            return []
        if self.verdict.reads_text:
            self._texts.append(text)
        return [TextDelta(place.index, text, ids, piece.logprobs) for place in self.places]

    def _parsed(self, piece: Piece, parts_of_each: list[list[Part]]) -> list[Event]:
        """The events of the choice and of its copies."""
        if self.verdict.reads_text:
            self._texts += (part.text for part in parts_of_each[0] if part.kind == "text")
        return [
            event
            for place, parts in zip(self.places, parts_of_each, strict=True)
            for event in deltas(place.index, parts, piece)
        ]

    def _last(self, piece: Piece, reason: FinishReason, stop: str | int | None) -> list[Event]:
        events = self._delta(piece)
        if reason == "stop" and isinstance(self.text, ChoiceOutput) and self.text.has_calls:
            reason = "tool_calls"
        events += self._finish(reason, stop, None)
        if reason in ("stop", "length", "tool_calls"):
            self.verdict.finished("".join(self._texts), copies=len(self.places))
        return events

    def _finish(self, reason: FinishReason, stop: str | int | None, error: str | None) -> list[Event]:
        self.finished = True
        self.watch.finished(reason, self.completion_tokens)
        is_scored = self.ranking is not None and self.completion_tokens > 0
        mean_logprob = self._logprob_sum / self.completion_tokens if is_scored else None
        return [
            ChoiceFinished(
                place.index,
                reason,
                ChoiceUsage(
                    completion_tokens=self.completion_tokens,
                    cached_tokens=0 if place.shared_tokens else self.prompt.cached_tokens,
                    shared_tokens=place.shared_tokens,
                    reasoning_tokens=self.text.reasoning_tokens if isinstance(self.text, ChoiceOutput) else 0,
                    accepted_prediction_tokens=self.drafted.accepted,
                    rejected_prediction_tokens=self.drafted.rejected,
                ),
                place.seed,
                stop,
                error,
                mean_logprob,
            )
            for place in self.places
        ]
