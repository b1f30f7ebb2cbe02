"""Every feature of a DecoderSpec, against the same decoder in float64 without pages or tiles."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import torch

from trioserve.device.decoder import TILE, Linear
from trioserve.device.frequencies import rope_frequencies
from trioserve.device.reference import ReferenceDevice
from trioserve.device.rope import rotate
from trioserve.model.spec import DecoderSpec, Rope, RopeScaling
from trioserve.testing.dense import dense_logits
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.features import features
from trioserve.testing.weights import RandomWeights

FEATURES = features(head_dim=8) | {
    "attention scale": {"attention_scale": 0.9},
    "rope table": {"rope": Rope(dim=8, scaling=RopeScaling(kind="table", factors=(1.0, 1.5, 3.0, 8.0)))},
    "odd sizes": {"heads": 3, "kv_heads": 1, "head_dim": 10, "embedding_dim": 33, "feed_forward_dim": 51},
}


def all_logits(device: ReferenceDevice, tokens: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """[T, V]: the logits at every position, one step per token."""
    rows = []
    for position, token in enumerate(tokens):
        span = Span(tokens=[token], start=position, pages=range(16), rows=[Row()])
        rows.append(device.logits(make_plan([span]))[0])
    return np.array(rows)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_agrees_with_the_dense_decoder(
    feature: str, tiny: DecoderSpec, open_device: Callable[..., ReferenceDevice], some_tokens: Callable[..., list[int]]
) -> None:
    spec = attrs.evolve(tiny, **FEATURES[feature])  # type: ignore[arg-type]
    tokens = some_tokens(1, 40)
    expected = dense_logits(spec, RandomWeights(spec), tokens)
    found = all_logits(open_device(spec), tokens)
    assert np.abs(found - expected).max() < 2e-5
    if feature != "plain":
        # or the feature would not be tested at all
        plain = dense_logits(tiny, RandomWeights(tiny), tokens)
        assert np.abs(expected - plain).max() > 1e-3


def test_the_head_applies_its_scale_before_its_cap(
    tiny: DecoderSpec, open_device: Callable[..., ReferenceDevice]
) -> None:
    plain = all_logits(open_device(tiny), [1, 2, 3])
    capped = all_logits(open_device(attrs.evolve(tiny, logit_scale=0.5, logit_soft_cap=2.0)), [1, 2, 3])
    assert np.abs(capped - 2.0 * np.tanh(0.5 * plain / 2.0)).max() < 1e-6


@pytest.mark.parametrize(("size_in", "size_out"), [(576, 192), (1536, 576), (36, 52), (33, 7), (2, 1), (49, 33)])
def test_a_row_of_a_product_depends_on_no_other_row_and_not_on_its_place_or_the_threads(
    size_in: int, size_out: int
) -> None:
    generator = torch.Generator().manual_seed(size_in)
    linear = Linear(torch.randn(size_out, size_in, generator=generator), torch.randn(size_out, generator=generator))
    row = torch.randn(size_in, generator=generator)
    alone = torch.zeros(TILE, size_in)
    alone[0] = row
    expected = linear(alone)[0]
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        for place in range(TILE):
            tile = torch.randn(TILE, size_in, generator=generator) * 100
            tile[place] = row
            assert torch.equal(linear(tile)[place], expected), f"row {place}, {threads} threads"


def test_a_rope_table_of_ones_is_no_scaling(tiny: DecoderSpec, open_device: Callable[..., ReferenceDevice]) -> None:
    ones = RopeScaling(kind="table", factors=(1.0,) * 4)
    scaled = attrs.evolve(tiny, rope=Rope(dim=8, scaling=ones))
    assert (all_logits(open_device(tiny), [5, 6, 7]) == all_logits(open_device(scaled), [5, 6, 7])).all()


def test_rope_stays_accurate_far_into_the_context() -> None:
    position = 100_003
    frequencies = rope_frequencies(Rope(dim=4, theta=100.0))
    angles = position * torch.tensor([frequencies], dtype=torch.float64)
    turned = rotate(torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]), angles, interleaved=False)
    expected = [f(position * frequency) for f in (math.cos, math.sin) for frequency in (1.0, 0.1)]
    assert np.abs(turned.flatten().numpy() - expected).max() < 1e-7
