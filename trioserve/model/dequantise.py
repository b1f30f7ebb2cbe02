"""Turns stored weights into float32.

Owns: the block formats of GGUF files and how each is decoded. Must not know: files, tensor names, models.

A quantised row is a run of blocks; a block holds 32 or 256 weights as small integers q with one or more scales.
The formats are those of ggml (its ggml-common.h describes the bytes). The order of the float32 operations is part
of each decoder: results are bit for bit those of the ``gguf`` package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.errors import ModelError
from trioserve.model.loaded import Float32Array, RawTensor

Blocks = npt.NDArray[np.void]
"""[B] records of a format's layout."""
Bytes = npt.NDArray[np.uint8]

_CHUNK_WEIGHTS: Final = 1 << 18
"""Weights decoded at a time: bounds the temporary arrays, and keeps them in a core's cache."""


@attrs.frozen
class _Format:
    weights: int
    """Weights per block."""
    layout: np.dtype[np.void]
    """The bytes of one block."""
    decode: Callable[[Blocks], npt.NDArray[np.float32]]
    """[B] blocks -> weights, B times ``weights`` of them in any shape."""


def dequantise(tensor: RawTensor) -> Float32Array:
    """The tensor's weights as a new C-contiguous float32 array of its shape.

    Raises:
        ModelError: the kind can't be decoded, or the data is too short or too long for the shape.
    """
    form = _FORMATS.get(tensor.kind)
    if form is None:
        raise ModelError(f"weights of kind {tensor.kind} are not supported (supported: {', '.join(SUPPORTED_KINDS)})")
    count = math.prod(tensor.shape)
    if count % form.weights or tensor.data.nbytes != count // form.weights * form.layout.itemsize:
        raise ModelError(f"{tensor.data.nbytes} bytes are not a {tensor.kind} tensor of shape {tensor.shape}")
    blocks = np.frombuffer(tensor.data, dtype=form.layout)
    result = np.empty(count, dtype=np.float32)
    step = _CHUNK_WEIGHTS // form.weights
    # a broken file may hold infinite scales; 0 * inf is then NaN, as in every other reader
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(blocks), step):
            chunk = blocks[first : first + step]
            result[first * form.weights : (first + len(chunk)) * form.weights] = form.decode(chunk).reshape(-1)
    return result.reshape(tensor.shape)


def _float(blocks: Blocks, field: str) -> npt.NDArray[np.float32]:
    """A scale of each block, [B, 1]."""
    return blocks[field].astype(np.float32)[:, np.newaxis]


def _nibbles(packed: Bytes) -> Bytes:
    """[B, N] bytes -> [B, 2 N] numbers of 4 bits: the low halves, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _spread(packed: Bytes, groups: int, bits: int) -> Bytes:
    """[B, N] bytes -> [B, N * 8 / bits] numbers of ``bits`` bits.

    The bytes are ``groups`` equal runs; from each run come all lowest bits, then all next bits, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, np.newaxis]
    runs = packed.reshape(len(packed), groups, 1, -1)
    numbers: Bytes = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(packed), -1)


def _decode_f32(blocks: Blocks) -> npt.NDArray[np.float32]:
    return blocks["w"].astype(np.float32)


def _decode_bf16(blocks: Blocks) -> npt.NDArray[np.float32]:
    return (blocks["w"].astype(np.uint32) << np.uint32(16)).view(np.float32)


def _decode_q4_0(blocks: Blocks) -> npt.NDArray[np.float32]:
    q = _nibbles(blocks["q"]).astype(np.int8) - np.int8(8)
    return _float(blocks, "d") * q.astype(np.float32)


def _decode_q4_1(blocks: Blocks) -> npt.NDArray[np.float32]:
    return _float(blocks, "d") * _nibbles(blocks["q"]).astype(np.float32) + _float(blocks, "m")


