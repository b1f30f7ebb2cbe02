"""Rotary position embedding in torch.

Owns: the rotation. Must not know: frequencies, heads' meaning, layers, caches.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
