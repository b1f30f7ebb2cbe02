"""From GGUF metadata to a DecoderSpec."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import numpy as np
import pytest

from trioserve.errors import ModelError
from trioserve.model.fields import Fields
from trioserve.model.files import naming
from trioserve.model.gguf_families import FAMILIES, family_of
from trioserve.model.gguf_format import read_gguf
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.model.weights import match_weights
from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf
from trioserve.testing.gguf_writer import Value, encode_tensor, write_gguf

DEFAULT = TinyLlama()
F32_EPS = float(np.float32(1e-5))


def spec_of(path: Path) -> DecoderSpec:
    """The spec of a file, after all its tensors have been matched with it."""
    with read_gguf(path) as file, naming(path):
        fields = Fields(path, file.metadata)
        family = family_of(fields)
        spec = family.spec(file, fields)
        match_weights(path, spec, file.tensors, family.names, family.ignored)
        return spec


def tiny_spec(folder: Path, tiny: TinyLlama = DEFAULT, **metadata: Value | None) -> DecoderSpec:
    """The spec of a tiny file with some llama.* keys changed; ``_`` in a name is a dot if doubled."""
    changes = {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return spec_of(write_tiny_gguf(folder / "a.gguf", tiny, metadata=changes))


def error(folder: Path, **metadata: Value | None) -> str:
    with pytest.raises(ModelError) as caught:
        tiny_spec(folder, **metadata)
    text = str(caught.value)
    assert text.startswith(f"{folder / 'a.gguf'}: ")
    return text.removeprefix(f"{folder / 'a.gguf'}: ")


def test_a_llama(tmp_path: Path) -> None:
    tiny = TinyLlama(layers=3, heads=4, kv_heads=2, head_dim=8, rope_theta=100000.0, context_length=99)

    assert tiny_spec(tmp_path, tiny) == DecoderSpec(
        architecture="llama",
        vocab_size=320,
        context_length=99,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=8,
        embedding_dim=32,
        feed_forward_dim=64,
        rope=Rope(theta=100000.0, dim=8, interleaved=True),
        norm_eps=F32_EPS,
    )


def test_a_head_that_is_not_there_is_the_embedding(tmp_path: Path) -> None:
    assert tiny_spec(tmp_path, TinyLlama(tied=True)).tied_head


def test_biases_are_there_if_the_file_has_them(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, TinyLlama(attention_bias=True))
    assert (spec.attention_bias, spec.output_bias, spec.feed_forward_bias) == (True, True, False)

    spec = tiny_spec(tmp_path, TinyLlama(mlp_bias=True))
    assert (spec.attention_bias, spec.output_bias, spec.feed_forward_bias) == (False, False, True)


def test_keys_that_may_be_left_out(tmp_path: Path) -> None:
    keys = ("attention__head_count_kv", "rope__freq_base", "rope__dimension_count", "vocab_size")

    spec = tiny_spec(tmp_path, TinyLlama(kv_heads=4), **dict.fromkeys(keys))

    assert (spec.kv_heads, spec.rope.theta, spec.rope.dim, spec.vocab_size) == (4, 10000.0, 8, 320)


def test_a_number_given_once_per_layer(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, attention__head_count_kv=np.array([2, 2], dtype=np.int32))
    assert spec.kv_heads == 2

    for counts in ([2, 1], [2, 2, 2], [2.0, 2.0]):
        kind = np.float32 if isinstance(counts[0], float) else np.int32
        text = error(tmp_path, attention__head_count_kv=np.array(counts, dtype=kind))
        assert text == "llama.attention.head_count_kv differs from layer to layer, which is not supported"


def test_heads_may_be_of_another_width_than_the_embedding_says(tmp_path: Path) -> None:
    text = error(tmp_path, attention__key_length=16, attention__value_length=16)

    assert text == "the tensor 'blk.0.attn_q.weight' has the shape (32, 32) instead of (64, 32)"


def test_a_window_of_all_layers(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, attention__sliding_window=16)
    assert (spec.sliding_window, spec.sliding_layers) == (16, {0, 1})

    assert tiny_spec(tmp_path, attention__sliding_window=0).sliding_window is None


# --- rope


@pytest.mark.parametrize(
    "metadata", [{"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"rope__scale_linear": 4.0}]
)
def test_linear_rope_scaling(tmp_path: Path, metadata: dict[str, Value]) -> None:
    assert tiny_spec(tmp_path, **metadata).rope.scaling == RopeScaling(kind="linear", factor=4.0)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_a_table_of_rope_factors(tmp_path: Path) -> None:
    tiny = TinyLlama(rope_scaling=LLAMA3)

    scaling = tiny_spec(tmp_path, tiny).rope.scaling

    # turns of each frequency within 64 tokens: 10.2 and 1.02 and less; above 4 kept, below 1 divided by 8
    assert scaling is not None
    assert scaling.kind == "table"
    smooth = (64 / (2 * math.pi * 10) - 1) / 3
    assert scaling.factors == pytest.approx((1.0, 1 / ((1 - smooth) / 8 + smooth), 8.0, 8.0))


def test_a_table_and_a_factor_multiply(tmp_path: Path) -> None:
    plain = tiny_spec(tmp_path, TinyLlama(rope_scaling=LLAMA3)).rope.scaling
    both = tiny_spec(tmp_path, TinyLlama(rope_scaling=LLAMA3), rope__scale_linear=2.0).rope.scaling

    assert plain is not None
    assert both == attrs.evolve(plain, factors=tuple(2 * factor for factor in plain.factors))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.array([1.0, 0.0, 1.0, 1.0]), "has values that are not positive numbers"),
        (np.array([1.0, np.nan, 1.0, 1.0]), "has values that are not positive numbers"),
        (np.ones((2, 2)), "has the shape (2, 2) instead of one dimension"),
        (np.ones(3), "3 rope factors for 4 frequencies"),
    ],
)
def test_a_broken_table_of_rope_factors(tmp_path: Path, factors: np.ndarray, message: str) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf")
    with read_gguf(path) as file:
        tensors = {name: encode_tensor("F32", tensor.float32()) for name, tensor in file.tensors.items()}
        tensors["rope_freqs.weight"] = encode_tensor("F32", factors.astype(np.float32))
        write_gguf(tmp_path / "b.gguf", dict(file.metadata), tensors)

    with pytest.raises(ModelError) as caught:
        spec_of(tmp_path / "b.gguf")

    assert str(caught.value).startswith(f"{tmp_path / 'b.gguf'}: ")
    assert str(caught.value).endswith(message)


# --- what is refused


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, "llama.expert_count is not 0: mixtures of experts are not supported"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": "2"}, "llama.block_count is '2', not an integer"),
        ({"block_count": 0}, "llama.block_count is 0, but there are 21 tensors"),
        ({"block_count": 2**31 - 1}, f"llama.block_count is {2**31 - 1}, but there are 21 tensors"),
        ({"block_count": 3}, "the tensor 'blk.2.attn_norm.weight' is missing"),
        ({"block_count": 1}, "the tensor 'blk.1.attn_k.weight' is not part of a llama model as we know it"),
        ({"attention__head_count": 0}, "llama.attention.head_count is 0, which is not a sensible number"),
        ({"attention__head_count": 3}, "3 heads can't share 2 KV heads evenly"),
        ({"attention__head_count": 10**6}, "the model's head_dim is 0, which is not a sensible number"),
        ({"attention__head_count_kv": -1}, "llama.attention.head_count_kv is -1, which is not a sensible number"),
        (
            {"attention__value_length": 4},
            "llama.attention.value_length differs from key_length, which is not supported",
        ),
        ({"context_length": -1}, "the model's context_length is -1, which is not a sensible number"),
        ({"embedding_length": 64}, "the tensor 'token_embd.weight' has the shape (320, 32) instead of (320, 64)"),
        ({"vocab_size": 321}, "llama.vocab_size is 321, but the embedding has 320 rows"),
        ({"rope__freq_base": 0.0}, "llama.rope.freq_base is 0.0, which is not a positive number"),
        ({"rope__dimension_count": 9}, "rope over 9 of 8 dimensions is not possible"),
        ({"rope__scaling__type": "yarn"}, "llama.rope.scaling.type 'yarn' is not supported (supported: none, linear)"),
        ({"rope__scaling__type": "linear"}, "llama.rope.scaling.factor is missing"),
        ({"rope__scaling__attn_factor": 0.5}, "llama.rope.scaling.attn_factor is not 1, which is not supported"),
        (
            {"attention__layer_norm_rms_epsilon": -1.0},
            "the model's norm_eps is -1.0, which is not a positive number",
        ),
    ],
)
def test_metadata_that_can_not_be_run(tmp_path: Path, metadata: dict[str, Value | None], message: str) -> None:
    assert error(tmp_path, **metadata) == message


@pytest.mark.parametrize("name", ["qwen2", "gemma3", ""])
def test_another_architecture_is_named(tmp_path: Path, name: str) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf", metadata={"general.architecture": name})

    with pytest.raises(ModelError) as caught:
        spec_of(path)

    assert str(caught.value) == f"{path}: architecture {name!r} is not supported (supported: llama)"


def test_tensors_of_a_kind_that_can_not_be_decoded_are_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf")
    data = bytearray(path.read_bytes())
    # F32 to I32, which is as large
    position = data.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    data[position] = 26
    path.write_bytes(data)

    with pytest.raises(ModelError, match=r"'token_embd\.weight' is of kind I32, which is not supported"):
        spec_of(path)


def test_each_family_names_every_weight_that_a_spec_can_have(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, TinyLlama(attention_bias=True, mlp_bias=True))
    parts = {name.split(".")[-1] for name in spec.weight_shapes()}

    for family in FAMILIES.values():
        assert parts <= set(family.names)


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    assert spec_of(default_model_path) == DecoderSpec(
        architecture="llama",
        vocab_size=49152,
        context_length=8192,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        embedding_dim=576,
        feed_forward_dim=1536,
        rope=Rope(theta=100000.0, dim=64, interleaved=True),
        norm_eps=F32_EPS,
        tied_head=True,
    )
