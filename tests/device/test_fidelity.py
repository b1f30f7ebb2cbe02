"""The reference device computes what transformers does. make_expected.py made the expected values.

Logits differ by rounding only; the tests print the largest difference (``pytest -rP``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trioserve.device.reference import ReferenceDevice
from trioserve.model.load import load_model
from trioserve.model.loaded import LoadedModel
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf, write_tiny_llama
from trioserve.testing.driver import Row, Span, generate_greedily, make_plan
from trioserve.testing.weights import random_model

DATA = Path(__file__).parent / "data"
TINY_TOLERANCE = 1e-5


def expected(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def named(name: str) -> list[Any]:
    return [pytest.param(model, id=model["name"]) for model in expected(name)["models"]]


def spec_of(fields: dict[str, Any]) -> DecoderSpec:
    rope = dict(fields["rope"])
    if "scaling" in rope:
        rope["scaling"] = RopeScaling(**rope["scaling"])
    windows = frozenset(fields.get("sliding_layers", ()))
    return DecoderSpec(**(fields | {"rope": Rope(**rope), "sliding_layers": windows}))


def largest_difference(model: LoadedModel, case: dict[str, Any]) -> float:
    """Between the logits of a device and the expected ones, at the positions that were kept."""
    device = ReferenceDevice.load(model, page_size=16, page_count=8)
    tokens, stops = case["tokens"], [0, *(position + 1 for position in case["positions"])]
    found: list[npt.NDArray[np.float32]] = []
    for start, stop in itertools.pairwise(stops):
        span = Span(tokens=tokens[start:stop], start=start, pages=range(8), rows=[Row()])
        found += device.logits(make_plan([span])).values()
    difference = float(np.abs(np.array(found) - np.array(case["logits"])).max())
    print(f"{case['name']}: logits differ by {difference:.1e} at most")  # noqa: T201
    return difference


@pytest.mark.parametrize("case", named("expected_specs.json"))
def test_a_decoder_computes_the_logits_of_transformers(case: dict[str, Any]) -> None:
    assert largest_difference(random_model(spec_of(case["spec"])), case) < TINY_TOLERANCE


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize("case", named("expected_checkpoints.json"))
def test_a_checkpoint_is_read_and_computed_as_by_transformers(case: dict[str, Any], form: str, tmp_path: Path) -> None:
    tiny = TinyLlama(**case["tiny"])
    path = write_tiny_llama(tmp_path, tiny) if form == "safetensors" else write_tiny_gguf(tmp_path / "m.gguf", tiny)
    model = load_model(path)
    try:
        assert largest_difference(model, case) < TINY_TOLERANCE
    finally:
        model.weights.close()


@pytest.fixture(scope="module")
def default_device(default_model_path: Path) -> Iterator[ReferenceDevice]:
    model = load_model(default_model_path)
    device = ReferenceDevice.load(model, page_size=16, page_count=256, context_length=512)
    model.weights.close()
    yield device
    device.close()


@pytest.mark.model
def test_the_default_models_answers_are_those_of_transformers(default_device: ReferenceDevice) -> None:
    # case real-model-parity
    known = expected("expected_smollm2.json")
    prompts = [case["prompt"] for case in known["prompts"]]
    answers = generate_greedily(default_device, prompts, len(known["prompts"][0]["answer"]))
    for case, answer in zip(known["prompts"], answers, strict=True):
        assert answer == case["answer"], f"prompt {case['prompt']}"


@pytest.mark.model
def test_the_default_models_logits_are_those_of_transformers(default_device: ReferenceDevice) -> None:
    known = expected("expected_smollm2.json")
    differences = []
    for case in known["prompts"]:
        tokens = case["prompt"]
        plan = make_plan([Span(tokens=tokens, pages=range(-(-len(tokens) // 16)), rows=[Row()])])
        logits = default_device.logits(plan)[len(tokens) - 1]
        differences.append(float(np.abs(logits[case["top_ids"]] - np.array(case["top_logits"])).max()))
    print(f"logits differ by {max(differences):.1e} at most")  # noqa: T201
    # half the smallest distance between a token taken and the next best: equal answers are no accident
    assert max(differences) < min(1e-3, known["smallest_gap"] / 2)
