"""Weights as their files store them, and as the kernels pack them."""

from __future__ import annotations

import numpy as np
import pytest
from trioserve_kernels.cpu.library import KINDS, levels, library_path, load_library

from trioserve.model.dequantise import dequantise
from trioserve.model.loaded import RawTensor
from trioserve.testing.native import BLOCK_VALUES, Blocks, multiply, random_blocks

pytestmark = pytest.mark.skipif(library_path() is None, reason="trioserve was installed without its native kernels")


def stored(blocks: Blocks) -> np.ndarray:
    """[rows, width]: the values as the model's reader has them."""
    return dequantise(RawTensor(blocks.kind, (blocks.rows, blocks.width), memoryview(blocks.data)))


def packed(blocks: Blocks) -> np.ndarray:
    """[rows, width] float64: 127 times the packed values, which a column that picks one weight gives exactly."""
    picks = 127 * np.eye(blocks.width, dtype=np.float32)
    return multiply(levels()[0], blocks, picks).T.astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_reads_every_kind_as_the_models_reader_does(kind: str) -> None:
    blocks = random_blocks(kind, 13, 2 * BLOCK_VALUES[kind] if BLOCK_VALUES[kind] > 1 else 77)
    assert np.array_equal(blocks.dequantised(), stored(blocks))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_float16_and_bfloat16_is_read_right(kind: str) -> None:
    blocks = Blocks(kind, 2**16, 1, np.arange(2**16, dtype="<u2").tobytes())
    assert np.array_equal(blocks.dequantised(), stored(blocks), equal_nan=True)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_these_kinds_are_packed_exactly(kind: str) -> None:
    blocks = random_blocks(kind, 37, 128)
    # the kernels add a minimum to a multiple of the scale with one rounding, as the file's own reader does not
    form = {"Q4_0": [("d", "<f2"), ("q", "u1", 16)], "Q4_1": [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]}
    if kind == "Q8_0":
        expected = 127 * stored(blocks).astype(np.float64)
    else:
        parts = np.frombuffer(blocks.data, form[kind])
        nibbles = np.concatenate([parts["q"] & 15, parts["q"] >> 4], axis=1).astype(np.float64)
        scale = parts["d"].astype(np.float64)
        minimum = -8 * scale if kind == "Q4_0" else parts["m"].astype(np.float64)
        expected = 127 * (nibbles * scale[:, np.newaxis] + minimum[:, np.newaxis]).reshape(37, 128)
    assert np.array_equal(packed(blocks), expected.astype(np.float32))


def test_q4_k_is_packed_to_within_the_rounding_of_its_scales_to_float16() -> None:
    blocks = random_blocks("Q4_K", 37, 512)
    error = np.abs(packed(blocks) / 127 - stored(blocks)).reshape(37, -1, 32)
    parts = np.frombuffer(blocks.data, [("d", "<f2"), ("m", "<f2"), ("q", "u1", 140)])
    # 15 times a scale of at most 63 d, and a minimum of at most 63 m, each to half a unit of its 11 bits
    bound = 63 * (15 * np.abs(parts["d"].astype(float)) + np.abs(parts["m"].astype(float))) * 2.0**-11 + 16 * 2.0**-25
    assert (error <= np.repeat(bound.reshape(37, -1), 8, axis=1)[..., np.newaxis]).all()
    assert error.max() > 0


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q6_K"])
def test_other_kinds_are_rounded_to_8_bits_in_groups_of_32(kind: str) -> None:
    width = 512 if kind == "Q6_K" else 75
    blocks = random_blocks(kind, 37, width)
    values = np.zeros((37, -(-width // 32) * 32))
    values[:, :width] = stored(blocks)
    found = np.zeros_like(values)
    found[:, :width] = packed(blocks) / 127
    groups, error = values.reshape(37, -1, 32), np.abs(found - values).reshape(37, -1, 32)
    most = np.abs(groups).max(axis=-1, keepdims=True)
    # half a step; the step is rounded to a float16
    assert (error <= most / 127 / 2 * (1 + 2.0**-8)).all()
    # the largest value is kept in range
    assert (np.abs(found).max(axis=-1) > 0).all()


def test_values_of_any_size_stay_in_range_when_their_scale_is_rounded_down() -> None:
    # a scale is a float16: down to 6e-8, where one is twice its neighbour
    sizes = 2.0 ** np.linspace(-16, 20, 2000)
    weights = np.repeat(sizes[:, np.newaxis], 32, axis=1).astype(np.float32)
    weights[:, 1] *= -1
    blocks = Blocks("F32", len(sizes), 32, weights.tobytes())
    found = packed(blocks) / 127
    assert (np.sign(found) == np.sign(weights)).all()
    assert (np.abs(found / weights - 1) < 0.005 + 2.0**-24 / np.abs(weights)).all()


def test_zeros_are_packed_as_zeros() -> None:
    for kind in ("F32", "F16", "BF16", "Q8_0"):
        size = {"F32": 4 * 64, "F16": 2 * 64, "BF16": 2 * 64, "Q8_0": 2 * 34}[kind]
        assert not packed(Blocks(kind, 3, 64, bytes(3 * size))).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_row_is_that_of_the_file(kind: str) -> None:
    row_bytes = load_library().trioserve_row_bytes
    unit = BLOCK_VALUES[kind]
    assert row_bytes(KINDS[kind], 3 * unit) == len(random_blocks(kind, 1, 3 * unit).data)
    if unit > 1:
        assert [row_bytes(KINDS[kind], width) for width in (unit - 1, unit + 1, unit // 2)] == [0, 0, 0]


def test_kinds_that_are_not_known_have_no_rows() -> None:
    row_bytes = load_library().trioserve_row_bytes
    assert [row_bytes(kind, 256) for kind in (-1, 4, 5, 6, 7, 9, 10, 11, 13, 15, 29, 31, 1000)] == [0] * 13
