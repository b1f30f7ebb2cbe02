"""Tiny models for tests: a Llama with random weights and a byte-level tokenizer, as a Hugging Face folder or a GGUF
file. Everything follows from the TinyLlama, so the two forms of one hold the same model.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.testing.gguf_writer import GgufTensor, Value, encode_tensor, write_gguf

Weights = dict[str, npt.NDArray[np.float32]]

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2. Ids 3 to 258 are the bytes; pairs of them follow."""
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LETTERS_BY_FREQUENCY: Final = "etaoinshrdlucmfwypvbgkjqxz"


@attrs.frozen(kw_only=True)
class TinyLlama:
    """What a tiny model is like. E, the embedding's width, is heads * head_dim."""

    seed: int = 0
    """Of the random weights."""
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    feed_forward_dim: int = 64
    vocab_size: int = 320
    """259 to 961: three special tokens, the bytes, and as many pairs as are left."""
    context_length: int = 256
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, str | float | int] | None = None
    """As config.json has it: {"rope_type": "llama3", "factor": 8.0, ...}."""
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    chat_template: str | None = CHAT_TEMPLATE

    @property
    def embedding_dim(self) -> int:
        return self.heads * self.head_dim


def write_tiny_llama(folder: Path, tiny: TinyLlama = TinyLlama(), *, shards: int = 1, dtype: str = "F32") -> Path:
    """Write the model as a Hugging Face folder, which is made if it isn't there. Returns the folder.

    ``dtype`` is F32, F16 or BF16. With more than one shard there is an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(tiny))
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    _write_json(folder / "tokenizer.json", _tokenizer(tiny.vocab_size))
    tokenizer_config: dict[str, object] = {"bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2]}
    if tiny.chat_template is not None:
        tokenizer_config["chat_template"] = tiny.chat_template
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    tensors = {name: encode_tensor(dtype, weights) for name, weights in make_weights(tiny).items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    places = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in sorted(set(places.values())):
        write_safetensors(folder / file, {name: tensor for name, tensor in tensors.items() if places[name] == file})
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    return folder


def write_tiny_gguf(
    path: Path, tiny: TinyLlama = TinyLlama(), *, kind: str = "F32", metadata: Mapping[str, Value | None] | None = None
) -> Path:
    """Write the model as a GGUF file. Returns the path.

    Matrices are of ``kind`` (F32, F16, BF16, Q8_0 or Q4_1), vectors F32. ``metadata`` replaces or adds keys; None
    leaves one out.
    """
    weights = make_weights(tiny)
    tensors = {}
    for name, gguf_name in _gguf_names(tiny.layers).items():
        if name in weights:
            array = weights[name]
            for part, heads in (("q_proj", tiny.heads), ("k_proj", tiny.kv_heads)):
                if part in name:
                    array = _interleaved(array, heads)
            tensors[gguf_name] = encode_tensor(kind if array.ndim == 2 else "F32", array)
    values: dict[str, Value] = _gguf_metadata(tiny)
    scaling = dict(tiny.rope_scaling or {})
    if scaling.get("rope_type") == "linear":
        values |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float(scaling["factor"])}
    elif scaling.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = encode_tensor("F32", _llama3_divisors(tiny, scaling))
    for key, value in (metadata or {}).items():
        values.pop(key, None)
        if value is not None:
            values[key] = value
    write_gguf(path, values, tensors)
    return path


def make_weights(tiny: TinyLlama) -> Weights:
    """The weights under their Hugging Face names, (out, in) for matrices."""
    rng = np.random.default_rng(tiny.seed)
    e, f, kv = tiny.embedding_dim, tiny.feed_forward_dim, tiny.kv_heads * tiny.head_dim

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def vector(size: int, mean: float) -> npt.NDArray[np.float32]:
        return (mean + 0.1 * rng.standard_normal(size)).astype(np.float32)

    weights: Weights = {"model.embed_tokens.weight": matrix(tiny.vocab_size, e)}
    for layer in range(tiny.layers):
        block = f"model.layers.{layer}."
        weights[block + "input_layernorm.weight"] = vector(e, 1.0)
        weights[block + "post_attention_layernorm.weight"] = vector(e, 1.0)
        shapes = {"q_proj": (e, e), "k_proj": (kv, e), "v_proj": (kv, e), "o_proj": (e, e)}
        for part, (rows, columns) in shapes.items():
            weights[f"{block}self_attn.{part}.weight"] = matrix(rows, columns)
            if tiny.attention_bias:
                weights[f"{block}self_attn.{part}.bias"] = vector(rows, 0.0)
        for part, (rows, columns) in {"gate_proj": (f, e), "up_proj": (f, e), "down_proj": (e, f)}.items():
            weights[f"{block}mlp.{part}.weight"] = matrix(rows, columns)
            if tiny.mlp_bias:
                weights[f"{block}mlp.{part}.bias"] = vector(rows, 0.0)
    weights["model.norm.weight"] = vector(e, 1.0)
    if not tiny.tied:
        weights["lm_head.weight"] = matrix(tiny.vocab_size, e)
    return weights


def write_safetensors(path: Path, tensors: Mapping[str, GgufTensor]) -> None:
    """Write a safetensors file; the kinds F32, F16 and BF16 are dtypes of both formats."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.data)


