"""What 8-bit activations cost: the CPU device against the reference device and transformers, with the default model.

The tests print what they found (``pytest -rP``); docs/fidelity.rst says what it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from trioserve_kernels.cpu.library import library_path

from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.model.load import load_model
from trioserve.model.loaded import LoadedModel
from trioserve.testing.driver import generate_greedily
from trioserve.testing.fidelity import all_logits, compare, greedy_agreement

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(library_path() is None, reason="there are no native kernels"),
]

DATA = Path(__file__).parent / "data"
KNOWN = json.loads((DATA / "expected_smollm2.json").read_text(encoding="utf-8"))["prompts"]


@pytest.fixture(scope="module")
def default_model(default_model_path: Path) -> Iterator[LoadedModel]:
    model = load_model(default_model_path)
    yield model
    model.weights.close()


@pytest.fixture(scope="module")
def native(default_model: LoadedModel) -> Iterator[CpuDevice]:
    device = CpuDevice.load(default_model, page_count=256, context_length=1024, threads=2)
    yield device
    device.close()


def test_the_perplexity_of_a_text_is_the_references(default_model: LoadedModel, native: CpuDevice) -> None:
    text = (DATA / "text.txt").read_text(encoding="utf-8")
    tokens = default_model.tokenizer.encode(text, add_special=True)
    reference = ReferenceDevice.load(default_model, page_size=16, page_count=64)
    difference = compare(all_logits(native, tokens), all_logits(reference, tokens), tokens)
    reference.close()
    print(f"{len(tokens)} tokens: {difference}")  # noqa: T201
    assert abs(difference.perplexity / difference.reference_perplexity - 1) < 0.005
    assert difference.logit_error < 0.05
    assert difference.divergence < 0.01
    assert difference.agreement > 0.93


def test_most_tokens_of_the_answers_of_transformers_are_its_most_likely_ones(native: CpuDevice) -> None:
    agreed = sum(greedy_agreement(native, case["prompt"], case["answer"]) for case in KNOWN)
    count = sum(len(case["answer"]) for case in KNOWN)
    print(f"{agreed} of {count} tokens after the same tokens ({agreed / count:.1%})")  # noqa: T201
    assert agreed / count > 0.95


def test_answers_begin_as_those_of_transformers(native: CpuDevice) -> None:
    answers = generate_greedily(native, [case["prompt"] for case in KNOWN], len(KNOWN[0]["answer"]))
    same = [
        next((i for i, (a, b) in enumerate(zip(answer, case["answer"], strict=True)) if a != b), len(answer))
        for answer, case in zip(answers, KNOWN, strict=True)
    ]
    whole = sum(count == len(answers[0]) for count in same)
    print(f"{whole} of {len(same)} answers are the same, the median is for {sorted(same)[len(same) // 2]} tokens")  # noqa: T201
    assert sum(same) / len(same) > 16
