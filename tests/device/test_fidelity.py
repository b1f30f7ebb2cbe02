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


@pytest.fixture(scope="module")
def logits_alone(default_device: ReferenceDevice) -> list[npt.NDArray[np.float32]]:
    """The logits after each prompt, computed one prompt at a time."""
    found: list[npt.NDArray[np.float32]] = []
    for case in expected("expected_smollm2.json")["prompts"]:
        plan = make_plan([Span(tokens=case["prompt"], pages=range(4), rows=[Row()])])
        found += default_device.logits(plan).values()
    return found


@pytest.mark.model
def test_the_default_models_logits_are_those_of_transformers(logits_alone: list[npt.NDArray[np.float32]]) -> None:
    known = expected("expected_smollm2.json")
    difference = max(
        float(np.abs(logits[case["top_ids"]] - np.array(case["top_logits"])).max())
        for case, logits in zip(known["prompts"], logits_alone, strict=True)
    )
    print(f"logits differ by {difference:.1e} at most")  # noqa: T201
    # half the smallest distance between a token taken and the next best: equal answers are no accident
    assert difference < min(1e-3, known["smallest_gap"] / 2)


@pytest.mark.model
def test_the_default_models_logits_are_the_same_bits_in_a_batch_and_in_chunks(
    default_device: ReferenceDevice, logits_alone: list[npt.NDArray[np.float32]]
) -> None:
    # FAN-15, case real-model-parity
    prompts = [case["prompt"] for case in expected("expected_smollm2.json")["prompts"]]
    cuts = [i % len(prompt) for i, prompt in enumerate(prompts)]
    tables = [range(4 * i, 4 * i + 4) for i in range(len(prompts))]
    parts = list(zip(prompts, cuts, tables, strict=True))
    default_device.run(make_plan([Span(tokens=p[:cut], pages=table) for p, cut, table in parts if cut]))
    rest = [Span(tokens=p[cut:], start=cut, pages=table, rows=[Row()]) for p, cut, table in parts]
    together = default_device.logits(make_plan(rest)).values()
    assert all(np.array_equal(a, b) for a, b in zip(logits_alone, together, strict=True))
