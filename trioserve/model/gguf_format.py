"""Reads the structure of a GGUF file: its metadata, and where its tensors lie.

Owns: the file format, versions 2 and 3, little-endian. Must not know: what any key or tensor means, except
general.alignment, which is part of the format.

The file is mapped and may come from anywhere. Every count, length, offset and type is checked against the size of
the file before anything is allocated or sliced; what is wrong becomes a ModelError that names the file.

Layout: magic, version, tensor count, metadata count; the metadata, each a key, a type and a value; the tensors,
each a name, dimensions (the fastest first), a kind and an offset; padding; the tensors' data. Strings are a uint64
length and that many bytes of UTF-8.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.errors import ModelError
from trioserve.model.files import MappedFile, fault, shown
from trioserve.model.weights import StoredTensor

Value = bool | int | float | str | tuple[str, ...] | npt.NDArray[np.generic]
"""A metadata value. Arrays of numbers and of booleans are numpy arrays; nested arrays are refused."""

MAX_ENTRIES: Final = 1 << 16
"""Metadata keys, and tensors, per file."""
MAX_ARRAY: Final = 1 << 22
"""Elements of one metadata array: ten times the largest vocabulary in use."""
MAX_NAME_BYTES: Final = (1 << 16) - 1
"""Of a key (by the format), and of a tensor name."""
MAX_DIMENSIONS: Final = 4

KINDS: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Tensor kind -> name, weights per block, bytes per block. A description of a file needs them all; not all can be
decoded (see dequantise)."""

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]
_MAGIC: Final = b"GGUF"
_DEFAULT_ALIGNMENT: Final = 32


