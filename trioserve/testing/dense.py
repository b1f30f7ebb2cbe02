"""The decoder once more, as slowly and plainly as it can be said: numpy, float64, one whole sequence, no cache.

Owns: dense_logits, which a device must agree with up to its rounding. Must not know: pages, batches, devices.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trioserve.model.loaded import Weights
from trioserve.model.spec import DecoderSpec, Rope

Array = npt.NDArray[np.float64]


def dense_logits(spec: DecoderSpec, weights: Weights, tokens: list[int]) -> Array:
    """[T, V] float64: the logits at every position of one sequence of T tokens."""

    def linear(x: Array, name: str, bias: bool) -> Array:
        y: Array = x @ weights.float32(name).astype(np.float64).T
        if bias:
            y += weights.float32(f"{name}_bias")
        return y

    def norm(x: Array, name: str) -> Array:
        rms: Array = np.sqrt((x**2).mean(axis=-1, keepdims=True) + spec.norm_eps)
        return x / rms * weights.float32(name)

    def attention(x: Array, layer: int) -> Array:
        block = f"layers.{layer}."
        q = linear(x, block + "q", spec.attention_bias).reshape(len(x), spec.heads, spec.head_dim)
        k = linear(x, block + "k", spec.attention_bias).reshape(len(x), spec.kv_heads, spec.head_dim)
        v = linear(x, block + "v", spec.attention_bias).reshape(len(x), spec.kv_heads, spec.head_dim)
        if spec.qk_norm:
            q, k = norm(q, block + "q_norm"), norm(k, block + "k_norm")
        window = spec.sliding_window if layer in spec.sliding_layers else None
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        mixed = np.zeros_like(q)
        for t in range(len(x)):
            first = 0 if window is None else max(0, t - window + 1)
            for head in range(spec.heads):
                shared = head // (spec.heads // spec.kv_heads)
                query = _turned(q[t, head], t, spec.rope)
                keys = np.array([_turned(k[s, shared], s, spec.rope) for s in range(first, t + 1)])
                scores = _soft_capped(keys @ query * scale, spec.attention_soft_cap)
                odds = np.exp(scores - scores.max())
                mixed[t, head] = odds / odds.sum() @ v[first : t + 1, shared]
        return linear(mixed.reshape(len(x), -1), block + "o", spec.output_bias)

    def feed_forward(x: Array, layer: int) -> Array:
        block = f"layers.{layer}."
        gate = _activated(linear(x, block + "gate", spec.feed_forward_bias), spec.activation)
        return linear(gate * linear(x, block + "up", spec.feed_forward_bias), block + "down", spec.feed_forward_bias)

    x = weights.float32("embedding")[tokens].astype(np.float64) * spec.embedding_scale
    for layer in range(spec.layers):
        x = x + spec.residual_scale * attention(norm(x, f"layers.{layer}.attention_norm"), layer)
        x = x + spec.residual_scale * feed_forward(norm(x, f"layers.{layer}.feed_forward_norm"), layer)
    logits = linear(norm(x, "final_norm"), "embedding" if spec.tied_head else "head", bias=False)
    return _soft_capped(logits * spec.logit_scale, spec.logit_soft_cap)


def _turned(head: Array, position: int, rope: Rope) -> Array:
    """One head's vector after rope."""
    turned = head.copy()
    half = rope.dim // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + half)
        angle = position * rope.theta ** (-2 * i / rope.dim) / _divisor(rope, i)
        turned[a] = head[a] * math.cos(angle) - head[b] * math.sin(angle)
        turned[b] = head[b] * math.cos(angle) + head[a] * math.sin(angle)
    return turned


def _divisor(rope: Rope, i: int) -> float:
    """What frequency i is divided by."""
    scaling = rope.scaling
    if scaling is None:
        return 1.0
    if scaling.kind == "linear":
        return scaling.factor
    if scaling.kind == "table":
        return scaling.factors[i]
    wavelength: float = 2 * math.pi * rope.theta ** (2 * i / rope.dim)
    if wavelength < scaling.original_context_length / scaling.high_freq_factor:
        return 1.0
    if wavelength > scaling.original_context_length / scaling.low_freq_factor:
        return scaling.factor
    smooth = scaling.original_context_length / wavelength - scaling.low_freq_factor
    smooth /= scaling.high_freq_factor - scaling.low_freq_factor
    return 1 / ((1 - smooth) / scaling.factor + smooth)


def _soft_capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def _activated(x: Array, activation: str) -> Array:
    if activation == "silu":
        share = 1 / (1 + np.exp(-x))
    elif activation == "gelu":
        share = (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    else:
        share = (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return np.asarray(x * share, dtype=np.float64)
