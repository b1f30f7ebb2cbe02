"""Writes GGUF files for tests: any metadata, and tensors in a few kinds.

The opposite of model/gguf_format.py, and deliberately simple: it checks nothing, so that tests can write files
that no reader should accept.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

Value = bool | int | float | str | Sequence[str] | npt.NDArray[np.generic]

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64 = 4, 5, 6, 7, 8, 9, 10, 11
_TENSOR_KINDS: Final = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
_ARRAY_TYPES: Final = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": _U32, "i4": _I32, "f4": _F32, "b1": _BOOL}


@attrs.frozen
class GgufTensor:
    """A tensor to write."""

    kind: str
    shape: tuple[int, ...]
    """(out, in) for matrices."""
    data: bytes


def encode_tensor(kind: str, weights: npt.NDArray[np.float32]) -> GgufTensor:
    """``weights`` in one of the kinds F32, F16, BF16 (truncated), Q4_1, Q8_0."""
    return GgufTensor(kind, weights.shape, _ENCODERS[kind](np.ascontiguousarray(weights, dtype="<f4")))


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, GgufTensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> None:
    """Write a file. ``alignment`` other than 32 should also stand in the metadata, as general.alignment."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(value)]
    offset = 0
    for name, tensor in tensors.items():
        dimensions = tensor.shape[::-1]
        parts += [_string(name), struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)]
        parts.append(struct.pack("<IQ", _TENSOR_KINDS[tensor.kind], offset))
        offset += _padded(len(tensor.data), alignment)
    header = b"".join(parts)
    with path.open("wb") as file:
        file.write(header.ljust(_padded(len(header), alignment), b"\0"))
        for tensor in tensors.values():
            file.write(tensor.data.ljust(_padded(len(tensor.data), alignment), b"\0"))


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        kind, form = (_U32, "I") if 0 <= value < 2**32 else (_I64, "q")
        return struct.pack(f"<I{form}", kind, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, np.ndarray):
        header = struct.pack("<IIQ", _ARRAY, _ARRAY_TYPES[value.dtype.str[1:]], value.size)
        return header + value.astype(value.dtype.newbyteorder("<")).tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))


def _encode_f32(weights: npt.NDArray[np.float32]) -> bytes:
    return weights.tobytes()


def _encode_f16(weights: npt.NDArray[np.float32]) -> bytes:
    return weights.astype("<f2").tobytes()


def _encode_bf16(weights: npt.NDArray[np.float32]) -> bytes:
    return (weights.view("<u4") >> 16).astype("<u2").tobytes()


def _encode_q8_0(weights: npt.NDArray[np.float32]) -> bytes:
    blocks = weights.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1) / 127
    out = np.empty(len(blocks), dtype=[("d", "<f2"), ("q", "i1", 32)])
    out["d"] = scale
    out["q"] = np.rint(blocks / np.where(scale > 0, scale, 1)[:, np.newaxis])
    return out.tobytes()


def _encode_q4_1(weights: npt.NDArray[np.float32]) -> bytes:
    blocks = weights.reshape(-1, 32)
    low = blocks.min(axis=1)
    scale = (blocks.max(axis=1) - low) / 15
    q = np.rint((blocks - low[:, np.newaxis]) / np.where(scale > 0, scale, 1)[:, np.newaxis]).astype(np.uint8)
    out = np.empty(len(blocks), dtype=[("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
    out["d"], out["m"], out["q"] = scale, low, q[:, :16] | (q[:, 16:] << 4)
    return out.tobytes()


_ENCODERS: Final = {
    "F32": _encode_f32,
    "F16": _encode_f16,
    "BF16": _encode_bf16,
    "Q8_0": _encode_q8_0,
    "Q4_1": _encode_q4_1,
}
