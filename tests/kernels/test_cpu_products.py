"""The product of quantised weights with activations, against float64, at every level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from trioserve_kernels.cpu.library import KINDS, levels, library_path

from trioserve.testing.native import BLOCK_VALUES, Blocks, multiply, random_blocks

pytestmark = pytest.mark.skipif(library_path() is None, reason="trioserve was installed without its native kernels")

Array = npt.NDArray[np.float32]
GROUP = 32
INT4 = ["Q4_0", "Q4_1", "Q4_K"]
EPSILON = 2.0**-24
"""Half a unit in the last place of float32."""


def activations(columns: int, width: int, seed: int = 0) -> Array:
    """Rows of very different sizes, in which some values stand out."""
    random = np.random.default_rng((seed, columns, width))
    x = random.standard_normal((columns, width)) * 10.0 ** random.uniform(-6, 6, (columns, 1))
    return (x * np.where(random.random(x.shape) < 0.02, 30.0, 1.0)).astype(np.float32)


def padded(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[..., groups, 32], with zeros where the width ends inside a group."""
    groups = -(-x.shape[-1] // GROUP)
    out = np.zeros((*x.shape[:-1], groups * GROUP), x.dtype)
    out[..., : x.shape[-1]] = x
    return out.reshape(*x.shape[:-1], groups, GROUP)


def quantised(x: Array) -> tuple[npt.NDArray[np.float64], Array]:
    """int8 values [C, groups, 32] and scales [C, groups]: what the kernels are to do, operation by operation."""
    x = padded(x)
    most = np.abs(x).max(axis=-1)
    scale = most / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scale > np.float32(1e-30), np.float32(127) / most, np.float32(0))
    return np.rint(x * inverse[..., np.newaxis]).astype(np.float64), scale


def as_packed(blocks: Blocks) -> npt.NDArray[np.float64]:
    """[rows, groups, 32]: the weights as the kernels have them, found with columns that each pick one weight."""
    picks = 127 * np.eye(blocks.width, dtype=np.float32)
    return padded(multiply("portable", blocks, picks).T.astype(np.float64) / 127)


def exact(blocks: Blocks, x: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """[C, rows]: the product of the packed weights with the quantised activations, and the sum of its magnitudes."""
    values, scales = quantised(x)
    weights = as_packed(blocks)
    columns = values * scales[..., np.newaxis]
    flat = weights.reshape(len(weights), -1)
    product = columns.reshape(len(columns), -1) @ flat.T
    # the minima and the multiples of the scales are added one by one, and may be far larger than the weights
    largest = np.abs(weights).max(axis=-1, keepdims=True) * np.ones(GROUP)
    magnitudes = np.abs(columns).reshape(len(columns), -1) @ largest.reshape(len(largest), -1).T
    return product, magnitudes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 25, 37, 40])
def test_a_product_is_that_of_the_quantised_activations_up_to_rounding(kind: str, columns: int) -> None:
    rows, width = 16 + columns, BLOCK_VALUES[kind] * (3 if BLOCK_VALUES[kind] > 1 else 32 + columns)
    blocks, x = random_blocks(kind, rows, width), activations(columns, width)
    expected, magnitudes = exact(blocks, x)
    found = multiply(levels()[0], blocks, x)
    groups = -(-width // GROUP)
    # each group is rounded in its factor and twice in the sum; each weight once when it was read for comparison
    assert (np.abs(found - expected) <= (3 * groups + 3) * EPSILON * magnitudes).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_near_that_of_the_files_weights_with_the_activations(kind: str) -> None:
    width = 1024
    blocks = random_blocks(kind, 40, width)
    x = np.random.default_rng(1).standard_normal((9, width)).astype(np.float32)
    expected = x.astype(np.float64) @ blocks.dequantised().astype(np.float64).T
    error = multiply(levels()[0], blocks, x) - expected
    relative = np.sqrt((error**2).mean() / (expected**2).mean())
    # rounding to a step of 2.5 standard deviations / 127 leaves 1 / sqrt(12) of it as noise; weights may add as much
    assert relative < 0.011


@pytest.mark.parametrize("level", levels()[1:] if library_path() else [])
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_gives_the_same_bits(kind: str, level: str) -> None:
    unit = BLOCK_VALUES[kind]
    for columns, rows, units in [(1, 16, 1), (2, 1, 2), (5, 33, 3), (13, 40, 2), (31, 17, 1)]:
        width = units * unit if unit > 1 else 31 * units
        blocks, x = random_blocks(kind, rows, width, seed=columns), activations(columns, width)
        assert np.array_equal(multiply(level, blocks, x), multiply(levels()[0], blocks, x))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    level=st.sampled_from(levels() if library_path() else [""]),
    rows=st.integers(1, 50),
    units=st.integers(1, 3),
    tail=st.integers(0, 31),
    columns=st.integers(1, 40),
    place=st.integers(0, 39),
)
def test_a_column_is_the_same_bits_in_any_company(
    kind: str, level: str, rows: int, units: int, tail: int, columns: int, place: int
) -> None:
    # FAN-15
    unit = BLOCK_VALUES[kind]
    width = units * unit if unit > 1 else 32 * units - tail
    blocks, x = random_blocks(kind, rows, width), activations(columns, width)
    place %= columns
    together = multiply(level, blocks, x)
    assert np.array_equal(together[place], multiply(level, blocks, x[place : place + 1])[0])
    # nor do other rows matter
    size = len(blocks.data) // rows
    last = Blocks(kind, 1, width, blocks.data[-size:])
    assert np.array_equal(together[:, -1:], multiply(level, last, x))


