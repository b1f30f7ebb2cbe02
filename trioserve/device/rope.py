"""Rotary position embedding of any Rope.

Owns: the frequencies and the rotation. Must not know: heads' meaning, layers, caches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trioserve.model.spec import Rope, RopeScaling


def rope_frequencies(rope: Rope) -> Tensor:
    """[D / 2] float64, in radians per position."""
    pairs = torch.arange(0, rope.dim, 2, dtype=torch.float64)
    frequencies = rope.theta ** (-pairs / rope.dim)
    return frequencies if rope.scaling is None else frequencies / _divisors(rope.scaling, frequencies)


def _divisors(scaling: RopeScaling, frequencies: Tensor) -> Tensor:
    """[D / 2] float64: what each frequency is divided by."""
    if scaling.kind == "table":
        return torch.tensor(scaling.factors, dtype=torch.float64)
    if scaling.kind == "linear":
        return torch.full_like(frequencies, scaling.factor)
    # Llama 3.1: what turns often within the original context is kept, what turns seldom is stretched by the factor
    turns = scaling.original_context_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return 1.0 / ((1.0 - kept) / scaling.factor + kept)


def rotate(heads: Tensor, angles: Tensor, *, interleaved: bool) -> Tensor:
    """Turn each pair of the leading D dimensions by its angle; the other dimensions pass.

    Args:
        heads: [T, heads, head_dim] float32.
        angles: [T, D / 2] float64; computed in float32 they would be off by 1e-4 at position 2000.
        interleaved: as Rope.interleaved.
    """
    dim = 2 * angles.shape[1]
    rotated, rest = heads[..., :dim], heads[..., dim:]
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned, rest), dim=-1)
