"""The paged KV cache of a torch device.

Owns: the two tensors that hold all keys and values. Must not know: who owns a page, or what is in it.

A *slot* holds one token: slot page * page_size + i is the i-th of a page.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trioserve.model.spec import DecoderSpec


class KVPages:
    """Keys and values of every layer, in ``page_count`` pages of ``page_size`` tokens."""

    def __init__(self, spec: DecoderSpec, page_count: int, page_size: int, device: torch.device) -> None:
        shape = (spec.layers, page_count, page_size, spec.kv_heads, spec.head_dim)
        self._keys = torch.zeros(shape, device=device)
        """[layers, pages, page_size, kv_heads, head_dim] float32, after rope."""
        self._values = torch.zeros(shape, device=device)
        """The same shape."""
        self._page_size = page_size
        self.device = device

    def __repr__(self) -> str:
        return f"<KVPages: {self._keys.shape[1]} pages of {self._page_size} tokens>"

    def slots(self, table: Sequence[int]) -> Tensor:
        """[len(table) * page_size] int64: the slot of each position of a sequence, from its block table."""
        pages = torch.tensor(table, dtype=torch.int64, device=self.device)
        return (pages[:, None] * self._page_size + torch.arange(self._page_size, device=self.device)).flatten()

    def copy(self, source: int, target: int) -> None:
        """Copy a page, in all layers."""
        self._keys[:, target] = self._keys[:, source]
        self._values[:, target] = self._values[:, source]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, [R, kv_heads, head_dim] float32, in ``slots``, [R] int64."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self._values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values in ``slots``, [L] int64; each [L, kv_heads, head_dim] float32."""
        keys = self._keys[layer].flatten(0, 1).index_select(0, slots)
        values = self._values[layer].flatten(0, 1).index_select(0, slots)
        return keys, values