def q8_0(values: int, scale: float, width: int, rows: int = 16) -> Blocks:
    block = np.float16(scale).tobytes() + np.full(GROUP, values, np.int8).tobytes()
    return Blocks("Q8_0", rows, width, block * (rows * width // GROUP))


@pytest.mark.parametrize("level", levels() if library_path() else [])
@pytest.mark.parametrize("value", [-128, -127, -1, 0, 127])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_do_not_overflow(level: str, value: int, sign: int) -> None:
    x = np.full((3, 256), sign * 127, np.float32)
    assert (multiply(level, q8_0(value, 1.0, 256), x) == 256 * 127 * sign * value).all()
    nibbles = np.float16(1).tobytes() + np.float16(0).tobytes() + b"\xff" * 16
    int4 = Blocks("Q4_1", 16, 256, nibbles * (16 * 8))
    assert (multiply(level, int4, x) == 256 * 127 * sign * 15).all()


STRANGE: dict[str, Sequence[float]] = {
    "zeros": [0.0] * 32,
    "negative zeros": [-0.0] * 32,
    "one huge value": [1.0] * 31 + [1e30],
    "huge values": [1e36, -1e36] * 16,
    "small values": [1e-20, -3e-21] * 16,
    "the smallest that are not taken for 0": [1.3e-28] * 32,
    "denormal values": [1e-40, -2e-42] * 16,
    "denormal beside ordinary values": [1e-40, 1.0] * 16,
    "halves between two integers": [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5] * 4,
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
def test_strange_activations_are_multiplied_as_any_others(kind: str, name: str) -> None:
    x = np.array([STRANGE[name], *np.random.default_rng(2).standard_normal((2, 32))], np.float32)
    blocks = random_blocks(kind, 20, 32)
    expected, magnitudes = exact(blocks, x)
    found = [multiply(level, blocks, x) for level in levels()]
    assert (np.abs(found[0] - expected) <= 6 * EPSILON * magnitudes + 1e-44).all()
    assert all(np.array_equal(other, found[0]) for other in found)
    if "zeros" in name:
        assert not found[0][0].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_what_is_not_finite_spoils_its_own_column_and_no_other(kind: str, value: float) -> None:
    x = activations(9, 64)
    x[4] = value
    blocks = random_blocks(kind, 16, 64)
    for level in levels():
        found = multiply(level, blocks, x)
        assert np.isnan(found[4]).all()
        assert np.array_equal(np.delete(found, 4, axis=0), multiply(level, blocks, np.delete(x, 4, axis=0)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_a_single_value_that_is_not_finite_is_not_overlooked_wherever_it_stands(kind: str, value: float) -> None:
    x = np.resize(np.float32([0, 0, 1, -3]), (GROUP, 2 * GROUP))
    x[np.arange(GROUP), np.arange(GROUP)] = value
    blocks = random_blocks(kind, 16, 2 * GROUP)
    for level in levels():
        assert np.isnan(multiply(level, blocks, x)).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("F32", "Q4_K", "Q6_K")])
def test_weights_that_the_gguf_package_quantised(kind: str) -> None:
    # Q4_K and Q6_K it only reads
    weights = np.random.default_rng(3).standard_normal((24, 96)).astype(np.float32)
    data = quantize(weights, GGMLQuantizationType[kind])
    blocks = Blocks(kind, 24, 96, data.tobytes())
    assert np.array_equal(blocks.dequantised(), dequantize(data, GGMLQuantizationType[kind]))
    x = np.random.default_rng(4).standard_normal((7, 96)).astype(np.float32)
    error = multiply(levels()[0], blocks, x) - x @ weights.T
    assert np.sqrt((error**2).mean() / 96) < (0.12 if kind in INT4 else 0.01)
