"""From a Hugging Face config to a DecoderSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from trioserve.errors import ModelError
from trioserve.model.fields import Fields
from trioserve.model.files import naming
from trioserve.model.hf_families import FAMILIES, family_of
from trioserve.model.safetensors import read_checkpoint
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.model.weights import match_weights
from trioserve.testing.checkpoints import TinyLlama, make_weights, write_safetensors, write_tiny_llama
from trioserve.testing.gguf_writer import encode_tensor

DEFAULT = TinyLlama()
LEFT_OUT = object()
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def spec_of(folder: Path) -> DecoderSpec:
    """The spec of a folder, after all its tensors have been matched with it."""
    config = Fields(folder / "config.json", json.loads((folder / "config.json").read_text()))
    checkpoint = read_checkpoint(folder)
    try:
        with naming(config.path):
            family = family_of(config)
            spec = family.spec(config, checkpoint.tensors)
            match_weights(folder, spec, checkpoint.tensors, family.names, family.ignored(spec, checkpoint.tensors))
        return spec
    finally:
        checkpoint.close()


def tiny_spec(folder: Path, changes: Mapping[str, object], tiny: TinyLlama = DEFAULT) -> DecoderSpec:
    write_tiny_llama(folder, tiny)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not LEFT_OUT}))
    return spec_of(folder)


def mistral(**changes: object) -> dict[str, object]:
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **changes}


def test_a_llama(tmp_path: Path) -> None:
    assert tiny_spec(tmp_path, {}, TinyLlama(layers=3, rope_theta=5e5)) == DecoderSpec(
        architecture="llama",
        vocab_size=320,
        context_length=256,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=8,
        embedding_dim=32,
        feed_forward_dim=64,
        rope=Rope(theta=5e5, dim=8, interleaved=False),
        norm_eps=1e-5,
    )


def test_keys_that_may_be_left_out(tmp_path: Path) -> None:
    optional = "num_key_value_heads head_dim hidden_act rms_norm_eps rope_theta rope_scaling tie_word_embeddings"
    optional += " attention_bias mlp_bias"

    spec = tiny_spec(tmp_path, dict.fromkeys(optional.split(), LEFT_OUT), TinyLlama(kv_heads=4))

    assert (spec.kv_heads, spec.head_dim, spec.activation, spec.norm_eps) == (4, 8, "silu", 1e-6)
    assert spec.rope == Rope(theta=10000.0, dim=8)
    flags = (spec.tied_head, spec.attention_bias, spec.output_bias, spec.feed_forward_bias)
    assert flags == (False, False, False, False)


def test_biases(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, {}, TinyLlama(attention_bias=True, mlp_bias=True))

    assert spec.attention_bias
    assert spec.output_bias
    assert spec.feed_forward_bias


def test_a_tied_head_is_not_read_even_if_it_is_stored(tmp_path: Path) -> None:
    assert tiny_spec(tmp_path / "without", {}, TinyLlama(tied=True)).tied_head
    assert tiny_spec(tmp_path / "with", {"tie_word_embeddings": True}, TinyLlama(tied=False)).tied_head


def test_a_head_that_is_not_tied_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the tensor 'lm_head\.weight' is missing$"):
        tiny_spec(tmp_path, {"tie_word_embeddings": False}, TinyLlama(tied=True))


@pytest.mark.parametrize(("name", "expected"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh")])
def test_activations(tmp_path: Path, name: str, expected: str) -> None:
    assert tiny_spec(tmp_path, {"hidden_act": name}).activation == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 7.0, "rope_scaling": LLAMA3},
        {"rope_theta": LEFT_OUT, "rope_scaling": LEFT_OUT, "rope_parameters": {"rope_theta": 7.0, **LLAMA3}},
    ],
)
def test_llama3_rope_in_the_old_and_the_new_form(tmp_path: Path, changes: dict[str, object]) -> None:
    scaling = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=64
    )

    assert tiny_spec(tmp_path, changes).rope == Rope(theta=7.0, dim=8, scaling=scaling)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "linear", "factor": 2}, RopeScaling(kind="linear", factor=2.0)),
        ({"type": "linear", "factor": 2.0}, RopeScaling(kind="linear", factor=2.0)),
        ({"rope_type": "default"}, None),
        ({"rope_type": "default", "rope_theta": 10000.0}, None),
        (None, None),
    ],
)
def test_other_rope_scaling(tmp_path: Path, scaling: object, expected: RopeScaling | None) -> None:
    assert tiny_spec(tmp_path, {"rope_scaling": scaling}).rope.scaling == expected


@pytest.mark.parametrize(
    ("changes", "window"), [({"sliding_window": 16}, 16), ({"sliding_window": None}, None), ({}, 4096)]
)
def test_a_mistral_has_a_window_in_all_layers(tmp_path: Path, changes: dict[str, object], window: int | None) -> None:
    spec = tiny_spec(tmp_path, mistral(**changes))

    assert spec.architecture == "mistral"
    assert spec.sliding_window == window
    assert spec.sliding_layers == (set() if window is None else {0, 1})


def test_a_mistral_has_8_kv_heads_if_it_does_not_say(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, mistral(num_key_value_heads=LEFT_OUT), TinyLlama(heads=8, kv_heads=8))

    assert spec.kv_heads == 8


def test_rotary_frequencies_that_old_converters_stored_are_left_alone(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    weights = make_weights(TinyLlama())
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = weights["model.norm.weight"][:4]
    write_safetensors(tmp_path / "model.safetensors", {n: encode_tensor("F32", w) for n, w in weights.items()})

    spec_of(tmp_path)


def test_a_tensor_that_no_llama_has_is_named(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    weights = make_weights(TinyLlama())
    weights["model.layers.0.self_attn.q_norm.weight"] = weights["model.norm.weight"][:8]
    write_safetensors(tmp_path / "model.safetensors", {n: encode_tensor("F32", w) for n, w in weights.items()})

    with pytest.raises(ModelError, match=r"'model\.layers\.0\.self_attn\.q_norm\.weight' is not part of a llama model"):
        spec_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            "architecture 'Qwen2ForCausalLM' is not supported (supported: LlamaForCausalLM, MistralForCausalLM)",
        ),
        ({"architectures": LEFT_OUT}, "architectures is None, not a list with a name"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', not a list with a name"),
        ({"architectures": [1]}, "architectures is [1], not a list with a name"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config asks for 'gptq', which is not supported",
        ),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2', not an integer"),
        ({"num_hidden_layers": 10**9}, f"num_hidden_layers is {10**9}, but there are 21 tensors"),
        ({"num_hidden_layers": 3}, "the tensor 'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, which is not a sensible number"),
        ({"num_attention_heads": 3}, "3 heads can't share 2 KV heads evenly"),
        ({"num_key_value_heads": 0}, "the model's kv_heads is 0, which is not a sensible number"),
        ({"hidden_size": LEFT_OUT}, "hidden_size is missing"),
        ({"head_dim": 7}, "rope over 7 of 7 dimensions is not possible"),
        ({"vocab_size": 321}, "the tensor 'model.embed_tokens.weight' has the shape (320, 32) instead of (321, 32)"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0.0, which is not a positive number"),
        ({"rope_theta": "10000"}, "rope_theta is '10000', not a number"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported (supported: silu, "),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only 1 is supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type 'yarn' is not supported (supported: default"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling.rope_type 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": -1}},
            "rope_scaling.factor is -1.0, which is not a positive",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor is 1.0, which is not above",
        ),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
            "rope_scaling.original_max_position_embeddings is 0, which is not a sensible number",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling is not an object"),
        (mistral(sliding_window=0), "sliding_window is 0, which is not a sensible number"),
        (mistral(sliding_window="4"), "sliding_window is '4', not an integer"),
    ],
)
def test_a_config_that_can_not_be_run(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        tiny_spec(tmp_path, changes)

    text = str(caught.value)
    assert text.startswith(str(tmp_path))
    assert message in text
    assert "\n" not in text


def test_each_family_names_every_weight_that_a_spec_can_have(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, {}, TinyLlama(attention_bias=True, mlp_bias=True))
    parts = {name.split(".")[-1] for name in spec.weight_shapes()}

    for family in FAMILIES.values():
        assert parts <= set(family.names)
