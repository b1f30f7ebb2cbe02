"""Makes tests/device/data with transformers: what the reference device must compute. ``nox -s oracle`` runs it.

Needs the dependency group ``oracle`` (and accelerate, which transformers asks for to read GGUF files). The tests need
neither. An argument is the path of the default model's file, if it isn't to be found in the cache.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import transformers

from trioserve.model.cache import cache_dir
from trioserve.model.sources import resolve
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.testing.checkpoints import TinyLlama, write_tiny_llama
from trioserve.testing.weights import RandomWeights

DATA = Path(__file__).parent / "data"

PLAIN_PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are:\n1.",
    "In 1969,",
    "Q: What is the largest planet in the solar system?\nA:",
    "import numpy as np\n\n# Compute the mean of each column\n",
    "Water boils at",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
    "La capitale de l'Italie est",
]
CHAT_PROMPTS: list[list[tuple[str, str]]] = [
    [("user", "What is gravity?")],
    [("user", "Write a haiku about autumn leaves.")],
    [("user", "List three primary colours.")],
    [("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Hi!"), ("assistant", "Hello! How can I help you?"), ("user", "Tell me a joke about cats.")],
    [("user", "Translate 'good morning' into Spanish.")],
    [("user", "What is 12 times 11? Show your work.")],
    [("system", "You are a pirate."), ("user", "Where did you hide the treasure?")],
    [("user", "Explain recursion to a five-year-old.")],
    [("user", "Give me a recipe for pancakes with exact amounts.")],
    [("user", "Write a Python function that reverses a string.")],
    [("user", "Summarise the plot of Romeo and Juliet in two sentences.")],
]
NEW_TOKENS = 48
TOP_LOGITS = 32

TINY = DecoderSpec(
    architecture="tiny",
    vocab_size=97,
    context_length=128,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=8,
    embedding_dim=48,
    feed_forward_dim=52,
    rope=Rope(dim=8),
    norm_eps=1e-5,
)
TINY_TOKENS = 40
TINY_POSITIONS = (0, 20, TINY_TOKENS - 1)
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=48)
LLAMA3_CONFIG: dict[str, str | float | int] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}

CHECKPOINTS = [
    TinyLlama(seed=1),
    TinyLlama(seed=2, tied=True, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    TinyLlama(seed=3, kv_heads=1, rope_theta=500.0, rope_scaling=LLAMA3_CONFIG),
    TinyLlama(seed=4, kv_heads=4, attention_bias=True, mlp_bias=True),
]


def main() -> None:
    DATA.mkdir(exist_ok=True)
    write("expected_specs.json", {"models": [of_spec(*case) for case in spec_cases()]})
    write("expected_checkpoints.json", {"models": [of_checkpoint(tiny) for tiny in CHECKPOINTS]})
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else resolve("smollm2", cache=cache_dir(os.environ)).path
    write("expected_smollm2.json", of_default_model(path))


def write(name: str, content: dict[str, Any]) -> None:
    text = json.dumps({"made_with": f"transformers {transformers.__version__}"} | content, separators=(",", ":"))
    # one model or prompt a line, so that a change can be read
    (DATA / name).write_text(text.replace('{"name"', '\n{"name"') + "\n", encoding="utf-8")


def spec_cases() -> list[tuple[str, DecoderSpec, Any, dict[str, object]]]:
    """Name, spec, the architecture's config class, and what its config says beyond sizes."""
    t = transformers
    evolve = attrs.evolve
    return [
        ("llama", TINY, t.LlamaConfig, {}),
        ("head_dim is not E / H", evolve(TINY, embedding_dim=36, head_dim=10, rope=Rope(dim=10)), t.LlamaConfig, {}),
        ("tied", evolve(TINY, tied_head=True), t.LlamaConfig, {}),
        (
            "linear",
            evolve(TINY, rope=Rope(dim=8, scaling=RopeScaling(kind="linear", factor=4.0))),
            t.LlamaConfig,
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ),
        (
            "llama3",
            evolve(TINY, rope=Rope(dim=8, theta=500.0, scaling=LLAMA3)),
            t.LlamaConfig,
            {"rope_scaling": dict(LLAMA3_CONFIG)},  # transformers adds to it
        ),
        (
            "all biases",
            evolve(TINY, attention_bias=True, output_bias=True, feed_forward_bias=True),
            t.LlamaConfig,
            {"attention_bias": True, "mlp_bias": True},
        ),
        ("qwen2: bias of q, k and v", evolve(TINY, attention_bias=True), t.Qwen2Config, {}),
        ("qwen3: norms of q and k", evolve(TINY, qk_norm=True), t.Qwen3Config, {}),
        (
            "mistral: a window",
            evolve(TINY, sliding_window=5, sliding_layers=frozenset({0, 1})),
            t.MistralConfig,
            {"sliding_window": 5},
        ),
        (
            "granite: scales",
            evolve(TINY, embedding_scale=6.0, attention_scale=0.9, residual_scale=0.4, logit_scale=0.125),
            t.GraniteConfig,
            {
                "embedding_multiplier": 6.0,
                "attention_multiplier": 0.9,
                "residual_multiplier": 0.4,
                "logits_scaling": 8.0,
            },
        ),
        (
            "gemma: gelu, scaled embedding",
            evolve(TINY, activation="gelu_tanh", embedding_scale=48**0.5, tied_head=True),
            t.GemmaConfig,
            {"hidden_activation": "gelu_pytorch_tanh"},
        ),
        (
            "glm: interleaved rope over part of the head",
            evolve(TINY, rope=Rope(dim=4, interleaved=True)),
            t.GlmConfig,
            {"partial_rotary_factor": 0.5, "attention_bias": False, "pad_token_id": 0},
        ),
    ]


