"""The messages between the scheduler and a device: one step, as flat integers.

Owns: StepPlan and StepResult. They are L0, not part of ``sched``, since devices and the scheduler both
build on them and neither may import the other.
Must not know: requests, text, tensors.

Vocabulary: a *span* is a run of consecutive tokens of one sequence computed in this step (a prefill chunk, or
one token of a decode, perhaps with a draft after it). A *row* is one token to draw. Several rows may draw from the
logits of the same token: the n first tokens of a group do. A decode with a draft draws after each token of its span.

``array`` typecodes: "i" int32, "Q" uint64, "d" float64. They support the buffer protocol, so a device reads
them without a copy.
"""

from __future__ import annotations

from array import array

import attrs


def _ints() -> array[int]:
    return array("i")


@attrs.frozen(eq=False)
class SpanArrays:
    """S spans with T tokens in all."""

    tokens: array[int] = attrs.field(factory=_ints)
    """[T] "i" token ids, the spans one after another."""
    positions: array[int] = attrs.field(factory=_ints)
    """[T] "i" position of each token in its sequence, from 0."""
    starts: array[int] = attrs.field(factory=lambda: array("i", [0]))
    """[S + 1] "i" span s owns tokens[starts[s] : starts[s + 1]]."""
    pages: array[int] = attrs.field(factory=_ints)
    """"i" the block tables, one after another: page ids in sequence order, covering the span's last position."""
    page_starts: array[int] = attrs.field(factory=lambda: array("i", [0]))
    """[S + 1] "i" span s owns pages[page_starts[s] : page_starts[s + 1]]."""


@attrs.frozen(eq=False)
class RowArrays:
    """R rows to draw."""

    tokens: array[int] = attrs.field(factory=_ints)
    """[R] "i" index in SpanArrays.tokens of the token whose logits the row is drawn from."""
    seeds: array[int] = attrs.field(factory=lambda: array("Q"))
    """[R] "Q" the choice's seed, as uint64: the key of the random number."""
    counters: array[int] = attrs.field(factory=lambda: array("Q"))
    """[R] "Q" position of the token to be drawn: the counter of the random number."""
    temperatures: array[float] = attrs.field(factory=lambda: array("d"))
    """[R] "d" 0.0 is greedy."""
    top_ps: array[float] = attrs.field(factory=lambda: array("d"))
    """[R] "d" 1.0 keeps all."""
    top_ks: array[int] = attrs.field(factory=_ints)
    """[R] "i" 0 or less keeps all."""
    min_ps: array[float] = attrs.field(factory=lambda: array("d"))
    """[R] "d" 0.0 keeps all."""
    logprobs: array[int] = attrs.field(factory=_ints)
    """[R] "i" 1: the log-probability of the drawn token is wanted; else 0."""


@attrs.frozen(eq=False)
class StepPlan:
    """Everything a device needs to run one step. A device must not keep it after the step."""

    number: int
    """Counts the plans of one scheduler from 0."""
    copies: array[int]
    """[2 * C] "i" pairs (source page, target page) to copy before anything else of the step: copy on write."""
    spans: SpanArrays
    rows: RowArrays
    shared: array[int]
    """[3 * G] "i" triples (first span, span count, shared pages): these consecutive spans begin with the same pages.
    Each of them has one token."""


@attrs.frozen(eq=False)
class StepResult:
    """What a step drew."""

    number: int
    """That of the plan."""
    token_ids: array[int]
    """[R] "i" the token drawn for each row of the plan."""
    logprobs: array[float] = attrs.field(factory=lambda: array("d"))
    """[R] "d" natural logarithm of the drawn token's probability, NaN for rows that did not ask; empty if none did.

    The probability is the softmax of the logits as the model made them, before temperature and filters: it says how
    likely the token was to the model, and not how it was drawn.
    """
