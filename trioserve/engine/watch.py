"""The stopwatches of a request and of its choices, which measure what observers are told.

Owns: when something began. Must not know: what observers do. They live as long as what they measure.
"""

from __future__ import annotations

import attrs
import trio

from trioserve.engine.observer import AbortCause, ChoiceReport, Observer, RequestReport, RequestUsage
from trioserve.errors import EngineClosedError, TrioserveError
from trioserve.events import FinishReason
from trioserve.params import SamplingParams
from trioserve.sched.outbox import Progress


@attrs.define(eq=False)
class _Course:
    """What the choices of a request note for it."""

    first_token_s: float | None = attrs.field(default=None, init=False)
    reasons: list[FinishReason] = attrs.field(factory=list, init=False)


@attrs.define(eq=False)
class ChoiceWatch:
    """Measures one choice."""

    _observers: tuple[Observer, ...]
    """Each as often as the choice has copies."""
    _copies: int
    _course: _Course
    _began: float
    _prompt_tokens: int
    _max_tokens: int
    _first: float = attrs.field(default=0.0, init=False)
    _last: float = attrs.field(default=0.0, init=False)
    """When the first and the latest token came; only if there are any."""
    _tokens: int = attrs.field(default=0, init=False)

    def received(self, progress: Progress) -> None:
        """The choice has a message. This is called for every token of the server, so it does little."""
        if not self._observers:
            return
        if progress.admitted is not None:
            for observer in self._observers:
                observer.choice_admitted(progress.admitted.waited_s)
        count = len(progress.token_ids)
        if count == 0:
            return
        now = trio.current_time()
        if self._tokens == 0:
            self._first = self._last = now
            self._tokens = 1
            count -= 1
            if self._course.first_token_s is None:
                self._course.first_token_s = now - self._began
            for observer in self._observers:
                observer.first_token(now - self._began)
        if count > 0:
            for observer in self._observers:
                observer.next_tokens(count, now - self._last)
            self._tokens += count
            self._last = now

    def finished(self, reason: FinishReason, completion_tokens: int) -> None:
        """The choice has ended, and was not aborted."""
        if not self._observers:
            return
        self._course.reasons += [reason] * self._copies
        report = ChoiceReport(
            reason=reason,
            prompt_tokens=self._prompt_tokens,
            max_tokens=self._max_tokens,
            completion_tokens=completion_tokens,
            latency_s=trio.current_time() - self._began,
            token_interval_s=(self._last - self._first) / (self._tokens - 1) if self._tokens > 1 else None,
        )
        for observer in self._observers:
            observer.choice_finished(report)


@attrs.frozen(eq=False)
class RequestWatch:
    """Measures one request, from its entering on."""

    _observers: tuple[Observer, ...]
    _request_id: str
    _params: SamplingParams
    _choices: int
    began: float = attrs.field(factory=trio.current_time, init=False)
    _course: _Course = attrs.field(factory=_Course, init=False)

    def choice(self, prompt_tokens: int, max_tokens: int, *, copies: int = 1) -> ChoiceWatch:
        """The watch of one of its choices, or of several that are copies of one another."""
        observers = self._observers * copies
        return ChoiceWatch(observers, copies, self._course, self.began, prompt_tokens, max_tokens)

    def not_entered(self, error: BaseException, leaving: AbortCause) -> None:
        """It ended before it could run: it was refused, or its caller has left already."""
        if isinstance(error, TrioserveError):
            for observer in self._observers:
                observer.request_refused(error)
        else:
            self.ended(RequestUsage(), 0, self._choices, error, leaving)

    def ended(
        self,
        usage: RequestUsage,
        longest_tokens: int,
        aborted_choices: int,
        error: BaseException | None,
        leaving: AbortCause,
    ) -> None:
        """It was left; ``error`` is what the engine or a choice raised, if anything, else ``leaving`` says why."""
        report = RequestReport(
            request_id=self._request_id,
            params=self._params,
            n=self._params.n,
            best_of=self._params.candidates,
            longest_tokens=longest_tokens,
            usage=usage,
            duration_s=trio.current_time() - self.began,
            first_token_s=self._course.first_token_s,
            finish_reasons=tuple(self._course.reasons),
            aborted_choices=aborted_choices,
            abort_cause=_cause(error, leaving) if aborted_choices else None,
            # Cancelled and KeyboardInterrupt are no Exceptions
            error=error if isinstance(error, Exception) else None,
        )
        for observer in self._observers:
            observer.request_ended(report)


def _cause(error: BaseException | None, leaving: AbortCause) -> AbortCause:
    if isinstance(error, EngineClosedError):
        return "closed"
    return "failed" if isinstance(error, Exception) else leaving