def of_spec(name: str, spec: DecoderSpec, config_class: Any, extra: dict[str, object]) -> dict[str, Any]:
    config = config_class(
        vocab_size=spec.vocab_size,
        hidden_size=spec.embedding_dim,
        intermediate_size=spec.feed_forward_dim,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context_length,
        rms_norm_eps=spec.norm_eps,
        rope_theta=spec.rope.theta,
        tie_word_embeddings=spec.tied_head,
        attn_implementation="eager",
        **extra,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    weights = RandomWeights(spec)
    state = state_dict(spec, lambda weight: torch.from_numpy(weights.float32(weight)), config.model_type)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if spec.tied_head else set()), missing
    fields = attrs.asdict(spec, filter=lambda field, value: value != field.default)
    if "sliding_layers" in fields:
        fields["sliding_layers"] = sorted(fields["sliding_layers"])
    return {"name": name, "spec": fields} | tiny_answer(model, spec.vocab_size)


def state_dict(spec: DecoderSpec, get: Callable[[str], torch.Tensor], model_type: str) -> dict[str, torch.Tensor]:
    """The weights of a spec under the names, and in the forms, of a transformers architecture."""
    parts = {
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
        **{name: f"self_attn.{name}_proj" for name in "qkvo"},
        **{name: f"self_attn.{name}" for name in ("q_norm", "k_norm")},
        **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    }
    whole = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
    state = {}
    for name in spec.weight_shapes():
        tensor = get(name)
        if model_type == "gemma" and "norm" in name:
            tensor = tensor - 1  # gemma's norms multiply by 1 + weight
        if name in whole:
            state[f"{whole[name]}.weight"] = tensor
            continue
        _, layer, part = name.split(".")
        kind = "bias" if part.endswith("_bias") else "weight"
        state[f"model.layers.{layer}.{parts[part.removesuffix('_bias')]}.{kind}"] = tensor
    if model_type == "glm":  # gate and up are one matrix
        for i in range(spec.layers):
            mlp = f"model.layers.{i}.mlp."
            halves = [state.pop(f"{mlp}{part}_proj.weight") for part in ("gate", "up")]
            state[f"{mlp}gate_up_proj.weight"] = torch.cat(halves)
    return state


def of_checkpoint(tiny: TinyLlama) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_llama(Path(folder), tiny)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    fields = attrs.asdict(tiny, filter=lambda field, value: value != field.default)
    return {"name": f"seed {tiny.seed}", "tiny": fields} | tiny_answer(model, tiny.vocab_size)


def tiny_answer(model: Any, vocab_size: int) -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(0, vocab_size, TINY_TOKENS).tolist()
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0]
    rows = [[round(x, 6) for x in logits[position].tolist()] for position in TINY_POSITIONS]
    return {"tokens": tokens, "positions": TINY_POSITIONS, "logits": rows}


def of_default_model(path: Path) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None  # no token ends an answer
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids = [tokenizer(text)["input_ids"] for text in PLAIN_PROMPTS]
    for chat in CHAT_PROMPTS:
        messages = [{"role": role, "content": content} for role, content in chat]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    prompts = [continued(model, prompt) for prompt in ids]
    return {"file": path.name, "smallest_gap": min(p["smallest_gap"] for p in prompts), "prompts": prompts}


def continued(model: Any, prompt: list[int]) -> dict[str, Any]:
    """The greedy continuation, past any end of sequence, and the largest logits after the prompt."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].topk(TOP_LOGITS) for logits in output.logits]
    answer = output.sequences[0, len(prompt) :].tolist()
    assert answer == [int(top.indices[0]) for top in best]
    gaps = [(top.values[0] - top.values[1]).item() for top in best]
    return {
        "name": f"{len(prompt)} tokens",
        "prompt": prompt,
        "answer": answer,
        "smallest_gap": round(min(gaps), 6),
        "top_ids": best[0].indices.tolist(),
        "top_logits": [round(x, 5) for x in best[0].values.tolist()],
    }


if __name__ == "__main__":
    main()
