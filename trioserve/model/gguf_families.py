"""What the metadata and the tensor names of each GGUF architecture mean.

Owns: FAMILIES. Must not know: the file format, tokenizers.

A family is a table entry: a function from metadata to a DecoderSpec, and the names of its tensors. To add one, add
an entry; a device runs whatever DecoderSpec comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import numpy as np

from trioserve.model.fields import Fields
from trioserve.model.files import fault, shown
from trioserve.model.gguf_format import GgufFile
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.model.weights import check_kind, layer_count, tensor_fault

ROPE_FACTORS: Final = "rope_freqs.weight"
"""The tensor with one divisor per rotary frequency, in files of models with Llama 3.1's rope."""

LLAMA_NAMES: Final[Mapping[str, str]] = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "o": "blk.{}.attn_output.weight",
    "feed_forward_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
    "o_bias": "blk.{}.attn_output.bias",
    "gate_bias": "blk.{}.ffn_gate.bias",
    "up_bias": "blk.{}.ffn_up.bias",
    "down_bias": "blk.{}.ffn_down.bias",
}


@attrs.frozen
class GgufFamily:
    """One value of general.architecture."""

    spec: Callable[[GgufFile, Fields], DecoderSpec]
    names: Mapping[str, str]
    """As weights.stored_name takes them."""
    ignored: frozenset[str] = frozenset()
    """Tensors that are not weights of the decoder: what they say is in the spec."""


def family_of(fields: Fields) -> GgufFamily:
    """The family of a file.

    Raises:
        ModelError: its architecture is not in the table.
    """
    architecture = fields.text("general.architecture")
    family = FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(FAMILIES)
        raise fault(fields.path, f"architecture {shown(architecture)} is not supported (supported: {supported})")
    return family


def _llama(file: GgufFile, fields: Fields) -> DecoderSpec:
    """Llama 1 to 3, SmolLM and others of the same shape. Mistral's files come under this name as well."""
    if fields.integer("llama.expert_count", 0) > 0:
        raise fields.fault("llama.expert_count", "is not 0: mixtures of experts are not supported")
    layers = layer_count(fields, "llama.block_count", file.tensors)
    heads = _per_layer(fields, "llama.attention.head_count", layers)
    embedding_dim = fields.integer("llama.embedding_length")
    head_dim = fields.integer("llama.attention.key_length", embedding_dim // heads)
    if fields.integer("llama.attention.value_length", head_dim) != head_dim:
        raise fields.fault("llama.attention.value_length", "differs from key_length, which is not supported")
    context_length = fields.integer("llama.context_length")
    window = fields.integer("llama.attention.sliding_window", 0)
    has = file.tensors.__contains__
    return DecoderSpec(
        architecture="llama",
        vocab_size=_vocab_size(file, fields),
        context_length=context_length,
        layers=layers,
        heads=heads,
        kv_heads=_per_layer(fields, "llama.attention.head_count_kv", layers, heads),
        head_dim=head_dim,
        embedding_dim=embedding_dim,
        feed_forward_dim=_per_layer(fields, "llama.feed_forward_length", layers),
        rope=_llama_rope(file, fields, head_dim),
        norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        tied_head=not has("output.weight"),
        attention_bias=has("blk.0.attn_q.bias"),
        output_bias=has("blk.0.attn_output.bias"),
        feed_forward_bias=has("blk.0.ffn_gate.bias"),
        sliding_window=window if window > 0 else None,
        sliding_layers=frozenset(range(layers if window > 0 else 0)),
    )


def _llama_rope(file: GgufFile, fields: Fields, head_dim: int) -> Rope:
    dim = fields.integer("llama.rope.dimension_count", head_dim)
    return Rope(
        theta=fields.positive("llama.rope.freq_base", 10000.0),
        dim=dim,
        # the converters reorder the rows of q and k to pairs (2i, 2i + 1)
        interleaved=True,
        scaling=_rope_scaling(file, fields),
    )


def _rope_scaling(file: GgufFile, fields: Fields) -> RopeScaling | None:
    kind = fields.text("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.fault("llama.rope.scaling.type", f"{kind!r} is not supported (supported: none, linear)")
    if fields.number("llama.rope.scaling.attn_factor", 1.0) != 1.0:
        raise fields.fault("llama.rope.scaling.attn_factor", "is not 1, which is not supported")
    # the older of the two keys for the same thing; without a type a factor was always linear
    factor = fields.positive("llama.rope.scale_linear", 1.0)
    if kind == "linear":
        factor = fields.positive("llama.rope.scaling.factor")
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None if factor == 1.0 else RopeScaling(kind="linear", factor=factor)
    check_kind(ROPE_FACTORS, tensor)
    if len(tensor.shape) != 1:
        raise tensor_fault(tensor, ROPE_FACTORS, f"has the shape {tensor.shape} instead of one dimension")
    factors = factor * tensor.float32().astype(np.float64)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise tensor_fault(tensor, ROPE_FACTORS, "has values that are not positive numbers")
    return RopeScaling(kind="table", factors=tuple(factors.tolist()))


def _vocab_size(file: GgufFile, fields: Fields) -> int:
    """Rows of the embedding. llama.vocab_size only repeats them; when it doesn't, one of the two is wrong."""
    embedding = file.tensors.get(LLAMA_NAMES["embedding"])
    if embedding is None:
        raise fields.fault(f"the tensor {LLAMA_NAMES['embedding']!r}", "is missing")
    rows = embedding.shape[0]
    claimed = fields.integer("llama.vocab_size", rows)
    if claimed != rows:
        raise fields.fault("llama.vocab_size", f"is {claimed}, but the embedding has {rows} rows")
    return rows


def _per_layer(fields: Fields, key: str, layers: int, default: int | None = None) -> int:
    """A number that some files give once per layer. A DecoderSpec has it once, so all must be equal."""
    value = fields.value(key)
    if isinstance(value, np.ndarray):
        if value.shape != (layers,) or not np.issubdtype(value.dtype, np.integer) or (value != value[0]).any():
            raise fields.fault(key, "differs from layer to layer, which is not supported")
        number = int(value[0])
    elif default is None:
        number = fields.integer(key)
    else:
        number = fields.integer(key, default)
    if number < 1:
        raise fields.fault(key, f"is {number}, which is not a sensible number")
    return number


FAMILIES: Final[Mapping[str, GgufFamily]] = {
    "llama": GgufFamily(_llama, LLAMA_NAMES, frozenset({ROPE_FACTORS})),
}
"""general.architecture -> its family."""
