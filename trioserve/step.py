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
from collections.abc import Sequence
from typing import Protocol

import attrs


def _ints() -> array[int]:
    return array("i")


def _doubles() -> array[float]:
    return array("d")


def _one_start() -> array[int]:
    return array("i", [0])


class Matcher(Protocol):
    """What may come next in one choice. The scheduler owns it, and lends it to the device for the time of a step."""

    def fill_mask(self, mask: memoryview) -> None:
        """Write bit ``id % 32`` of word ``id // 32`` for every token id: 1 if it may come next. At least one may.

        Args:
            mask: ["I"] (vocab_size + 31) // 32 words of 32 bits, of which every one is written.
        """
        ...

    def advance(self, token_id: int) -> bool:
        """A token was drawn, one that was allowed. Whether all is complete now and nothing can follow."""
        ...

    def copy(self) -> Matcher:
        """One that goes its own way from here."""
        ...


@attrs.frozen(eq=False)
class SpanArrays:
    """S spans with T tokens in all."""

    tokens: array[int] = attrs.field(factory=_ints)
    """[T] "i" token ids, the spans one after another."""
    positions: array[int] = attrs.field(factory=_ints)
    """[T] "i" position of each token in its sequence, from 0."""
    starts: array[int] = attrs.field(factory=_one_start)
    """[S + 1] "i" span s owns tokens[starts[s] : starts[s + 1]]."""
    pages: array[int] = attrs.field(factory=_ints)
    """"i" the block tables, one after another: page ids in sequence order, covering the span's last position."""
    page_starts: array[int] = attrs.field(factory=_one_start)
    """[S + 1] "i" span s owns pages[page_starts[s] : page_starts[s + 1]]."""


@attrs.frozen(eq=False)
class ChangeArrays:
    """How the logits of C rows are changed before anything is drawn from them, in this order.

    The log-probabilities of a result are those from before.
    """

    rows: array[int] = attrs.field(factory=_ints)
    """[C] "i" index in RowArrays, ascending."""
    presence_penalties: array[float] = attrs.field(factory=_doubles)
    """[C] "d" subtracted from the logit of every token in ``generated``."""
    frequency_penalties: array[float] = attrs.field(factory=_doubles)
    """[C] "d" subtracted from the logit of a token as often as it is in ``generated``."""
    repetition_penalties: array[float] = attrs.field(factory=_doubles)
    """[C] "d" the logit of every token in ``generated`` or ``prompts`` is divided by this if it is positive, and
    multiplied if not. 1.0 changes nothing."""
    generated: array[int] = attrs.field(factory=_ints)
    """"i" the tokens that the choices have generated, one after another, each as often as it was generated. Empty for a
    row without penalties."""
    generated_starts: array[int] = attrs.field(factory=_one_start)
    """[C + 1] "i" change c owns generated[generated_starts[c] : generated_starts[c + 1]]."""
    prompts: array[int] = attrs.field(factory=_ints)
    """"i" the tokens of the prompts likewise. Empty for a row without a repetition penalty."""
    prompt_starts: array[int] = attrs.field(factory=_one_start)
    """[C + 1] "i" change c owns prompts[prompt_starts[c] : prompt_starts[c + 1]]."""
    bias_ids: array[int] = attrs.field(factory=_ints)
    """"i" token ids likewise, each once for a row."""
    biases: array[float] = attrs.field(factory=_doubles)
    """"d" what is added to their logits; minus infinity for a token that can't be drawn."""
    bias_starts: array[int] = attrs.field(factory=_one_start)
    """[C + 1] "i" change c owns bias_ids[bias_starts[c] : bias_starts[c + 1]], and the biases with the same indices."""
    matchers: list[Matcher | None] = attrs.field(factory=list)
    """[C] what the choice may go on with; None: anything. Rows with the same state may have the same matcher.

    Its mask is wanted only when the logits are there, so a device can have it filled while it computes."""


@attrs.frozen(eq=False)
class RowArrays:
    """R rows to draw, or to score."""

    tokens: array[int] = attrs.field(factory=_ints)
    """[R] "i" index in SpanArrays.tokens of the token whose logits the row is drawn from."""
    seeds: array[int] = attrs.field(factory=lambda: array("Q"))
    """[R] "Q" the choice's seed, as uint64: the key of the random number."""
    counters: array[int] = attrs.field(factory=lambda: array("Q"))
    """[R] "Q" position of the token to be drawn: the counter of the random number."""
    temperatures: array[float] = attrs.field(factory=_doubles)
    """[R] "d" 0.0 is greedy."""
    top_ps: array[float] = attrs.field(factory=_doubles)
    """[R] "d" 1.0 keeps all."""
    top_ks: array[int] = attrs.field(factory=_ints)
    """[R] "i" 0 or less keeps all."""
    min_ps: array[float] = attrs.field(factory=_doubles)
    """[R] "d" 0.0 keeps all."""
    logprobs: array[int] = attrs.field(factory=_ints)
    """[R] "i" 0: no log-probability is wanted; k + 1: that of the row's token, and those of the k likeliest ones."""
    targets: array[int] = attrs.field(factory=_ints)
    """[R] "i" -1: draw; else the token to score: it is the row's token, and nothing is drawn. Empty: all rows draw."""
    changes: ChangeArrays = attrs.field(factory=ChangeArrays)
    """Of those rows that need any."""


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
    hidden: array[int] = attrs.field(factory=_ints)
    """[H] "i" indices in SpanArrays.tokens, ascending: tokens whose last hidden state is wanted."""


@attrs.frozen(eq=False)
class StepResult:
    """What a step drew."""

    number: int
    """That of the plan."""
    token_ids: array[int]
    """[R] "i" each row's token: the one drawn, or its target; -1 if the row's changes leave none that could be drawn.
    The log-probability is minus infinity then."""
    logprobs: array[float] = attrs.field(factory=_doubles)
    """[R] "d" natural logarithm of the token's probability, NaN for rows that did not ask; empty if none did.

    The probability is the softmax of the logits as the model made them, before changes, temperature and filters: it
    says how likely the token was to the model, and not how it was drawn.
    """
    top_ids: array[int] = attrs.field(factory=_ints)
    """"i" the likeliest tokens of the rows that asked for some, one row after another, k for a row that asked for k (or
    the whole vocabulary if that is smaller): the likeliest first, and of equals the lower id."""
    top_logprobs: array[float] = attrs.field(factory=_doubles)
    """"d" of each of them."""
    hidden: Sequence[memoryview] = ()
    """[H] the last hidden state of each token that the plan asked for, after the final norm: "f" embedding_dim."""
