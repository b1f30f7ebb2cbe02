"""Devices that remember what they drew from, so that a difference shows even where it is too small to change a token.

Owns: WitnessDevice, NativeWitnessDevice. Must not know: schedulers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from trioserve_kernels.cpu.library import PAGE_TOKENS

from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.model.loaded import LoadedModel
from trioserve.step import StepPlan, StepResult

Logits = npt.NDArray[np.float32]
Witnessed = tuple[int, int, bytes]
"""(seed as uint64, position of the drawn token, digest of the logits it was drawn from); of a token that was scored the
seed is 0."""


class WitnessDevice(ReferenceDevice):
    """A reference device that remembers what it drew from."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # whatever they are
        self.witnessed: list[Witnessed] = []
        self._logits: dict[int, Logits] = {}

    def _compute(self, plan: StepPlan) -> tuple[dict[int, Logits], list[memoryview]]:
        self._logits, hidden = super()._compute(plan)
        return self._logits, hidden

    def run(self, plan: StepPlan) -> StepResult:
        result = super().run(plan)
        self.witnessed += witness(plan, result, self._logits)
        return result


class NativeWitnessDevice(CpuDevice):
    """A CPU device that remembers what it drew from."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # whatever they are
        self.witnessed: list[Witnessed] = []

    def _run(self, plan: StepPlan, logits: Logits | None) -> StepResult:
        if logits is None:
            logits = np.empty((len(plan.rows.tokens), self.info.vocab_size), np.float32)
        result = super()._run(plan, logits)
        self.witnessed += witness(plan, result, dict(zip(plan.rows.tokens, logits, strict=True)))
        return result


def witness(plan: StepPlan, result: StepResult, logits: Mapping[int, Logits]) -> list[Witnessed]:
    """What was drawn in a step, without what was drawn after a draft that turned out wrong."""
    witnessed: list[Witnessed] = []
    rows, counts = plan.rows, True
    digests = {token: hashlib.sha256(row.tobytes()).digest() for token, row in logits.items()}
    for r, token in enumerate(rows.tokens):
        if r > 0 and token == rows.tokens[r - 1] + 1 and token not in plan.spans.starts:
            counts &= result.token_ids[r - 1] == plan.spans.tokens[token]
        else:
            counts = True
        if counts:
            witnessed.append((rows.seeds[r], rows.counters[r], digests[token]))
    return witnessed


AnyWitness = WitnessDevice | NativeWitnessDevice


def open_witness(
    model: LoadedModel, device: Literal["reference", "cpu"], *, page_size: int, page_count: int
) -> AnyWitness:
    """``device`` is "reference" or "cpu"; the latter with two threads."""
    if device == "reference":
        reference = WitnessDevice.load(model, page_size=page_size, page_count=page_count)
        assert isinstance(reference, WitnessDevice)
        return reference
    assert page_size == PAGE_TOKENS, "the CPU device has no other pages"
    native = NativeWitnessDevice.load(model, page_count=page_count, threads=2)
    assert isinstance(native, NativeWitnessDevice)
    return native
