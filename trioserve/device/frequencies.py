"""The rotary frequencies of any Rope, in plain Python: what every device turns its heads by.

Owns: the formulas. Must not know: tensors.
"""

from __future__ import annotations

import math

from trioserve.model.spec import Rope, RopeScaling


def rope_frequencies(rope: Rope) -> list[float]:
    """[D / 2] radians per position."""
    frequencies = [rope.theta ** (-i / rope.dim) for i in range(0, rope.dim, 2)]
    if rope.scaling is None:
        return frequencies
    return [f / _divisor(rope.scaling, f, i) for i, f in enumerate(frequencies)]


def _divisor(scaling: RopeScaling, frequency: float, i: int) -> float:
    """What the i-th frequency is divided by."""
    if scaling.kind == "table":
        return scaling.factors[i]
    if scaling.kind == "linear":
        return scaling.factor
    # Llama 3.1: what turns often within the original context is kept, what turns seldom is stretched by the factor
    turns = scaling.original_context_length * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return 1.0 / ((1.0 - kept) / scaling.factor + kept)
