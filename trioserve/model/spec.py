"""A dense decoder as data: everything a device needs to know of a model besides its weights.

Owns: DecoderSpec and its parts, and their consistency checks.
Must not know: file formats, tensors.

A model family is a reader that fills this in, not a module of code: a device runs any DecoderSpec.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs

from trioserve.errors import ModelError

Activation = Literal["silu", "gelu", "gelu_tanh"]


@attrs.frozen(kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the training's.

    ``linear``: every frequency divided by ``factor``.
    ``llama3``: low frequencies divided by ``factor``, high ones kept, smooth between (Llama 3.1's rule).
    ``table``: frequency i divided by ``factors[i]`` (what a GGUF file stores as rope_freqs.weight).
    """

    kind: Literal["linear", "llama3", "table"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192
    factors: tuple[float, ...] = ()


@attrs.frozen(kw_only=True)
class Rope:
    """Rotary position embedding."""

    theta: float = 10000.0
    """Base: frequency i of D / 2 is theta ** (-2 i / D)."""
    dim: int
    """D: the leading dimensions of each head that are rotated; even, at most head_dim."""
    interleaved: bool = False
    """True: pairs are (2i, 2i + 1), as GGUF files of the llama architecture store them. False: (i, i + D / 2)."""
    scaling: RopeScaling | None = None


@attrs.frozen(kw_only=True)
class DecoderSpec:
    """A dense decoder. Shapes below use H heads, K KV heads, D head_dim, E embedding_dim, F feed_forward_dim.

    Raises:
        ModelError: the numbers contradict each other.
    """

    architecture: str
    """The family's name in its own files: "llama"."""
    vocab_size: int
    """Rows of the embedding and width of the logits."""
    context_length: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    embedding_dim: int
    feed_forward_dim: int
    rope: Rope
    norm_eps: float
    """Of RMS norms: x * rsqrt(mean(x ** 2) + eps) * weight."""
    activation: Activation = "silu"
    tied_head: bool = False
    """The head is the embedding matrix."""
    attention_bias: bool = False
    """q, k and v projections have biases."""
    output_bias: bool = False
    """The attention output projection has a bias."""
    feed_forward_bias: bool = False
    qk_norm: bool = False
    """RMS norm over D of each query and key head, before rope."""
    sliding_window: int | None = None
    """Tokens that a layer with a window attends to, its own included."""
    sliding_layers: frozenset[int] = frozenset()
    """Layers with the window."""
    attention_scale: float | None = None
    """Factor of q . k; None: D ** -0.5."""
    attention_soft_cap: float | None = None
    """c: scores become c * tanh(score / c)."""
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of each block's output before it is added to the residual stream."""
    logit_scale: float = 1.0
    """Factor of the logits."""

    def __attrs_post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "layers", "heads", "kv_heads", "head_dim", "embedding_dim"):
            if not 1 <= getattr(self, name) < 2**31:
                raise ModelError(f"the model's {name} is {getattr(self, name)}, which is not a sensible number")
        if not 1 <= self.feed_forward_dim < 2**31:
            raise ModelError(f"the model's feed_forward_dim is {self.feed_forward_dim}, which is not a sensible number")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads can't share {self.kv_heads} KV heads evenly")
        if self.rope.dim % 2 or not 2 <= self.rope.dim <= self.head_dim:
            raise ModelError(f"rope over {self.rope.dim} of {self.head_dim} dimensions is not possible")
        for name in ("norm_eps", "embedding_scale", "residual_scale", "logit_scale"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ModelError(f"the model's {name} is {getattr(self, name)}, which is not a positive number")
        scaling = self.rope.scaling
        if scaling is not None and scaling.kind == "table" and len(scaling.factors) != self.rope.dim // 2:
            raise ModelError(f"{len(scaling.factors)} rope factors for {self.rope.dim // 2} frequencies")

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical weight name -> shape, (out, in) for matrices: what a Weights must offer, no more and no less."""
        e, f, q, kv = (
            self.embedding_dim,
            self.feed_forward_dim,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
        )
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocab_size, e), "final_norm": (e,)}
        if not self.tied_head:
            shapes["head"] = (self.vocab_size, e)
        for layer in range(self.layers):
            block: dict[str, tuple[int, ...]] = {
                "attention_norm": (e,),
                "q": (q, e),
                "k": (kv, e),
                "v": (kv, e),
                "o": (e, q),
                "feed_forward_norm": (e,),
                "gate": (f, e),
                "up": (f, e),
                "down": (e, f),
            }
            if self.attention_bias:
                block |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
            if self.output_bias:
                block["o_bias"] = (e,)
            if self.feed_forward_bias:
                block |= {"gate_bias": (f,), "up_bias": (f,), "down_bias": (e,)}
            if self.qk_norm:
                block |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
        return shapes
