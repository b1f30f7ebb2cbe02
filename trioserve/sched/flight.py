"""A step in the making, and then in flight.

Owns: the arrays of the plan, and who takes part in it. Must not know: why they were chosen.
"""

from __future__ import annotations

from array import array

import attrs

from trioserve.sched.changes import add_changes
from trioserve.sched.pooling import PromptPool
from trioserve.sched.scores import PromptScores, RowScores
from trioserve.sched.sequence import Choice, LiveGroup, Sequence
from trioserve.step import RowArrays, SpanArrays, StepPlan, StepResult

Draft = tuple[int, ...]
"""Token ids that a sequence may go on with, guessed."""


@attrs.define(eq=False, repr=False)
class Flight:
    """Filled by the planner, turned into a plan by ``build``, and kept until that plan's result is committed."""

    number: int
    page_size: int
    budget: int
    """Tokens that may still be added."""
    scorable: int
    """Those of prompts to be scored among them: each has logits of its own, as one that is drawn from."""
    spans: list[tuple[Sequence, int]] = attrs.field(factory=list)
    """For each span of the plan: its sequence and number of tokens, without drafts."""
    draws: list[tuple[Choice, int]] = attrs.field(factory=list)
    """The choices that draw, and the first row of each: it has one, and one for each drafted token."""
    scored: list[tuple[PromptScores, int, int]] = attrs.field(factory=list)
    """The prompts that are scored, with the first of their rows and the one after the last."""
    pooled: list[tuple[PromptPool, int, int]] = attrs.field(factory=list)
    """The prompts that are pooled, with the first of their hidden states in the result and the one after the last."""
    complete: list[Choice] = attrs.field(factory=list)
    """Those that draw nothing at all, and end with their prompt."""
    drafts: dict[Choice, Draft] = attrs.field(factory=dict)
    """Those of them that have a draft."""
    sources: list[Sequence] = attrs.field(factory=list)
    """Pinned prompts that are forked in this step."""
    admitted: list[Sequence] = attrs.field(factory=list)
    """Prompts that are scheduled for the first time."""
    copies: array[int] = attrs.field(factory=lambda: array("i"))
    _span_arrays: SpanArrays = attrs.field(factory=SpanArrays)
    _rows: RowArrays = attrs.field(factory=RowArrays)
    _hidden: array[int] = attrs.field(factory=lambda: array("i"))

    def __repr__(self) -> str:
        return f"<Flight {self.number}: {len(self.spans)} spans, {len(self._rows.tokens)} rows>"

    def room(self, sequence: Sequence) -> int:
        """How many tokens of a sequence may be added."""
        is_scored = sequence.is_prompt and sequence.group.scores is not None
        return min(self.budget, self.scorable) if is_scored else self.budget

    def add(self, sequence: Sequence, draft: Draft = ()) -> None:
        """Compute the next tokens of a resident, as many as there is room for, and draw if that is all of them.

        With a draft, for a decode only: compute that too, and draw after each of its tokens as well.
        """
        count = min(sequence.behind, self.room(sequence) if sequence.is_prompt else self.budget)
        self.budget -= count
        sequence.in_flight = True
        self.spans.append((sequence, count))
        start, end = sequence.computed, sequence.computed + count
        arrays = self._span_arrays
        last = len(arrays.tokens) + count - 1
        if start + 1 == sequence.length and sequence.generated:
            # a decode, which has all its pages and computes the last token drawn: spared the copies of a chunk
            arrays.tokens.append(sequence.generated[-1])
            arrays.positions.append(start)
            arrays.pages.extend(sequence.pages)
            if draft:
                arrays.tokens.extend(draft)
                arrays.positions.extend(range(end, end + len(draft)))
                self.budget -= len(draft)
                sequence.drafted = len(draft)
        else:
            arrays.tokens.extend(sequence.tokens[start:end])
            arrays.positions.extend(range(start, end))
            arrays.pages.extend(sequence.pages[: -(-end // self.page_size)])
        arrays.starts.append(len(arrays.tokens))
        arrays.page_starts.append(len(arrays.pages))
        if sequence.is_prompt:
            self._add_prompt(sequence.group, start, end, last)
        if end == sequence.length:
            # a prompt draws the first token of each choice from the same logits (FAN-11)
            for choice in sequence.choices:
                self._draw(choice, last, end, draft)

    def hold(self, prompt: Sequence) -> None:
        """A pinned prompt is read by a copy of this step, so its pages must not be given away before it is over."""
        if not prompt.in_flight:
            prompt.in_flight = True
            self.sources.append(prompt)

    def scores(self, result: StepResult) -> RowScores:
        """The log-probabilities that a result has for the rows of this step."""
        return RowScores(self._rows, result)

    def build(self) -> StepPlan:
        """The plan, complete."""
        return StepPlan(self.number, self.copies, self._span_arrays, self._rows, self._shared(), self._hidden)

    def _draw(self, choice: Choice, last: int, position: int, draft: Draft) -> None:
        """Let a choice draw the token at ``position`` from the logits of token ``last``, and after those of a draft."""
        if choice.spec.max_tokens == 0:
            self.complete.append(choice)
            return
        self.draws.append((choice, len(self._rows.tokens)))
        self._add_row(choice, last, position)
        if draft:
            self.drafts[choice] = draft
            for ahead in range(1, 1 + len(draft)):
                self._add_row(choice, last + ahead, position + ahead, draft[:ahead])

    def _add_prompt(self, group: LiveGroup, start: int, end: int, last: int) -> None:
        """Ask for what is wanted of the tokens of a prompt at positions ``start`` to ``end``; ``last`` is the last."""
        if group.scores is not None:
            self.scorable -= end - start
            self._score(group.prompt, group.scores, start, end, last)
        if group.pool is not None:
            self._pool(group.pool, start, end, last)

    def _score(self, prompt: array[int], scores: PromptScores, start: int, end: int, last: int) -> None:
        """Score what follows the tokens at positions ``start`` to ``end``, if it was not yet; ``last`` is the last."""
        rows, first = self._rows, len(self._rows.tokens)
        rows.targets.extend([-1] * (first - len(rows.targets)))
        for position in range(max(start, scores.next_position), min(end, len(prompt) - 1)):
            rows.tokens.append(last - (end - 1 - position))
            rows.seeds.append(0)
            rows.counters.append(position + 1)
            rows.temperatures.append(0.0)
            rows.top_ps.append(1.0)
            rows.top_ks.append(0)
            rows.min_ps.append(0.0)
            rows.logprobs.append(scores.wanted)
            rows.targets.append(prompt[position + 1])
        self.scored.append((scores, first, len(rows.tokens)))

    def _pool(self, pool: PromptPool, start: int, end: int, last: int) -> None:
        """Ask for the hidden states among those of the positions ``start`` to ``end``; ``last`` is the last token."""
        first = len(self._hidden)
        self._hidden.extend(last - (end - 1 - position) for position in pool.wanted(start, end))
        self.pooled.append((pool, first, len(self._hidden)))

    def _add_row(self, choice: Choice, token: int, position: int, draft: Draft = ()) -> None:
        spec, rows = choice.spec, self._rows
        if spec.is_changed or spec.min_tokens:
            add_changes(rows.changes, len(rows.tokens), choice, draft)
        if rows.targets:
            rows.targets.append(-1)
        rows.tokens.append(token)
        rows.seeds.append(spec.seed)
        rows.counters.append(position)
        rows.temperatures.append(spec.temperature)
        rows.top_ps.append(spec.top_p)
        rows.top_ks.append(spec.top_k)
        rows.min_ps.append(spec.min_p)
        rows.logprobs.append(spec.logprobs)

    def _shared(self) -> array[int]:
        """Runs of decodes that follow each other and whose prompts fill the same pages: those of a group (FAN-30).

        Only spans of a single token: that lets a device read the pages for all of them with one token each.
        The pages are compared, not taken for granted: a choice that was preempted may have got others back. And
        groups with the same prompt found the same pages in the prefix cache.
        """
        triples = array("i")
        previous_pages = array("i")
        for span, (sequence, count) in enumerate(self.spans):
            is_single = count == 1 and not sequence.drafted
            pages = sequence.pages[: sequence.group.whole_pages if is_single else 0]
            if pages and pages == previous_pages:
                if triples and triples[-3] + triples[-2] == span:
                    triples[-2] += 1
                else:
                    triples.extend((span - 1, 2, len(pages)))
            previous_pages = pages
        return triples
