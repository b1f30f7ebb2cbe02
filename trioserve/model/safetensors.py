"""Reads safetensors files, alone or in shards: where every tensor of a model lies.

Owns: the header format, the index of shards, and which files of a folder are the model's. Must not know: what any
tensor means.

A file is a uint64 length, that many bytes of JSON, and the data. The JSON maps a name to a dtype, a shape and the
offsets of its bytes in the data. As in the reference implementation, tensors follow each other without holes and
fill the file to its last byte, so a truncated file never passes.

Which files count: those named by model.safetensors.index.json; without an index model.safetensors; without that the
folder's only .safetensors file. Others are left alone.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeGuard

import attrs

from trioserve.errors import ModelError
from trioserve.model.files import MIB, MappedFile, fault, parse_json, read_json, shown
from trioserve.model.weights import StoredTensor

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER: Final = 100_000_000
"""In bytes; the limit of the reference implementation."""
_MAX_INDEX: Final = 64 * MIB
_MAX_DIMENSIONS: Final = 8
_DTYPE_BYTES: Final[Mapping[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}


@attrs.frozen(eq=False)
class Checkpoint:
    """The open weight files of one folder."""

    files: tuple[MappedFile, ...]
    tensors: Mapping[str, StoredTensor]

    def close(self) -> None:
        close_all(self.files)


def close_all(files: Iterable[MappedFile]) -> None:
    for file in files:
        file.close()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Open the weight files of a folder.

    Raises:
        ModelError: there are none, a file or a tensor named in the index is missing, a file is broken or truncated,
            or a dtype is not F32, F16 or BF16.
    """
    index = folder / INDEX
    places = _read_index(index) if index.exists() else None
    names = [_only_file(folder)] if places is None else sorted(set(places.values()))
    files: list[MappedFile] = []
    tensors: dict[str, StoredTensor] = {}
    try:
        for name in names:
            if not (folder / name).exists():
                raise fault(folder / name, f"is missing, but {INDEX} names it")
            files.append(MappedFile(folder / name))
            found = _read_header(files[-1])
            if places is not None:
                _check_shard(files[-1].path, found, places)
            tensors |= found
    except BaseException:
        close_all(files)
        raise
    return Checkpoint(tuple(files), tensors)


def _only_file(folder: Path) -> str:
    if (folder / SINGLE).exists():
        return SINGLE
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(names) == 1:
        return names[0]
    if names:
        raise fault(folder, f"has {len(names)} .safetensors files, but no {INDEX} to say what is where")
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt", "*.gguf") for path in folder.glob(pattern))
    hint = f" ({shown(others[0])} is another format)" if others else ""
    raise fault(folder, f"has no .safetensors files{hint}")


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    places = read_json(path, _MAX_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise fault(path, "has no weight_map object")
    for name, file in places.items():
        # the name must stay in the folder: an index may come from anywhere
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise fault(path, f"puts {shown(name)} into {shown(file)}, which is not the name of a .safetensors file")
    return places


def _check_shard(path: Path, found: Mapping[str, StoredTensor], places: Mapping[str, str]) -> None:
    """Raise ModelError unless the shard holds exactly the tensors that the index expects there."""
    expected = {name for name, file in places.items() if file == path.name}
    if missing := expected - found.keys():
        raise fault(path, f"has no tensor {shown(min(missing))}, but {INDEX} says so")
    if extra := found.keys() - expected:
        raise fault(path, f"has the tensor {shown(min(extra))}, which {INDEX} doesn't place there")


def _read_header(file: MappedFile) -> dict[str, StoredTensor]:
    if file.size < _LENGTH.size:
        raise fault(file.path, f"is truncated: {file.size} bytes")
    length = _LENGTH.unpack_from(file.map)[0]
    data_start = _LENGTH.size + length
    if length > _MAX_HEADER or data_start > file.size:
        raise fault(file.path, f"is truncated or no safetensors file: a header of {length} bytes in {file.size}")
    try:
        text = str(file.map[_LENGTH.size : data_start], "utf-8")
    except UnicodeDecodeError as error:
        raise fault(file.path, "is broken: its header is not UTF-8") from error

    def broken(what: str) -> ModelError:
        return fault(file.path, f"is broken: its header {what}")

    entries = parse_json(text, broken)
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(file, data_start, name, entry) for name, entry in entries.items()}
    end = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            raise broken(f"leaves a hole or an overlap at the tensor {shown(name)}")
        end = tensor.stop
    if end != file.size:
        what = "is truncated" if end > file.size else "has bytes after its last tensor"
        raise fault(file.path, f"{what}: {file.size} bytes instead of {end}")
    return tensors


def _tensor(file: MappedFile, data_start: int, name: str, entry: object) -> StoredTensor:
    def broken(what: str) -> ModelError:
        return fault(file.path, f"the tensor {shown(name)} {what}")

    if not isinstance(entry, dict):
        raise broken("is not described by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        raise broken(f"has the dtype {shown(dtype)}, which is not supported (supported: {', '.join(_DTYPE_BYTES)})")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise broken(f"has the shape {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken(f"has the data_offsets {shown(offsets)}")
    start, stop = offsets
    if stop - start != math.prod(shape) * _DTYPE_BYTES[dtype]:
        raise broken(f"has {stop - start} bytes, which are not {dtype} of shape {shown(shape)}")
    return StoredTensor(file, dtype, tuple(shape), data_start + start, data_start + stop)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63 for size in value
    )
