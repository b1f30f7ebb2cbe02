"""Draws and scores the rows of a plan, one after another, as plainly as it can be said.

Owns: draw_rows, and what of a plan's flat arrays is a row's. Must not know: how logits are made.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt
from trioserve_kernels.reference.sampler import changed, log_probability, most_likely, sample

from trioserve.device.masks import distinct, new_masks
from trioserve.step import ChangeArrays, RowArrays, StepPlan, StepResult

Logits = npt.NDArray[np.float32]
Allowed = npt.NDArray[np.bool_]


@attrs.frozen(eq=False)
class Change:
    """How the logits of one row are changed."""

    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    generated: Sequence[int]
    prompt: Sequence[int]
    bias: Mapping[int, float]
    allowed: Allowed | None

    def apply(self, logits: Logits) -> Logits:
        return changed(
            logits,
            generated=self.generated,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            prompt=self.prompt,
            repetition_penalty=self.repetition_penalty,
            bias=self.bias,
            allowed=self.allowed,
        )


def check_ids(plan: StepPlan, vocab_size: int) -> None:
    """Check the ids that rows name.

    Raises:
        IndexError: one is not in the vocabulary.
    """
    changes = plan.rows.changes
    for ids, first in ((changes.generated, 0), (changes.prompts, 0), (changes.bias_ids, 0), (plan.rows.targets, -1)):
        if ids and not first <= min(ids) <= max(ids) < vocab_size:
            raise IndexError(f"Step {plan.number} has a row with a token id that is not in the vocabulary.")


def changes_by_row(changes: ChangeArrays, vocab_size: int) -> dict[int, Change]:
    """The change of each row that has one, by its index. Fills the masks."""
    matchers, mask_indices = distinct(changes.matchers)
    masks = new_masks(len(matchers), vocab_size)
    for matcher, mask in zip(matchers, masks, strict=True):
        matcher.fill_mask(memoryview(mask))
    allowed = np.unpackbits(masks.astype("<u4").view(np.uint8), axis=1, bitorder="little")[:, :vocab_size].astype(bool)
    by_row = {}
    for c, row in enumerate(changes.rows):
        biased = slice(changes.bias_starts[c], changes.bias_starts[c + 1])
        by_row[row] = Change(
            presence_penalty=changes.presence_penalties[c],
            frequency_penalty=changes.frequency_penalties[c],
            repetition_penalty=changes.repetition_penalties[c],
            generated=changes.generated[changes.generated_starts[c] : changes.generated_starts[c + 1]],
            prompt=changes.prompts[changes.prompt_starts[c] : changes.prompt_starts[c + 1]],
            bias=dict(zip(changes.bias_ids[biased], changes.biases[biased], strict=True)),
            allowed=None if mask_indices[c] < 0 else allowed[mask_indices[c]],
        )
    return by_row


def draw_rows(plan: StepPlan, logits: Mapping[int, Logits], hidden: Sequence[memoryview]) -> StepResult:
    """The result of a plan.

    Args:
        plan: the plan, of which the ids were checked.
        logits: [V] finite, for each token that a row is drawn from, by its index in the plan.
        hidden: the hidden states of the result.
    """
    rows = plan.rows
    result = StepResult(plan.number, array("i"), hidden=hidden)
    if not rows.tokens:
        return result
    vocab_size = len(logits[rows.tokens[0]])
    changes = changes_by_row(rows.changes, vocab_size)
    has_logprobs = any(rows.logprobs)
    for r, token in enumerate(rows.tokens):
        raw, wanted = logits[token], rows.logprobs[r]
        target = rows.targets[r] if rows.targets else -1
        drawn = target if target >= 0 else _draw(raw, rows, r, changes.get(r))
        result.token_ids.append(drawn)
        if has_logprobs:
            known = -math.inf if drawn < 0 else log_probability(raw, drawn)
            result.logprobs.append(known if wanted else math.nan)
        for token_id, logprob in most_likely(raw, wanted - 1) if wanted > 1 else ():
            result.top_ids.append(token_id)
            result.top_logprobs.append(logprob)
    return result


def _draw(logits: Logits, rows: RowArrays, r: int, change: Change | None) -> int:
    """The token of row r; -1 if the change leaves none."""
    if change is not None:
        logits = change.apply(logits)
        if not np.isfinite(logits.max()):
            return -1
    return sample(
        logits,
        seed=rows.seeds[r],
        position=rows.counters[r],
        temperature=rows.temperatures[r],
        top_p=rows.top_ps[r],
        top_k=rows.top_ks[r],
        min_p=rows.min_ps[r],
    )
