"""What the kernels do to a row besides products: norms, activations, halves, attention."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from trioserve_kernels.cpu.library import KV_TYPES, levels, library_path

from trioserve.testing.native import attend, gate, rms_norm, soft_cap, to_halves

pytestmark = pytest.mark.skipif(library_path() is None, reason="trioserve was installed without its native kernels")

Array = npt.NDArray[np.float32]
LEVELS = levels() if library_path() else []
WIDE = np.concatenate([s * np.geomspace(1e-30, 1e30, 400) for s in (-1, 1)] + [np.linspace(-100, 100, 4000)])
WIDE = np.resize(np.append(WIDE, [0.0, -0.0]), 4816).astype(np.float32)


def activated(x: npt.NDArray[np.float64], activation: str) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):
        if activation == "silu":
            return x / (1 + np.exp(-x))
        if activation == "gelu":
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_an_activation_is_the_function_it_is_named_after(level: str, activation: str) -> None:
    ups = np.random.default_rng(0).standard_normal(len(WIDE)).astype(np.float32)
    found = gate(level, activation, WIDE, ups)
    x, up = WIDE.astype(np.float64), ups.astype(np.float64)
    expected = activated(x, activation) * up
    # far below zero, 1 + tanh and 1 + erf keep an absolute precision only, and e ** 88 stands for all that is larger
    precise = np.abs(expected) if activation == "silu" else np.abs(x * up)
    assert (np.abs(found - expected) <= 4e-7 * precise + 1e-38 * np.abs(x * up) + 1e-36).all()
    assert np.array_equal(found, gate(LEVELS[0], activation, WIDE, ups))


@pytest.mark.parametrize("level", LEVELS)
def test_a_soft_cap_is_a_tanh(level: str) -> None:
    for cap in (0.5, 30.0, 50.0):
        found = soft_cap(level, WIDE, cap)
        assert np.abs(found - cap * np.tanh(WIDE.astype(np.float64) / cap)).max() < 3e-7 * cap
        assert np.array_equal(found, soft_cap(LEVELS[0], WIDE, cap))


@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_stays_one(level: str) -> None:
    x = np.zeros(32, np.float32)
    x[[0, 7, 31]] = np.nan
    ones = np.ones_like(x)
    assert np.array_equal(np.isnan(soft_cap(level, x, 30.0)), np.isnan(x))
    for activation in ("silu", "gelu", "gelu_tanh"):
        assert np.array_equal(np.isnan(gate(level, activation, x, ones)), np.isnan(x)), activation


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [1, 16, 31, 32, 33, 576, 1000])
def test_a_norm_is_over_the_width_and_not_its_padding(level: str, width: int) -> None:
    random = np.random.default_rng(width)
    x, weight = random.standard_normal((2, width)).astype(np.float32)
    for size, epsilon in ((1.0, 1e-5), (1e15, 1e-5), (1e-4, 1e-6), (0.0, 1e-5)):
        row = (x * size).astype(np.float32)
        wide = row.astype(np.float64)
        expected = wide / np.sqrt((wide**2).mean() + epsilon) * weight
        found = rms_norm(level, row, weight, epsilon)
        assert np.allclose(found, expected, rtol=2e-6, atol=0)
        assert np.array_equal(found, rms_norm(LEVELS[0], row, weight, epsilon))


@pytest.mark.parametrize("level", LEVELS)
def test_float16_is_rounded_as_numpy_rounds_it(level: str) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    between = (finite[1:] / 2 + finite[:-1] / 2).astype(np.float32)
    beside = np.concatenate([np.nextafter(between, np.float32(side)) for side in (-np.inf, np.inf)])
    edges = np.array([65504, 65519.996, 65520, 1e10, np.inf, 1e-8, 2.0**-25, 1e-40, 0.0], np.float32)
    x = np.concatenate([finite, between, beside, edges, -edges])
    x = np.resize(x, len(x) // 16 * 16 + 16)
    with np.errstate(over="ignore"):
        assert np.array_equal(to_halves(level, x), x.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("level", LEVELS)
def test_float16_keeps_what_is_not_a_number(level: str) -> None:
    assert np.isnan(to_halves(level, np.full(16, np.nan, np.float32)).view(np.float16)).all()


def stored(x: Array, kv_type: str) -> npt.NDArray[np.float64]:
    """What is left of keys or values, [T, D]."""
    if kv_type == "int8":
        most = np.abs(x).max(axis=1, keepdims=True)
        scale = most / np.float32(127)
        with np.errstate(divide="ignore", over="ignore"):
            steps = np.rint(x * np.where(scale > np.float32(1e-30), np.float32(127) / most, np.float32(0)))
        return np.asarray(steps.astype(np.float64) * scale)
    return np.asarray(x.astype(kv_type), np.float64)


def softmax_mean(
    queries: Array, keys: Array, values: Array, *, cap: float = 0.0, window: int = 0, kv_type: str = "float16"
) -> npt.NDArray[np.float64]:
    """Attention in float64, to keys and values as they were stored."""
    keys, values = stored(keys, kv_type), stored(values, kv_type)
    scores = queries.astype(np.float64) @ keys.T
    if cap:
        scores = cap * np.tanh(scores / cap)
    first = max(0, len(keys) - window) if window else 0
    odds = np.exp(scores[:, first:] - scores[:, first:].max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True) @ values[first:]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257, 400])
@pytest.mark.parametrize(("cap", "window"), [(0.0, 0), (2.0, 0), (0.0, 1), (0.0, 50), (3.0, 130), (0.0, 999)])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_attention_is_a_softmax_over_what_may_be_seen(
    level: str, tokens: int, cap: float, window: int, kv_type: str
) -> None:
    for queries, dim in ((1, 16), (3, 64), (8, 48), (64, 16), (2, 96)):
        random = np.random.default_rng((tokens, dim))
        q = (dim**-0.5 * random.standard_normal((queries, dim))).astype(np.float32)
        keys, values = random.standard_normal((2, tokens, dim)).astype(np.float32)
        found = attend(level, q, keys, values, soft_cap=cap, window=window, kv_type=kv_type)
        expected = softmax_mean(q, keys, values, cap=cap, window=window, kv_type=kv_type)
        assert np.abs(found - expected).max() < 2e-6
        # what else lies in the page has no part in it, even if it is not a number
        again = attend(LEVELS[0], q, keys, values, soft_cap=cap, window=window, kv_type=kv_type, stale=0xFFFF)
        assert np.array_equal(found, again)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1e-39, 1e-30, 1e-20, 1e20, 3e38])
def test_int8_values_of_any_size_are_multiples_of_their_tokens_largest(level: str, size: float) -> None:
    # keys of nothing: every token has the same weight, so one token's value comes back as it was stored
    x = np.linspace(-1, 1, 48, dtype=np.float32)[np.newaxis] * np.float32(size)
    nothing = np.zeros_like(x)
    found = attend(level, nothing, nothing, x, kv_type="int8")
    assert np.array_equal(found, stored(x, "int8").astype(np.float32))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_what_is_not_finite_does_not_become_finite_in_a_page(level: str, broken: float, kv_type: str) -> None:
    x = np.ones((3, 32), np.float32)
    x[1, 17] = broken
    sound, zeros = np.ones((3, 32), np.float32), np.zeros((1, 32), np.float32)
    assert not np.isfinite(attend(level, zeros, sound, x, kv_type=kv_type)[0, 17])
    assert not np.isfinite(attend(level, sound[:1], x, sound, kv_type=kv_type)).all() or broken == -np.inf


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1e-4, 30.0, 1e3, 1e6])
def test_attention_stands_scores_of_any_size(level: str, size: float) -> None:
    random = np.random.default_rng(5)
    q = (size * random.standard_normal((3, 32))).astype(np.float32)
    keys, values = random.standard_normal((2, 300, 32)).astype(np.float32)
    found = attend(level, q, keys, values)
    # a score of 1e7 is known to 1 only: the largest one takes all, or some share it
    assert np.isfinite(found).all()
    if size <= 1e3:
        assert np.abs(found - softmax_mean(q, keys, values)).max() < 1e-5 * max(1.0, size)
    else:
        assert (np.abs(found) <= np.abs(values).max() * (1 + 1e-3)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_attention_does_not_depend_on_the_queries_beside_a_query(level: str, kv_type: str) -> None:
    random = np.random.default_rng(6)
    q = random.standard_normal((7, 48)).astype(np.float32)
    keys, values = random.standard_normal((2, 190, 48)).astype(np.float32)
    together = attend(level, q, keys, values, kv_type=kv_type)
    for i in range(7):
        assert np.array_equal(attend(level, q[i : i + 1], keys, values, kv_type=kv_type)[0], together[i])
