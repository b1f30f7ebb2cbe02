"""What config.json and the tensor names of each Hugging Face architecture mean.

Owns: FAMILIES. Must not know: files, tokenizers.

A family is a table entry: a function from the config to a DecoderSpec, and the names of its tensors. Values that a
config leaves out are those of the architecture's own code in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from trioserve.model.fields import Fields
from trioserve.model.files import fault, shown
from trioserve.model.spec import Activation, DecoderSpec, Rope, RopeScaling
from trioserve.model.weights import StoredTensor, layer_count

HEAD: Final = "lm_head.weight"

LLAMA_NAMES: Final[Mapping[str, str]] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": HEAD,
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "o": "model.layers.{}.self_attn.o_proj.weight",
    "feed_forward_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
    "q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "o_bias": "model.layers.{}.self_attn.o_proj.bias",
    "gate_bias": "model.layers.{}.mlp.gate_proj.bias",
    "up_bias": "model.layers.{}.mlp.up_proj.bias",
    "down_bias": "model.layers.{}.mlp.down_proj.bias",
}

_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@attrs.frozen
class HfFamily:
    """One value of ``architectures``."""

    spec: Callable[[Fields, Mapping[str, StoredTensor]], DecoderSpec]
    names: Mapping[str, str]
    """As weights.stored_name takes them."""

    def ignored(self, spec: DecoderSpec, stored: Mapping[str, StoredTensor]) -> set[str]:
        """Tensors that some files have and the architecture's own code doesn't use."""
        # old converters stored the rotary frequencies, which follow from the config
        unused = {name for name in stored if name.endswith(".rotary_emb.inv_freq")}
        return unused | {HEAD} if spec.tied_head else unused


def family_of(config: Fields) -> HfFamily:
    """The family of a config.

    Raises:
        ModelError: its architecture is not in the table, or its weights are quantised.
    """
    architectures = config.value("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise config.fault("architectures", f"is {shown(architectures)}, not a list with a name")
    family = FAMILIES.get(architectures[0])
    if family is None:
        supported = ", ".join(FAMILIES)
        raise fault(config.path, f"architecture {shown(architectures[0])} is not supported (supported: {supported})")
    if quantisation := config.section("quantization_config"):
        method = quantisation.text("quant_method", "unknown")
        raise config.fault("quantization_config", f"asks for {shown(method)}, which is not supported")
    return family


def _llama(config: Fields, stored: Mapping[str, StoredTensor]) -> DecoderSpec:
    biased = config.boolean("attention_bias", False)
    return attrs.evolve(
        _llama_like(config, stored, "llama", kv_heads=None),
        attention_bias=biased,
        output_bias=biased,
        feed_forward_bias=config.boolean("mlp_bias", False),
    )


def _mistral(config: Fields, stored: Mapping[str, StoredTensor]) -> DecoderSpec:
    """As Llama without biases; all layers may have a window: 4096 without the key, none if it is null."""
    spec = _llama_like(config, stored, "mistral", kv_heads=8)
    window = config.integer("sliding_window", None if config.has("sliding_window") else 4096)
    if window is None:
        return spec
    if window < 1:
        raise config.fault("sliding_window", f"is {window}, which is not a sensible number")
    return attrs.evolve(spec, sliding_window=window, sliding_layers=frozenset(range(spec.layers)))


def _llama_like(
    config: Fields, stored: Mapping[str, StoredTensor], architecture: str, kv_heads: int | None
) -> DecoderSpec:
    """The fields that both have. ``kv_heads`` is for configs that don't say; None: as many as heads."""
    heads = config.integer("num_attention_heads")
    if heads < 1:
        raise config.fault("num_attention_heads", f"is {heads}, which is not a sensible number")
    embedding_dim = config.integer("hidden_size")
    head_dim = config.integer("head_dim", embedding_dim // heads)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        context_length=config.integer("max_position_embeddings"),
        layers=layer_count(config, "num_hidden_layers", stored),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads if kv_heads is None else kv_heads),
        head_dim=head_dim,
        embedding_dim=embedding_dim,
        feed_forward_dim=config.integer("intermediate_size"),
        rope=_rope(config, head_dim),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        activation=_activation(config),
        tied_head=config.boolean("tie_word_embeddings", False),
    )


def _activation(config: Fields) -> Activation:
    name = config.text("hidden_act", "silu")
    activation = _ACTIVATIONS.get(name)
    if activation is None:
        raise config.fault("hidden_act", f"{shown(name)} is not supported (supported: {', '.join(_ACTIVATIONS)})")
    return activation


def _rope(config: Fields, head_dim: int) -> Rope:
    # transformers 5 writes everything into rope_parameters; before it was rope_theta and rope_scaling
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.positive("rope_theta", 10000.0)
    partial = config.number("partial_rotary_factor", 1.0)
    if parameters is not None:
        theta = parameters.positive("rope_theta", theta)
        partial = parameters.number("partial_rotary_factor", partial)
    if partial != 1.0:
        raise config.fault("partial_rotary_factor", f"is {partial}; only 1 is supported")
    scaling = None if parameters is None else _rope_scaling(parameters, config.integer("max_position_embeddings"))
    return Rope(theta=theta, dim=head_dim, scaling=scaling)


def _rope_scaling(parameters: Fields, context_length: int) -> RopeScaling | None:
    kind = parameters.text("rope_type", None) or parameters.text("type", "default")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=parameters.positive("factor"))
    if kind != "llama3":
        supported = "default, linear, llama3"
        raise parameters.fault("rope_type", f"{shown(kind)} is not supported (supported: {supported})")
    low, high = parameters.positive("low_freq_factor"), parameters.positive("high_freq_factor")
    original = parameters.integer("original_max_position_embeddings", context_length)
    if not low < high:
        raise parameters.fault("high_freq_factor", f"is {high}, which is not above low_freq_factor ({low})")
    if original < 1:
        raise parameters.fault("original_max_position_embeddings", f"is {original}, which is not a sensible number")
    return RopeScaling(
        kind="llama3",
        factor=parameters.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_length=original,
    )


FAMILIES: Final[Mapping[str, HfFamily]] = {
    "LlamaForCausalLM": HfFamily(_llama, LLAMA_NAMES),
    "MistralForCausalLM": HfFamily(_mistral, LLAMA_NAMES),
}
"""The first of a config's architectures -> its family."""
