"""The end of a step: what was computed and drawn goes to the sequences, and from there to the choices.

Owns: Delivery, and applying a result. Must not know: how the step was chosen.
"""

from __future__ import annotations

from array import array

import attrs

from trioserve.errors import StructureError
from trioserve.events import FinishReason, TokenLogprob
from trioserve.sched.flight import Draft, Flight
from trioserve.sched.group import Uid
from trioserve.sched.roster import Roster
from trioserve.sched.scores import RowScores
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
class Drafted:
    """What came of the drafts of a choice."""

    accepted: int
    """Draft tokens that were right, each of which is one token more for the same step."""
    rejected: int
    """Draft tokens that were wrong, or came after the end. They are in no other count."""

    def __add__(self, more: Drafted) -> Drafted:
        return Drafted(self.accepted + more.accepted, self.rejected + more.rejected)


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
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of its token ids, one for one, if the choice asked for them."""
    drafted: Drafted | None = None
    """If there was a draft."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Of the tokens of its prompt, if the group asked for them: once for every choice, when its prompt is complete."""
    error: Exception | None = None
    """What is wrong with the choice, with the finish "error"."""
    vector: array[float] | None = None
    """"f" that of its prompt, if the group asked for it, when its prompt is complete."""


def commit(roster: Roster, flight: Flight, result: StepResult) -> list[Delivery]:
    """Apply the result of a step. The deliveries are in row order; after them those that say "admitted" alone.

    Choices that were aborted while the step was in flight are told nothing.
    """
    _land(roster, flight)
    news = _admissions(flight)
    scores = flight.scores(result)
    for prompt, first, end in flight.scored:
        prompt.logprobs += map(scores.row, range(first, end))
    for pooled, first, end in flight.pooled:
        pooled.add(result.hidden[first:end])
    deliveries: list[Delivery] = []
    for choice, row in flight.draws:
        # by identity: the uid may be another choice's by now
        if not choice.ended:
            draft = flight.drafts.get(choice) if flight.drafts else None
            deliveries.append(_deliver(roster, choice, row, draft, result, scores, news.pop(choice, None)))
    for choice in flight.complete:
        if not choice.ended:
            prompt_logprobs = _prompt_logprobs(choice)
            roster.end(choice)
            admitted = news.pop(choice, None)
            pool = choice.sequence.group.pool
            deliveries.append(
                Delivery(
                    choice.spec.uid,
                    admitted,
                    finish="length",
                    prompt_logprobs=prompt_logprobs,
                    vector=None if pool is None else pool.vector(),
                )
            )
    deliveries += [Delivery(choice.spec.uid, admitted) for choice, admitted in news.items()]
    return deliveries


def _deliver(
    roster: Roster,
    choice: Choice,
    row: int,
    draft: Draft | None,
    result: StepResult,
    scores: RowScores,
    admitted: Admitted | None,
) -> Delivery:
    """What was drawn for a choice, from ``row`` on."""
    prompt_logprobs = _prompt_logprobs(choice) if choice.sequence.is_prompt else None
    token_ids: tuple[int, ...]
    finish: FinishReason | None
    drafted, error = None, None
    if draft is None:
        token_ids, finish, error = _draw_or_fail(roster, choice, result.token_ids[row])
    else:
        token_ids, finish = _verify(roster, choice, draft, result.token_ids[row : row + 1 + len(draft)])
        drafted = Drafted(len(token_ids) - 1, 1 + len(draft) - len(token_ids))
    return Delivery(
        choice.spec.uid,
        admitted,
        token_ids,
        finish,
        token_ids[-1] if finish == "stop" and token_ids[-1] in choice.spec.stop_ids else None,
        tuple(map(scores.row, range(row, row + len(token_ids)))) if choice.spec.logprobs else (),
        drafted,
        prompt_logprobs,
        error,
    )


def _prompt_logprobs(choice: Choice) -> tuple[TokenLogprob | None, ...] | None:
    """Those of the prompt whose logits a choice draws from, if they are wanted."""
    sequence = choice.sequence
    scores = sequence.group.scores if sequence.is_prompt else None
    return None if scores is None else tuple(scores.logprobs)


def _land(roster: Roster, flight: Flight) -> None:
    """What the step computed is in the pages now, and the sequences that ended meanwhile can go."""
    totals = roster.totals
    totals.steps += 1
    for sequence, count in flight.spans:
        sequence.in_flight = False
        if sequence.drafted:
            totals.drafts += 1
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


def _draw_or_fail(
    roster: Roster, choice: Choice, token_id: int
) -> tuple[tuple[int, ...], FinishReason | None, Exception | None]:
    """Give a choice its next token, unless there is none: then it alone has failed."""
    try:
        if token_id < 0:
            raise StructureError("No token may follow: all are forbidden.")
        return (token_id,), _draw(roster, choice, token_id), None
    except Exception as error:
        roster.end(choice)
        return (), "error", error


def _draw(roster: Roster, choice: Choice, token_id: int) -> FinishReason | None:
    """Give a choice its next token; the reason if that ends it.

    Raises:
        Exception: what the choice must be could not be followed any further. The choice has not ended.
    """
    roster.totals.tokens_generated += 1
    sequence = choice.sequence
    finish: FinishReason | None = None
    # in this order: the matcher knows whether this is where the choice may end
    if (choice.matcher is not None and choice.advance(token_id)) or token_id in choice.spec.stop_ids:
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


def _verify(
    roster: Roster, choice: Choice, draft: Draft, drawn: array[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Give a choice what was drawn after its last token and after each token of its draft, as far as it counts.

    A token counts if all tokens before it are those of the choice: the first one always, and the next as long as what
    was drawn is what was guessed. Returns those, and the reason if the last of them ends the choice.
    """
    sequence = choice.sequence
    kept = 1
    finish = _draw(roster, choice, drawn[0])
    while finish is None and kept <= len(draft) and drawn[kept - 1] == draft[kept - 1]:
        # its keys and values are in the pages: the step has computed them for the draft
        sequence.computed += 1
        roster.totals.draft_tokens_accepted += 1
        finish = _draw(roster, choice, drawn[kept])
        kept += 1
    sequence.reach()
    if finish is None:
        roster.memory.trim(sequence)
    return tuple(drawn[:kept]), finish
