"""The seam for metrics and traces: what an engine tells those who watch it.

Owns: Observer and what it is told. Must not know: what observers make of it, clocks.

An observer is told measurements that are complete, never the beginning of something whose end it would have to wait
for. So it needs no memory of requests, and nothing of a request is left in it (FAN-27).
"""

from __future__ import annotations

from typing import Literal

import attrs

from trioserve.errors import TrioserveError
from trioserve.events import FinishReason
from trioserve.params import SamplingParams

AbortCause = Literal["left", "failed", "shutdown", "closed"]
"""Why choices were aborted: their caller left (FAN-25), another choice of the request failed (FAN-23), a shutdown had
no more time for them, or the engine ended."""


@attrs.frozen(kw_only=True)
class ChoiceReport:
    """A choice that has finished, by itself or because it was told to."""

    reason: FinishReason
    prompt_tokens: int
    max_tokens: int
    """What it was allowed to generate, defaults resolved."""
    completion_tokens: int
    latency_s: float
    """Seconds since its request was entered."""
    token_interval_s: float | None
    """Mean seconds between its tokens; None if there were fewer than two."""


@attrs.frozen(kw_only=True)
class RequestUsage:
    """The tokens of a request, as far as it came."""

    prompt_tokens: int = 0
    """Of all prompts, each counted once."""
    cached_tokens: int = 0
    """Those of them that were found in the prefix cache."""
    completion_tokens: int = 0
    """Of all choices, those of aborted ones too."""


@attrs.frozen(kw_only=True)
class RequestReport:
    """A request that has ended in any way but a refusal."""

    request_id: str
    params: SamplingParams
    """What was asked for, the model's defaults resolved."""
    n: int
    """Choices per prompt."""
    best_of: int
    """Candidates per prompt: n, if not more were asked for. Each of them is told like a choice."""
    longest_tokens: int
    """The most tokens that any of its choices has generated."""
    usage: RequestUsage
    duration_s: float
    """Seconds since it was entered."""
    first_token_s: float | None
    """Seconds from then to the first token of any choice; None if there was none."""
    finish_reasons: tuple[FinishReason, ...]
    """Of the choices that have finished, in the order in which they have."""
    aborted_choices: int
    """Choices that had not finished."""
    abort_cause: AbortCause | None
    """None if there are none of those."""
    error: Exception | None
    """What ended it, unless it came to its end or was left."""


class Observer:
    """Told what happens in an engine, as it happens. Inherit, and override what is of interest.

    The calls come out of the middle of the engine's work: they must return at once, and must not raise. Each copy
    of a choice that is decoded once for several is told like a choice of its own (FAN-6).
    """

    def request_refused(self, error: TrioserveError) -> None:
        """A request was refused when it was entered. ``request_ended`` is not called for it."""

    def choice_admitted(self, waited_s: float) -> None:
        """The prompt of a choice was scheduled for the first time, this many seconds after it was submitted."""

    def first_token(self, seconds: float) -> None:
        """A choice got its first token, this many seconds after its request was entered."""

    def next_tokens(self, count: int, seconds: float) -> None:
        """A choice got ``count`` more tokens at once, this many seconds after those before."""

    def choice_finished(self, report: ChoiceReport) -> None:
        """A choice has finished. Not called for choices that are aborted."""

    def request_ended(self, report: RequestReport) -> None:
        """A request has been left. The last call for it."""
