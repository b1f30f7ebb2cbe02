"""Every block format against the ``gguf`` package, bit for bit."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from trioserve.errors import ModelError
from trioserve.model.dequantise import SUPPORTED_KINDS, dequantise
from trioserve.model.loaded import RawTensor


def random_tensor(kind: str, rows: int, blocks_per_row: int) -> tuple[RawTensor, np.ndarray]:
    """A tensor of random bytes, so every bit pattern of scales and weights occurs, and what it should decode to."""
    block_weights, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = np.random.default_rng(7).integers(0, 256, (rows, blocks_per_row * block_bytes), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the oracle's, for infinite scales
        expected = dequantize(data, GGMLQuantizationType[kind])
    raw = RawTensor(kind, (rows, blocks_per_row * block_weights), memoryview(data.tobytes()))
    return raw, np.asarray(expected, dtype=np.float32)


@pytest.mark.parametrize("kind", SUPPORTED_KINDS)
def test_each_kind_decodes_to_the_same_bits_as_the_gguf_package(kind: str) -> None:
    raw, expected = random_tensor(kind, rows=50, blocks_per_row=3)

    weights = dequantise(raw)

    assert weights.dtype == np.float32
    assert weights.flags.c_contiguous
    assert weights.flags.owndata or weights.base.flags.owndata
    np.testing.assert_array_equal(weights.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q6_K"])
def test_tensors_larger_than_one_chunk_are_decoded_to_the_end(kind: str) -> None:
    block_weights, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw, expected = random_tensor(kind, rows=3, blocks_per_row=100_000 // block_weights)

    np.testing.assert_array_equal(dequantise(raw).view(np.uint32), expected.view(np.uint32))


def test_decoding_needs_little_memory_besides_the_result() -> None:
    raw, _ = random_tensor("Q8_0", rows=1024, blocks_per_row=64)

    tracemalloc.start()
    try:
        weights = dequantise(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * weights.nbytes


def test_all_kinds_that_models_are_commonly_quantised_to_are_supported() -> None:
    common = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K"

    assert set(common.split()) <= set(SUPPORTED_KINDS)


def test_an_unsupported_kind_is_named() -> None:
    with pytest.raises(ModelError, match=r"kind IQ1_S are not supported \(supported: F32, F16, "):
        dequantise(RawTensor("IQ1_S", (256,), memoryview(bytes(50))))


@pytest.mark.parametrize("size", [33, 35, 0])
def test_data_that_does_not_fit_the_shape_is_refused(size: int) -> None:
    with pytest.raises(ModelError, match=r"bytes are not a Q8_0 tensor of shape \(32,\)"):
        dequantise(RawTensor("Q8_0", (32,), memoryview(bytes(size))))
