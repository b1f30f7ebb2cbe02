"""Runs sequences on a Device without a scheduler: plans made by hand, for tests of devices.

Owns: Row, Span, SetMatcher, make_plan and generate_greedily. Must not know: any particular device.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

import attrs

from trioserve.abc import Device
from trioserve.step import ChangeArrays, Matcher, RowArrays, SpanArrays, StepPlan


class DrawnWith(TypedDict):
    """Arguments of the reference sampler."""

    seed: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float


@attrs.frozen(kw_only=True)
class Row:
    """A token to draw or score after the last token of a span. Greedy and unchanged, if nothing else is said."""

    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logprobs: int = 0
    """As RowArrays has it."""
    target: int = -1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    generated: Sequence[int] = ()
    prompt: Sequence[int] = ()
    bias: Mapping[int, float] = attrs.field(factory=dict)
    matcher: Matcher | None = None

    @property
    def drawn_with(self) -> DrawnWith:
        """What the reference sampler takes, but for logits and position."""
        return DrawnWith(
            seed=self.seed, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )

    @property
    def is_changed(self) -> bool:
        """Whether the plan has a change for it."""
        return bool(self.generated or self.prompt or self.bias or self.matcher is not None)


@attrs.define(eq=False)
class SetMatcher:
    """A Matcher of a set of token ids, which stays the same."""

    allowed: Collection[int]
    asked: int = attrs.field(default=0, init=False)
    """How many masks it has filled."""

    def fill_mask(self, mask: memoryview) -> None:
        self.asked += 1
        for word in range(len(mask)):
            mask[word] = sum(1 << token_id % 32 for token_id in self.allowed if token_id // 32 == word)

    def advance(self, token_id: int) -> bool:
        assert token_id in self.allowed
        return False

    def copy(self) -> Matcher:
        return self


@attrs.frozen(kw_only=True)
class Span:
    """Tokens of one sequence to compute in one step."""

    tokens: Sequence[int]
    start: int = 0
    """Position of the first of them."""
    pages: Sequence[int]
    """The block table of the sequence."""
    rows: Sequence[Row] = ()
    hidden: Sequence[int] = ()
    """The tokens whose hidden states are wanted, counted from the first of the span."""


def make_plan(
    spans: Sequence[Span],
    *,
    number: int = 0,
    copies: Sequence[tuple[int, int]] = (),
    shared: Sequence[tuple[int, int, int]] = (),
) -> StepPlan:
    """The plan that computes the spans, after the page copies (source, target). Its rows are in the spans' order.

    ``shared`` are the triples of StepPlan.shared.
    """
    plan = StepPlan(
        number=number,
        copies=array("i", [page for pair in copies for page in pair]),
        spans=SpanArrays(),
        rows=RowArrays(),
        shared=array("i", [number for triple in shared for number in triple]),
    )
    if any(row.target >= 0 for span in spans for row in span.rows):
        plan.rows.targets.extend(row.target for span in spans for row in span.rows)
    for span in spans:
        stop = span.start + len(span.tokens)
        plan.hidden.extend(len(plan.spans.tokens) + offset for offset in span.hidden)
        plan.spans.tokens.extend(span.tokens)
        plan.spans.positions.extend(range(span.start, stop))
        plan.spans.starts.append(len(plan.spans.tokens))
        plan.spans.pages.extend(span.pages)
        plan.spans.page_starts.append(len(plan.spans.pages))
        for row in span.rows:
            if row.is_changed:
                _append_change(plan.rows.changes, len(plan.rows.tokens), row)
            plan.rows.tokens.append(len(plan.spans.tokens) - 1)
            plan.rows.seeds.append(row.seed)
            plan.rows.counters.append(stop)
            plan.rows.temperatures.append(row.temperature)
            plan.rows.top_ps.append(row.top_p)
            plan.rows.top_ks.append(row.top_k)
            plan.rows.min_ps.append(row.min_p)
            plan.rows.logprobs.append(row.logprobs)
    return plan


def _append_change(changes: ChangeArrays, index: int, row: Row) -> None:
    changes.rows.append(index)
    changes.presence_penalties.append(row.presence_penalty)
    changes.frequency_penalties.append(row.frequency_penalty)
    changes.repetition_penalties.append(row.repetition_penalty)
    changes.generated.extend(row.generated)
    changes.generated_starts.append(len(changes.generated))
    changes.prompts.extend(row.prompt)
    changes.prompt_starts.append(len(changes.prompts))
    changes.bias_ids.extend(row.bias.keys())
    changes.biases.extend(row.bias.values())
    changes.bias_starts.append(len(changes.bias_ids))
    changes.matchers.append(row.matcher)


def generate_greedily(device: Device, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """``count`` tokens after each prompt, all prompts in one batch, past any end of sequence."""
    size = device.info.page_size
    tables: list[range] = []
    for prompt in prompts:
        first = tables[-1].stop if tables else 0
        tables.append(range(first, first - (-(len(prompt) + count) // size)))
    assert tables[-1].stop <= device.info.page_count, f"{tables[-1].stop} pages are needed"
    answers: list[list[int]] = [[] for _ in prompts]
    todo = [list(prompt) for prompt in prompts]
    for number in range(count):
        spans = [
            Span(tokens=tokens, start=len(prompt) + len(answer) - len(tokens), pages=table, rows=[Row()])
            for prompt, answer, tokens, table in zip(prompts, answers, todo, tables, strict=True)
        ]
        drawn = device.run(make_plan(spans, number=number)).token_ids
        for answer, token in zip(answers, drawn, strict=True):
            answer.append(token)
        todo = [[token] for token in drawn]
    return answers
