"""The forward pass of any DecoderSpec in plain float32 torch, one tile of tokens at a time.

Owns: the weights and the arithmetic. Must not know: plans, sampling, where a tile's tokens come from.

The result for a token must not depend, in any bit, on the tokens computed beside it. That holds because of how the
work is cut up:

- Products with weights always see TILE rows, padded with zeros. A BLAS chooses its code, and so the order of its sums,
  by shape, and may sum a lone last column its own way. So the columns are padded to a multiple of COLUMNS as well; then
  every row is summed alike, in any number of threads.
- Attention is computed for one token at a time, in shapes that follow from its position alone.
- Functions like exp see one row at a time: torch's vector code leaves the end of each thread's share to scalar code,
  which rounds differently, and the shares of a whole tile end on other elements in each row.

Tests check all three on the machine they run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from trioserve.device.frequencies import rope_frequencies
from trioserve.device.pages import KVPages
from trioserve.device.rope import rotate
from trioserve.model.spec import Activation, DecoderSpec

TILE: Final = 16
"""Tokens that are computed together. On a CPU 16 rows take little longer than 8, and 32 twice as long."""
COLUMNS: Final = 16
"""Outputs of a product come in multiples of this: the floats of the widest vector there is."""

_ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@attrs.frozen(eq=False)
class Tile:
    """R tokens of any sequences, TILE at most; those of one sequence in the order of their positions."""

    tokens: Tensor
    """[R] int64"""
    positions: Tensor
    """[R] int64"""
    slots: Tensor
    """[R] int64: where each token's keys and values are stored."""
    contexts: Sequence[Tensor]
    """For each token, [position + 1] int64: the slots of its sequence from position 0 up to its own."""


class Linear:
    """y = x W^T + b, for exactly TILE rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight`` is [out, in], ``bias`` [out]; both float32."""
        self._out = len(weight)
        padding = -self._out % COLUMNS
        self._weight = functional.pad(weight, (0, 0, 0, padding)) if padding else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[TILE, in] -> [TILE, out]"""
        assert len(x) == TILE
        y = functional.linear(x, self._weight)[:, : self._out]
        return y if self._bias is None else y + self._bias


class Decoder:
    """A dense decoder with its weights. Shapes: H heads, K KV heads, D head_dim, E embedding_dim, V vocab_size."""

    def __init__(self, spec: DecoderSpec, weights: Mapping[str, Tensor]) -> None:
        """``weights`` are those of DecoderSpec.weight_shapes, float32 and all on one torch device."""
        self._embedding = weights["embedding"]
        self._layers = [Layer(spec, layer, weights) for layer in range(spec.layers)]
        self._final_norm = weights["final_norm"]
        self._head = Linear(weights["embedding" if spec.tied_head else "head"])
        self._frequencies = torch.tensor(
            rope_frequencies(spec.rope), dtype=torch.float64, device=self._embedding.device
        )
        self._spec = spec

    def __repr__(self) -> str:
        return f"<Decoder: {self._spec.architecture}, {self._spec.layers} layers>"

    def hidden(self, tile: Tile, pages: KVPages) -> Tensor:
        """[tokens of the tile, E]: what the head makes logits from. Stores the tile's keys and values in ``pages``."""
        count = len(tile.tokens)
        padding = TILE - count
        x = functional.pad(
            functional.embedding(tile.tokens, self._embedding) * self._spec.embedding_scale, (0, 0, 0, padding)
        )
        angles = functional.pad(tile.positions, (0, padding))[:, None] * self._frequencies
        for layer in self._layers:
            x = layer(x, angles, tile, pages)
        return rms_norm(x, self._final_norm, self._spec.norm_eps)[:count]

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, E] -> [R, V]"""
        tiles = [functional.pad(rows, (0, 0, 0, TILE - len(rows))) for rows in torch.split(hidden, TILE)]
        logits = torch.cat([self._head(tile) for tile in tiles])[: len(hidden)] * self._spec.logit_scale
        cap = self._spec.logit_soft_cap
        return logits if cap is None else torch.stack([soft_cap(row, cap) for row in logits])


class Layer:
    """One block: attention, then the feed-forward network, each added to the residual stream."""

    def __init__(self, spec: DecoderSpec, layer: int, weights: Mapping[str, Tensor]) -> None:
        block = f"layers.{layer}."

        def linear(name: str) -> Linear:
            return Linear(weights[block + name], weights.get(f"{block}{name}_bias"))

        self._attention_norm = weights[block + "attention_norm"]
        self._q, self._k, self._v, self._o = linear("q"), linear("k"), linear("v"), linear("o")
        self._q_norm, self._k_norm = weights.get(block + "q_norm"), weights.get(block + "k_norm")
        self._feed_forward_norm = weights[block + "feed_forward_norm"]
        self._gate, self._up, self._down = linear("gate"), linear("up"), linear("down")
        self._activation = _ACTIVATIONS[spec.activation]
        self._window = spec.sliding_window if layer in spec.sliding_layers else None
        self._scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self._layer = layer
        self._spec = spec

    def __call__(self, x: Tensor, angles: Tensor, tile: Tile, pages: KVPages) -> Tensor:
        """[TILE, E] -> [TILE, E]; ``angles`` are the rotary angles, [TILE, rope.dim / 2] float64."""
        eps, scale = self._spec.norm_eps, self._spec.residual_scale
        x = x + scale * self._attention(rms_norm(x, self._attention_norm, eps), angles, tile, pages)
        return x + scale * self._feed_forward(rms_norm(x, self._feed_forward_norm, eps))

    def _attention(self, x: Tensor, angles: Tensor, tile: Tile, pages: KVPages) -> Tensor:
        spec = self._spec
        q = self._q(x).view(TILE, spec.heads, spec.head_dim)
        k = self._k(x).view(TILE, spec.kv_heads, spec.head_dim)
        v = self._v(x).view(TILE, spec.kv_heads, spec.head_dim)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = rms_norm(q, self._q_norm, spec.norm_eps), rms_norm(k, self._k_norm, spec.norm_eps)
        q = rotate(q, angles, interleaved=spec.rope.interleaved)
        k = rotate(k, angles, interleaved=spec.rope.interleaved)
        count = len(tile.contexts)
        pages.write(self._layer, tile.slots, k[:count], v[:count])
        mixed = torch.zeros_like(q)
        for row, context in enumerate(tile.contexts):
            keys, values = pages.read(self._layer, context if self._window is None else context[-self._window :])
            # a copy, since the alignment of q[row] would depend on the row
            mixed[row] = self._attend(q[row].clone(), keys, values)
        return self._o(mixed.flatten(1))

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One token's attention: q [H, D], keys and values [L, K, D] -> [H, D]. Heads of a group share a KV head."""
        groups = q.view(self._spec.kv_heads, -1, self._spec.head_dim)  # [K, H / K, D]
        scores = torch.matmul(groups, keys.permute(1, 2, 0)) * self._scale  # [K, H / K, L]
        if self._spec.attention_soft_cap is not None:
            scores = soft_cap(scores, self._spec.attention_soft_cap)
        return torch.matmul(scores.softmax(dim=-1), values.transpose(0, 1)).view_as(q)

    def _feed_forward(self, x: Tensor) -> Tensor:
        gate = torch.stack([self._activation(row) for row in self._gate(x)])
        return self._down(gate * self._up(x))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x ** 2) + eps) * weight over the last dimension."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap): x bent to stay within -cap and cap."""
    return cap * torch.tanh(x / cap)