@attrs.frozen(eq=False)
class GgufFile:
    """An open GGUF file."""

    file: MappedFile
    version: int
    metadata: Mapping[str, Value] = attrs.field(repr=lambda values: f"<{len(values)}>")
    tensors: Mapping[str, StoredTensor] = attrs.field(repr=lambda values: f"<{len(values)}>")
    """In the order of the file. Shapes are (out, in) for matrices: the reverse of the file's dimensions."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.file.close()


def read_gguf(path: Path) -> GgufFile:
    """Open and map a GGUF file, and read everything but the tensors' data.

    Raises:
        ModelError: the file can't be read, or its structure is broken in any way.
    """
    file = MappedFile(path)
    try:
        return _read(file)
    except BaseException:
        file.close()
        raise


def _read(file: MappedFile) -> GgufFile:
    cursor = _Cursor(file)
    if file.map[:4] != _MAGIC:
        raise fault(file.path, "is not a GGUF file")
    cursor.skip(len(_MAGIC))
    version = cursor.integer(_U32)
    if version not in (2, 3):
        # a big-endian file has its version bytes the other way round
        kind = "is big-endian" if version & 0xFFFF == 0 else f"is of GGUF version {version}"
        raise fault(file.path, f"{kind}, which is not supported (supported: versions 2 and 3, little-endian)")
    tensor_count = cursor.count("tensors", MAX_ENTRIES)
    key_count = cursor.count("metadata keys", MAX_ENTRIES)
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string(MAX_NAME_BYTES)
        if key in metadata:
            raise fault(file.path, f"has the metadata key {shown(key)} twice")
        metadata[key] = cursor.value(key)
    return GgufFile(file, version, metadata, _read_tensors(cursor, tensor_count, _alignment(file.path, metadata)))


def _alignment(path: Path, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1 or alignment & (alignment - 1):
        raise fault(path, f"general.alignment is {shown(alignment)}, which is not a power of two")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    path = cursor.file.path
    described: dict[str, tuple[str, tuple[int, ...], int, int]] = {}  # name -> kind, shape, offset, bytes
    for _ in range(count):
        name = cursor.string(MAX_NAME_BYTES)
        if name in described:
            raise fault(path, f"has the tensor {shown(name)} twice")
        described[name] = cursor.tensor(name, alignment)
    # a file without tensors may end right here, without padding
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {
        name: StoredTensor(cursor.file, kind, shape, data_start + offset, data_start + offset + size)
        for name, (kind, shape, offset, size) in described.items()
    }
    end, before = data_start, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end:
            raise fault(path, f"the tensors {shown(before)} and {shown(name)} overlap")
        end, before = tensor.stop, name
    if tensors and end > cursor.file.size:
        raise fault(path, f"is truncated: {cursor.file.size} bytes, but the tensor {shown(before)} ends at byte {end}")
    return tensors


class _Cursor:
    """A position in the file that only moves forward, and never past its end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0
        self._map = file.map
        self._size = file.size

    def skip(self, size: int) -> int:
        """Move on by ``size`` bytes and return where they start."""
        start = self.position
        if size > self._size - start:
            raise self._truncated()
        self.position = start + size
        return start

    def scalar(self, form: struct.Struct) -> int | float:
        value: int | float = form.unpack_from(self._map, self.skip(form.size))[0]
        return value

    def integer(self, form: struct.Struct) -> int:
        return int(self.scalar(form))

    def count(self, what: str, limit: int) -> int:
        count = self.integer(_U64)
        if count > limit:
            raise fault(self.file.path, f"claims {count} {what}; at most {limit} are accepted")
        return count

    def string(self, limit: int | None = None) -> str:
        size = self.integer(_U64)
        if limit is not None and size > limit:
            raise fault(self.file.path, f"has a name of {size} bytes; at most {limit} are accepted")
        start = self.skip(size)
        try:
            return str(self._map[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error

    def value(self, key: str) -> Value:
        kind = self.integer(_U32)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(key)
        form = _SCALARS.get(kind)
        if form is None:
            raise fault(self.file.path, f"the metadata key {shown(key)} has the unknown type {kind}")
        value = self.scalar(form)
        if kind != _BOOL:
            return value
        if value > 1:
            raise fault(self.file.path, f"the metadata key {shown(key)} is a boolean with the value {value}")
        return value == 1

    def _array(self, key: str) -> Value:
        kind = self.integer(_U32)
        count = self.count(f"elements in {shown(key)}", MAX_ARRAY)
        if kind == _STRING:
            return self._strings(count)
        form = _SCALARS.get(kind)
        if form is None:
            what = "is an array of arrays" if kind == _ARRAY else f"is an array of the unknown type {kind}"
            raise fault(self.file.path, f"the metadata key {shown(key)} {what}")
        start = self.skip(count * form.size)
        # copied, so that the metadata outlives the mapping
        data = self._map[start : self.position]
        array = np.frombuffer(data, dtype=np.dtype(form.format))
        if kind != _BOOL:
            return array
        if array.size and array.max() > 1:
            raise fault(self.file.path, f"the metadata key {shown(key)} is an array of booleans with other values")
        return array.astype(np.bool_)

    def _strings(self, count: int) -> tuple[str, ...]:
        # A vocabulary has 10 ** 5 strings, so this loop is most of the time it takes to open a file: locals only,
        # and one check per string.
        data, size, position, length_at = self._map, self._size, self.position, _U64.unpack_from
        texts = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_at(data, position)[0]
                if position > size:
                    raise self._truncated()
                texts.append(str(data[start:position], "utf-8"))
        except struct.error as error:
            raise self._truncated() from error
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error
        self.position = position
        return tuple(texts)

    def tensor(self, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        """The rest of a tensor's description: kind, shape, offset in the data, bytes."""
        dimension_count = self.integer(_U32)
        if not 1 <= dimension_count <= MAX_DIMENSIONS:
            raise self._tensor_fault(name, f"has {dimension_count} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        dimensions = tuple(self.integer(_U64) for _ in range(dimension_count))
        kind = self.integer(_U32)
        if kind not in KINDS:
            raise self._tensor_fault(name, f"has the unknown kind {kind}")
        kind_name, block_weights, block_bytes = KINDS[kind]
        offset = self.integer(_U64)
        if 0 in dimensions:
            raise self._tensor_fault(name, "is empty")
        if dimensions[0] % block_weights:
            raise self._tensor_fault(name, f"has rows of {dimensions[0]}, which are not whole blocks of {kind_name}")
        if offset % alignment:
            raise self._tensor_fault(name, f"starts at {offset}, which is not a multiple of {alignment}")
        # Python's integers don't overflow, so an absurd product is simply larger than the file
        size = math.prod(dimensions) // block_weights * block_bytes
        return kind_name, dimensions[::-1], offset, size

    def _tensor_fault(self, name: str, text: str) -> ModelError:
        return fault(self.file.path, f"the tensor {shown(name)} {text}")

    def _truncated(self) -> ModelError:
        return fault(self.file.path, f"is truncated or broken: its header goes on after its end ({self._size} bytes)")

    def _not_utf8(self) -> ModelError:
        return fault(self.file.path, "is broken: its metadata has a string that is not UTF-8")
