"""Every feature of a DecoderSpec on the CPU device, against the same decoder in float64 without pages or pieces.

The device rounds weights and activations to 8 bits, which leaves differences of some 3% in the logits of these small
random models. Each feature makes a difference of 13% or more, so one that is done wrong can't hide in that.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from trioserve_kernels.cpu.library import KV_TYPES, library_path

from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.model.dequantise import dequantise
from trioserve.model.loaded import Float32Array, RawTensor
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.testing.dense import dense_logits
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.features import features
from trioserve.testing.gguf_writer import encode_tensor
from trioserve.testing.weights import RandomWeights, random_model

pytestmark = pytest.mark.skipif(library_path() is None, reason="there are no native kernels")

OpenCpuDevice = Callable[..., CpuDevice]
TABLE = RopeScaling(kind="table", factors=(1.0, 1.5, 3.0, 8.0, 1.0, 2.0, 3.0, 4.0))
NOISE = 0.06
EFFECT = 0.12
FEATURES = features(head_dim=16) | {
    "eight heads to a KV head": {"heads": 16},
    "heads of 48": {"head_dim": 48, "rope": Rope(dim=48)},
    "heads of 80": {"heads": 3, "kv_heads": 1, "head_dim": 80, "rope": Rope(dim=80)},
    "heads of 96": {"heads": 2, "head_dim": 96, "rope": Rope(dim=96)},
    "attention scale": {"attention_scale": 0.6},
    "rope table": {"rope": Rope(dim=16, scaling=TABLE)},
    "odd sizes": {"heads": 3, "kv_heads": 1, "embedding_dim": 33, "feed_forward_dim": 51},
}


def relative(found: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


def all_logits(device: CpuDevice, tokens: list[int]) -> npt.NDArray[np.float32]:
    """[T, V]: the logits at every position, the tokens one by one."""
    rows = []
    for position, token in enumerate(tokens):
        span = Span(tokens=[token], start=position, pages=range(16), rows=[Row()])
        rows.append(device.logits(make_plan([span]))[0])
    return np.array(rows)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_agrees_with_the_dense_decoder(
    feature: str, tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: Callable[..., list[int]]
) -> None:
    spec = attrs.evolve(tiny_native, **FEATURES[feature])  # type: ignore[arg-type]
    tokens = some_tokens(1, 34)
    expected = dense_logits(spec, RandomWeights(spec), tokens)
    found = all_logits(open_cpu_device(spec), tokens)
    assert relative(found, expected) < NOISE
    if feature != "plain":
        # or the feature would not be tested at all
        plain = dense_logits(tiny_native, RandomWeights(tiny_native), tokens)
        assert relative(plain, expected) > EFFECT


def test_keys_and_values_of_every_type_agree_with_the_dense_decoder(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: Callable[..., list[int]]
) -> None:
    tokens = some_tokens(1, 34)
    expected = dense_logits(tiny_native, RandomWeights(tiny_native), tokens)
    found = [all_logits(open_cpu_device(tiny_native, kv_type=kv_type), tokens) for kv_type in KV_TYPES]
    assert max(relative(logits, expected) for logits in found) < NOISE
    assert len({logits.tobytes() for logits in found}) == len(KV_TYPES)


def test_the_head_applies_its_scale_before_its_cap(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    plain = all_logits(open_cpu_device(tiny_native), [1, 2, 3])
    capped = all_logits(open_cpu_device(attrs.evolve(tiny_native, logit_scale=0.5, logit_soft_cap=2.0)), [1, 2, 3])
    assert np.abs(capped - 2.0 * np.tanh(0.5 * plain / 2.0)).max() < 1e-6


def test_a_rope_table_of_ones_is_no_scaling(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    ones = RopeScaling(kind="table", factors=(1.0,) * 8)
    scaled = attrs.evolve(tiny_native, rope=Rope(dim=16, scaling=ones))
    tokens = [5, 6, 7]
    assert np.array_equal(all_logits(open_cpu_device(tiny_native), tokens), all_logits(open_cpu_device(scaled), tokens))


@attrs.define(eq=False)
class Stored(RandomWeights):
    """Random weights, with the matrices in one kind."""

    kind: str = "F32"

    def float32(self, name: str) -> Float32Array:
        return dequantise(self.raw(name))

    def raw(self, name: str) -> RawTensor:
        values = super().float32(name)
        tensor = encode_tensor(self.kind if values.ndim == 2 else "F32", values)
        return RawTensor(tensor.kind, tensor.shape, memoryview(tensor.data))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_kind_of_weights_goes_to_its_place(
    tiny_native: DecoderSpec,
    open_cpu_device: OpenCpuDevice,
    some_tokens: Callable[..., list[int]],
    kind: str,
    tied: bool,
) -> None:
    spec = attrs.evolve(tiny_native, embedding_dim=64, feed_forward_dim=96, tied_head=tied)
    model = attrs.evolve(random_model(spec), weights=Stored(spec, kind=kind))
    tokens = some_tokens(2, 20)
    found = all_logits(open_cpu_device(model), tokens)
    assert relative(found, dense_logits(spec, model.weights, tokens)) < NOISE


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_what_weights_will_take_is_known_before_they_are_packed(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, monkeypatch: pytest.MonkeyPatch, kind: str, tied: bool
) -> None:
    foreseen = []
    monkeypatch.setattr("trioserve.device.cpu.check_memory", lambda tokens, kv, weights: foreseen.append(weights))
    spec = attrs.evolve(tiny_native, embedding_dim=64, feed_forward_dim=96, tied_head=tied)
    device = open_cpu_device(attrs.evolve(random_model(spec), weights=Stored(spec, kind=kind)))
    assert foreseen == [device.info.weight_bytes]


@pytest.mark.parametrize("window", [None, 100])
def test_long_contexts_agree_with_the_reference_device(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: Callable[..., list[int]], window: int | None
) -> None:
    # over several stretches of keys, and several pieces of a step
    spec = attrs.evolve(tiny_native, sliding_window=window, sliding_layers=frozenset({0} if window else ()))
    tokens = some_tokens(3, 700)
    spans = [Span(tokens=tokens[:650], pages=range(44))]
    spans += [Span(tokens=[tokens[i]], start=i, pages=range(44), rows=[Row()]) for i in range(650, 700)]
    native = open_cpu_device(spec)
    reference = ReferenceDevice.load(random_model(spec), page_size=16, page_count=44)
    found, expected = (
        np.array([logits for span in spans for logits in device.logits(make_plan([span])).values()])
        for device in (native, reference)
    )
    assert found.shape == (50, 97)
    assert relative(found, expected) < NOISE
