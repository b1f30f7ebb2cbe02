"""The end of a step: what was computed and drawn goes to the sequences, and from there to the choices.

Owns: Delivery, and applying a result. Must not know: how the step was chosen.
"""

from __future__ import annotations

import attrs

from trioserve.events import FinishReason
from trioserve.sched.flight import Flight
from trioserve.sched.group import Uid
from trioserve.sched.roster import Roster
from trioserve.sched.sequence import Choice
from trioserve.step import StepResult


@attrs.frozen
class Admitted:
    """The prompt of a choice was scheduled for the first time."""

    cached_tokens: int
    """Prompt tokens found in the prefix cache then; a preemption does not change it (FAN-21)."""
    waited_s: float
    """Seconds since it was submitted."""


@attrs.frozen
class Delivery:
    """What one step means for one choice."""

    uid: Uid
    admitted: Admitted | None = None
    """Once for every choice, in its first delivery."""
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    """The choice has ended; nothing more is delivered to it."""
    stop_id: int | None = None
    """The drawn token id that ended it; it is also the last of its token ids."""
    logprobs: tuple[float, ...] = ()
    """Of its token ids, one for one, if the choice asked for them."""


def commit(roster: Roster, flight: Flight, result: StepResult) -> list[Delivery]:
    """Apply the result of a step. The deliveries are in row order; after them those that say "admitted" alone.

    Choices that were aborted while the step was in flight are told nothing.
    """
    _land(roster, flight)
    news = _admissions(flight)
    deliveries: list[Delivery] = []
    for row, (choice, token_id) in enumerate(zip(flight.draws, result.token_ids, strict=True)):
        # by identity: the uid may be another choice's by now
        if not choice.ended:
            finish = _draw(roster, choice, token_id)
            stop_id = token_id if finish == "stop" else None
            admitted = news.pop(choice, None)
            logprobs = (result.logprobs[row],) if choice.spec.logprobs else ()
            deliveries.append(Delivery(choice.spec.uid, admitted, (token_id,), finish, stop_id, logprobs))
    deliveries += [Delivery(choice.spec.uid, admitted) for choice, admitted in news.items()]
    return deliveries


def _land(roster: Roster, flight: Flight) -> None:
    """What the step computed is in the pages now, and the sequences that ended meanwhile can go."""
    totals = roster.totals
    totals.steps += 1
    for sequence, count in flight.spans:
        sequence.in_flight = False
        sequence.computed += count
        new = sequence.reach()
        totals.tokens_recomputed += count - new
        if sequence.is_prompt:
            totals.prompt_tokens_computed += new
        if not sequence.choices:
            roster.discard(sequence)
        elif sequence.is_prompt or count > 1:
            # decodes come to the cache when they end: nobody but a later turn of the conversation continues them
            roster.memory.remember(sequence)
    for prompt in flight.sources:
        prompt.in_flight = False
        if prompt.pages and not prompt.choices:
            roster.discard(prompt)


def _admissions(flight: Flight) -> dict[Choice, Admitted]:
    news: dict[Choice, Admitted] = {}
    for prompt in flight.admitted:
        cached_tokens = prompt.group.cached_tokens
        assert cached_tokens is not None
        admitted = Admitted(cached_tokens, prompt.group.waited_s)
        news |= dict.fromkeys(prompt.choices, admitted)
    return news


def _draw(roster: Roster, choice: Choice, token_id: int) -> FinishReason | None:
    """Give a choice its next token; the reason if that ends it."""
    roster.totals.tokens_generated += 1
    sequence = choice.sequence
    finish: FinishReason | None = None
    if token_id in choice.spec.stop_ids:
        finish = "stop"
    elif sequence.length + 1 >= choice.end:
        finish = "length"
    if finish is not None:
        roster.end(choice)
    elif sequence.is_prompt:
        roster.branch(choice, token_id)
    else:
        sequence.generated.append(token_id)
    return finish
