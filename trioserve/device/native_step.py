"""A StepPlan as the native library takes it, and where its results go.

Owns: the conversion, and the lengths of all arrays. Must not know: what the library does with them. What the numbers in
them are is checked by the library.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sized
from itertools import accumulate

import attrs
import numpy as np
import numpy.typing as npt
from trioserve_kernels.cpu.library import NativeChanges, NativeStep, address

from trioserve.device.masks import Masks
from trioserve.step import ChangeArrays, StepPlan, StepResult

Floats = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class Results:
    """Where a native step writes, and what it writes for whom."""

    drawn: array[int]
    logprobs: array[float]
    top_starts: array[int]
    """[R + 1] row r has top_ids[top_starts[r] : top_starts[r + 1]]. Empty: no row wants any."""
    top_ids: array[int]
    top_logprobs: array[float]
    hidden: array[float]
    """[H * E] "f" the hidden states, one after another."""

    @classmethod
    def of(cls, plan: StepPlan, *, vocab_size: int, embedding_dim: int) -> Results:
        rows = plan.rows
        count = len(rows.tokens)
        starts, total = array("i"), 0
        if max(rows.logprobs, default=0) > 1:
            starts.extend(accumulate((min(max(k - 1, 0), vocab_size) for k in rows.logprobs), initial=0))
            total = starts[-1]
        return cls(
            drawn=array("i", bytes(4 * count)),
            logprobs=array("d", bytes(8 * count)),
            top_starts=starts,
            top_ids=array("i", bytes(4 * total)),
            top_logprobs=array("d", bytes(8 * total)),
            hidden=array("f", bytes(4 * len(plan.hidden) * embedding_dim)),
        )

    def result(self, plan: StepPlan) -> StepResult:
        logprobs = self.logprobs if any(plan.rows.logprobs) else array("d")
        states, count = memoryview(self.hidden), len(plan.hidden)
        hidden = [states[len(states) // count * h :][: len(states) // count] for h in range(count)]
        return StepResult(plan.number, self.drawn, logprobs, self.top_ids, self.top_logprobs, hidden)


def native_step(
    plan: StepPlan, results: Results, *, changes: NativeChanges | None = None, logits: Floats | None = None
) -> NativeStep:
    """The step, which refers to the memory of all arguments.

    Args:
        plan: the plan, one that ``is_whole``.
        results: those of the plan.
        changes: the plan's, see ``native_changes``; None: it has none.
        logits: [R, V] where the logits of the rows go; None: nowhere.
    """
    spans, rows = plan.spans, plan.rows
    return NativeStep(
        copy_count=len(plan.copies) // 2,
        span_count=len(spans.starts) - 1,
        token_count=len(spans.tokens),
        group_count=len(plan.shared) // 3,
        row_count=len(rows.tokens),
        page_entry_count=len(spans.pages),
        copies=address(plan.copies),
        tokens=address(spans.tokens),
        positions=address(spans.positions),
        starts=address(spans.starts),
        pages=address(spans.pages),
        page_starts=address(spans.page_starts),
        shared=address(plan.shared),
        row_tokens=address(rows.tokens),
        seeds=address(rows.seeds),
        counters=address(rows.counters),
        temperatures=address(rows.temperatures),
        top_ps=address(rows.top_ps),
        min_ps=address(rows.min_ps),
        top_ks=address(rows.top_ks),
        wants_log_probability=address(rows.logprobs),
        targets=address(rows.targets) if rows.targets else None,
        top_starts=address(results.top_starts) if results.top_starts else None,
        changes=None if changes is None else ctypes.addressof(changes),
        hidden_count=len(plan.hidden),
        hidden_tokens=address(plan.hidden),
        drawn=address(results.drawn),
        log_probabilities=address(results.logprobs),
        top_ids=address(results.top_ids),
        top_log_probabilities=address(results.top_logprobs),
        hidden=address(results.hidden),
        logits=None if logits is None else logits.ctypes.data,
    )


def native_changes(changes: ChangeArrays, mask_indices: array[int], masks: Masks, mask_ticket: int) -> NativeChanges:
    """The changes, which refer to the memory of all arguments.

    Args:
        changes: the changes of C rows, of a plan that ``is_whole``.
        mask_indices: [C] which of the masks each has; -1: none.
        masks: [M, words] they may be filled while the step runs.
        mask_ticket: what the decoder is told once they are.
    """
    return NativeChanges(
        count=len(changes.rows),
        generated_count=len(changes.generated),
        prompt_count=len(changes.prompts),
        bias_count=len(changes.bias_ids),
        mask_count=len(masks),
        rows=address(changes.rows),
        presence_penalties=address(changes.presence_penalties),
        frequency_penalties=address(changes.frequency_penalties),
        repetition_penalties=address(changes.repetition_penalties),
        generated=address(changes.generated),
        generated_starts=address(changes.generated_starts),
        prompts=address(changes.prompts),
        prompt_starts=address(changes.prompt_starts),
        bias_ids=address(changes.bias_ids),
        bias_starts=address(changes.bias_starts),
        biases=address(changes.biases),
        mask_indices=address(mask_indices),
        masks=masks.ctypes.data,
        mask_ticket=mask_ticket,
    )


def is_whole(plan: StepPlan) -> bool:
    """Whether the arrays of a plan are as long as they say of each other. The library reads them by those lengths."""
    spans, rows, changes = plan.spans, plan.rows, plan.rows.changes
    of_rows = (rows.seeds, rows.counters, rows.temperatures, rows.top_ps, rows.top_ks, rows.min_ps, rows.logprobs)
    return (
        _are_long((spans.positions,), len(spans.tokens))
        and _are_long((spans.page_starts,), len(spans.starts))
        and len(spans.starts) > 0
        and len(plan.copies) % 2 == len(plan.shared) % 3 == 0
        and _are_long(of_rows, len(rows.tokens))
        and len(rows.targets) in (0, len(rows.tokens))
        and (not changes.rows or _is_whole_change(changes))
    )


def _is_whole_change(changes: ChangeArrays) -> bool:
    penalties = (changes.presence_penalties, changes.frequency_penalties, changes.repetition_penalties)
    return (
        _are_long((*penalties, changes.matchers), len(changes.rows))
        and _are_long((changes.generated_starts, changes.prompt_starts, changes.bias_starts), len(changes.rows) + 1)
        and len(changes.biases) == len(changes.bias_ids)
    )


def _are_long(arrays: Iterable[Sized], length: int) -> bool:
    return all(len(values) == length for values in arrays)
