"""The end of a step: what was computed and drawn goes to the sequences, and from there to the choices.

Owns: Delivery, and applying a result. Must not know: how the step was chosen.
"""

from __future__ import annotations

from array import array

import attrs

from trioserve.events import FinishReason
from trioserve.sched.flight import Draft, Flight
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
    accepted: int = 0
    """Draft tokens that were right, which is why there is more than one token."""
    rejected: int = 0
    """Draft tokens that were wrong, or came after the end. They are in no other count."""


def commit(roster: Roster, flight: Flight, result: StepResult) -> list[Delivery]:
    """Apply the result of a step. The deliveries are in row order; after them those that say "admitted" alone.

    Choices that were aborted while the step was in flight are told nothing.
    """
    _land(roster, flight)
    news = _admissions(flight)
    deliveries: list[Delivery] = []
    end = 0
    for choice, draft in flight.draws:
        row, end = end, end + 1 + len(draft)
        # by identity: the uid may be another choice's by now
        if not choice.ended:
            kept, finish = _draw(roster, choice, result.token_ids[row:end], draft)
            token_ids = tuple(result.token_ids[row : row + kept])
            stop_id = token_ids[-1] if finish == "stop" else None
            admitted = news.pop(choice, None)
            rejected = len(draft) + 1 - kept
            deliveries.append(Delivery(choice.spec.uid, admitted, token_ids, finish, stop_id, kept - 1, rejected))
    deliveries += [Delivery(choice.spec.uid, admitted) for choice, admitted in news.items()]
    return deliveries


def _land(roster: Roster, flight: Flight) -> None:
    """What the step computed is in the pages now, and the sequences that ended meanwhile can go."""
    totals = roster.totals
    totals.steps += 1
    for sequence, count in flight.spans:
        sequence.in_flight = False
        totals.drafts += sequence.drafted > 0
        totals.draft_tokens += sequence.drafted
        sequence.drafted = 0
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


def _draw(roster: Roster, choice: Choice, drawn: array[int], draft: Draft) -> tuple[int, FinishReason | None]:
    """Give a choice what was drawn after its last token, and after each token of its draft.

    A token counts if all before it are those of the choice: the first one always, and the next as long as the draft
    was what was drawn. Returns how many count, and the reason if the last of them ends it.
    """
    sequence = choice.sequence
    for place, token_id in enumerate(drawn):
        roster.totals.tokens_generated += 1
        finish = _finish(choice, token_id)
        if finish is not None:
            roster.end(choice)
            return place + 1, finish
        if sequence.is_prompt:
            roster.branch(choice, token_id)
            break
        sequence.generated.append(token_id)
        if place == len(draft) or token_id != draft[place]:
            break
        # its keys and values are in the pages, as the step has computed them for the draft
        sequence.computed += 1
        sequence.reach()
        roster.totals.draft_tokens_accepted += 1
    if draft:
        roster.memory.trim(sequence)
    return place + 1, None


def _finish(choice: Choice, token_id: int) -> FinishReason | None:
    """Why a token ends its choice, if it does."""
    if token_id in choice.spec.stop_ids:
        return "stop"
    return "length" if choice.sequence.length + 1 >= choice.end else None
