"""Runs sequences on a Device without a scheduler: plans made by hand, for tests of devices.

Owns: Row, Span, make_plan and generate_greedily. Must not know: any particular device.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from trioserve.abc import Device
from trioserve.step import RowArrays, SpanArrays, StepPlan


@attrs.frozen(kw_only=True)
class Row:
    """A token to draw after the last token of a span. Greedy, if nothing else is said."""

    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logprobs: bool = False


@attrs.frozen(kw_only=True)
class Span:
    """Tokens of one sequence to compute in one step."""

    tokens: Sequence[int]
    start: int = 0
    """Position of the first of them."""
    pages: Sequence[int]
    """The block table of the sequence."""
    rows: Sequence[Row] = ()


def make_plan(spans: Sequence[Span], *, number: int = 0, copies: Sequence[tuple[int, int]] = ()) -> StepPlan:
    """The plan that computes the spans, after the page copies (source, target). Its rows are in the spans' order."""
    plan = StepPlan(
        number=number,
        copies=array("i", [page for pair in copies for page in pair]),
        spans=SpanArrays(),
        rows=RowArrays(),
        shared=array("i"),
    )
    for span in spans:
        stop = span.start + len(span.tokens)
        plan.spans.tokens.extend(span.tokens)
        plan.spans.positions.extend(range(span.start, stop))
        plan.spans.starts.append(len(plan.spans.tokens))
        plan.spans.pages.extend(span.pages)
        plan.spans.page_starts.append(len(plan.spans.pages))
        for row in span.rows:
            plan.rows.tokens.append(len(plan.spans.tokens) - 1)
            plan.rows.seeds.append(row.seed)
            plan.rows.counters.append(stop)
            plan.rows.temperatures.append(row.temperature)
            plan.rows.top_ps.append(row.top_p)
            plan.rows.top_ks.append(row.top_k)
            plan.rows.min_ps.append(row.min_p)
            plan.rows.logprobs.append(row.logprobs)
    return plan


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