def _five_bits(blocks: Blocks) -> Bytes:
    fifth = (blocks["high"][:, np.newaxis] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    return _nibbles(blocks["q"]) | (fifth.astype(np.uint8) << np.uint8(4))


def _decode_q5_0(blocks: Blocks) -> npt.NDArray[np.float32]:
    q = _five_bits(blocks).astype(np.int8) - np.int8(16)
    return _float(blocks, "d") * q.astype(np.float32)


def _decode_q5_1(blocks: Blocks) -> npt.NDArray[np.float32]:
    return _float(blocks, "d") * _five_bits(blocks).astype(np.float32) + _float(blocks, "m")


def _decode_q8_0(blocks: Blocks) -> npt.NDArray[np.float32]:
    return _float(blocks, "d") * blocks["q"].astype(np.float32)


def _decode_q2_k(blocks: Blocks) -> npt.NDArray[np.float32]:
    packed = blocks["scales"]
    scales = _float(blocks, "d") * (packed & 15).astype(np.float32)  # [B, 16]
    minima = _float(blocks, "m") * (packed >> 4).astype(np.float32)
    q = _spread(blocks["q"], groups=2, bits=2).reshape(-1, 16, 16)
    return scales[..., np.newaxis] * q.astype(np.float32) - minima[..., np.newaxis]


def _decode_q3_k(blocks: Blocks) -> npt.NDArray[np.float32]:
    packed = blocks["scales"]
    low, high = _nibbles(packed[:, :8]), _spread(packed[:, 8:], groups=1, bits=2)
    scales = _float(blocks, "d") * ((low | (high << 4)).astype(np.int8) - np.int8(32)).astype(np.float32)  # [B, 16]
    third = _spread(blocks["high"], groups=1, bits=1)
    q = (_spread(blocks["q"], groups=2, bits=2) | (third << 2)).astype(np.int8) - np.int8(4)
    return scales[..., np.newaxis] * q.reshape(-1, 16, 16).astype(np.float32)


def _six_bit_scales(blocks: Blocks) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Scales and minima of the eight sub-blocks, each [B, 8, 1], unpacked from 12 bytes."""
    first, second, third = np.split(blocks["scales"], 3, axis=1)  # [B, 4] each
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return (
        (_float(blocks, "d") * scales.astype(np.float32))[..., np.newaxis],
        (_float(blocks, "m") * minima.astype(np.float32))[..., np.newaxis],
    )


def _decode_q4_k(blocks: Blocks) -> npt.NDArray[np.float32]:
    scales, minima = _six_bit_scales(blocks)
    q = _spread(blocks["q"], groups=4, bits=4).reshape(-1, 8, 32)
    return scales * q.astype(np.float32) - minima


def _decode_q5_k(blocks: Blocks) -> npt.NDArray[np.float32]:
    scales, minima = _six_bit_scales(blocks)
    fifth = _spread(blocks["high"], groups=1, bits=1)
    q = (_spread(blocks["q"], groups=4, bits=4) | (fifth << 4)).reshape(-1, 8, 32)
    return scales * q.astype(np.float32) - minima


def _decode_q6_k(blocks: Blocks) -> npt.NDArray[np.float32]:
    low, high = _spread(blocks["q"], groups=2, bits=4), _spread(blocks["high"], groups=2, bits=2)
    q = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = _float(blocks, "d") * blocks["scales"].astype(np.float32)  # [B, 16]
    return scales[..., np.newaxis] * q.reshape(-1, 16, 16).astype(np.float32)


def _layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[np.void]:
    return np.dtype(list(fields))


# d: scale. m: minimum. q: the low bits of the weights, packed. high: the bits above them.
_FORMATS: Final[dict[str, _Format]] = {
    "F32": _Format(1, _layout(("w", "<f4")), _decode_f32),
    "F16": _Format(1, _layout(("w", "<f2")), _decode_f32),
    "BF16": _Format(1, _layout(("w", "<u2")), _decode_bf16),
    "Q4_0": _Format(32, _layout(("d", "<f2"), ("q", "u1", 16)), _decode_q4_0),
    "Q4_1": _Format(32, _layout(("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)), _decode_q4_1),
    "Q5_0": _Format(32, _layout(("d", "<f2"), ("high", "<u4"), ("q", "u1", 16)), _decode_q5_0),
    "Q5_1": _Format(32, _layout(("d", "<f2"), ("m", "<f2"), ("high", "<u4"), ("q", "u1", 16)), _decode_q5_1),
    "Q8_0": _Format(32, _layout(("d", "<f2"), ("q", "i1", 32)), _decode_q8_0),
    "Q2_K": _Format(256, _layout(("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("m", "<f2")), _decode_q2_k),
    "Q3_K": _Format(
        256, _layout(("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")), _decode_q3_k
    ),
    "Q4_K": _Format(256, _layout(("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)), _decode_q4_k),
    "Q5_K": _Format(
        256,
        _layout(("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)),
        _decode_q5_k,
    ),
    "Q6_K": _Format(
        256, _layout(("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")), _decode_q6_k
    ),
}

SUPPORTED_KINDS: Final = tuple(_FORMATS)
"""The kinds that dequantise can decode."""