def _config(tiny: TinyLlama) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tiny.vocab_size,
        "hidden_size": tiny.embedding_dim,
        "intermediate_size": tiny.feed_forward_dim,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": tiny.context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": tiny.rope_theta,
        "rope_scaling": None if tiny.rope_scaling is None else dict(tiny.rope_scaling),
        "tie_word_embeddings": tiny.tied,
        "attention_bias": tiny.attention_bias,
        "mlp_bias": tiny.mlp_bias,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _gguf_metadata(tiny: TinyLlama) -> dict[str, Value]:
    tokens, merges = _vocabulary(tiny.vocab_size)
    kinds = np.array([3 if token in SPECIAL_TOKENS else 1 for token in tokens], dtype=np.int32)
    values: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": tiny.layers,
        "llama.context_length": tiny.context_length,
        "llama.embedding_length": tiny.embedding_dim,
        "llama.feed_forward_length": tiny.feed_forward_dim,
        "llama.attention.head_count": tiny.heads,
        "llama.attention.head_count_kv": tiny.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": tiny.rope_theta,
        "llama.rope.dimension_count": tiny.head_dim,
        "llama.vocab_size": tiny.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    if tiny.chat_template is not None:
        values["tokenizer.chat_template"] = tiny.chat_template
    return values


def _gguf_names(layers: int) -> dict[str, str]:
    """Hugging Face name -> GGUF name."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{theirs}": f"blk.{layer}.{ours}" for theirs, ours in parts.items()}
    return {f"{a}.{end}": f"{b}.{end}" for a, b in names.items() for end in ("weight", "bias")}


def _interleaved(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from halves (i, i + D / 2) to pairs (2 i, 2 i + 1), as GGUF files have them."""
    by_head = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return by_head.swapaxes(1, 2).reshape(weights.shape)


def _llama3_divisors(tiny: TinyLlama, scaling: Mapping[str, str | float | int]) -> npt.NDArray[np.float32]:
    """What Llama 3.1's rule divides each rotary frequency by, [head_dim / 2]."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    frequencies = tiny.rope_theta ** (-np.arange(0, tiny.head_dim, 2) / tiny.head_dim)
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokens: itself if it is visible, else one from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = itertools.count(256)
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Tokens, and merges "left right"."""
    letters = _byte_letters()
    space = letters[ord(" ")]
    pairs = itertools.chain(
        ((space, letter) for letter in _LETTERS_BY_FREQUENCY), itertools.product(_LETTERS_BY_FREQUENCY, repeat=2)
    )
    merged = list(itertools.islice(pairs, size - len(SPECIAL_TOKENS) - len(letters)))
    tokens = [*SPECIAL_TOKENS, *letters, *("".join(pair) for pair in merged)]
    if len(tokens) != size:
        raise ValueError(f"a tiny vocabulary has 259 to {len(tokens)} tokens, not {size}")
    return tokens, [" ".join(pair) for pair in merged]


def _tokenizer(vocab_size: int) -> dict[str, object]:
    tokens, merges = _vocabulary(vocab_size)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
