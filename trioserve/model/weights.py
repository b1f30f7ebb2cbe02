"""The weights of one model in mapped files, under the canonical names of DecoderSpec.

Owns: StoredTensor, MappedWeights, and the check that every weight is there exactly once.
Must not know: how the files describe their tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from trioserve.errors import ModelError
from trioserve.model.dequantise import SUPPORTED_KINDS, dequantise
from trioserve.model.fields import Fields
from trioserve.model.files import MappedFile, fault, shown
from trioserve.model.loaded import Float32Array, RawTensor
from trioserve.model.spec import DecoderSpec


@attrs.frozen
class StoredTensor:
    """Where a tensor lies. Whoever made it has checked that the bytes are in the file and fit the shape."""

    file: MappedFile
    kind: str
    """As RawTensor.kind."""
    shape: tuple[int, ...]
    """(out, in) for matrices."""
    start: int
    """First byte, from the start of the file."""
    stop: int
    """The byte after the last one."""

    def raw(self) -> RawTensor:
        return RawTensor(self.kind, self.shape, self.file.view(self.start, self.stop))

    def float32(self) -> Float32Array:
        """As Weights.float32."""
        return dequantise(self.raw())


class MappedWeights:
    """A Weights whose tensors are views of mapped files."""

    def __init__(self, files: Iterable[MappedFile], tensors: Mapping[str, StoredTensor]) -> None:
        self._files = tuple(files)
        self._tensors = dict(tensors)

    def __repr__(self) -> str:
        return f"<MappedWeights: {len(self._tensors)} tensors in {len(self._files)} files>"

    def float32(self, name: str) -> Float32Array:
        return self._tensors[name].float32()

    def raw(self, name: str) -> RawTensor:
        return self._tensors[name].raw()

    def close(self) -> None:
        for file in self._files:
            file.close()


def stored_name(canonical: str, names: Mapping[str, str]) -> str:
    """What a file calls a canonical weight. ``names`` maps the part after "layers.N." to a pattern with N as {}."""
    if canonical.startswith("layers."):
        _, layer, part = canonical.split(".")
        return names[part].format(layer)
    return names[canonical]


def layer_count(fields: Fields, key: str, stored: Mapping[str, StoredTensor]) -> int:
    """The number of layers, checked against the tensors there are, so that no loop over layers can be absurdly long.

    Raises:
        ModelError: it is missing, no integer, or not possible.
    """
    layers = fields.integer(key)
    if not 1 <= layers <= len(stored):
        raise fields.fault(key, f"is {layers}, but there are {len(stored)} tensors")
    return layers


def match_weights(
    path: Path,
    spec: DecoderSpec,
    stored: Mapping[str, StoredTensor],
    names: Mapping[str, str],
    ignored: Iterable[str],
) -> dict[str, StoredTensor]:
    """The stored tensors by canonical name: each weight of ``spec`` once, and nothing left over.

    A tensor that the model has and this program doesn't know would be silently left out of every computation, so
    it is refused, unless ``ignored`` names it.

    Raises:
        ModelError: a tensor is missing, of another shape, of a kind that can't be decoded, or not known.
    """
    weights: dict[str, StoredTensor] = {}
    left = set(stored).difference(ignored)
    for canonical, shape in spec.weight_shapes().items():
        name = stored_name(canonical, names)
        tensor = stored.get(name)
        if tensor is None:
            raise fault(path, f"the tensor {name!r} is missing")
        if tensor.shape != shape:
            raise tensor_fault(tensor, name, f"has the shape {tensor.shape} instead of {shape}")
        check_kind(name, tensor)
        weights[canonical] = tensor
        left.discard(name)
    if left:
        name = min(left)
        raise tensor_fault(stored[name], name, f"is not part of a {spec.architecture} model as we know it")
    return weights


def check_kind(name: str, tensor: StoredTensor) -> None:
    """Raise ModelError if the tensor can't be decoded."""
    if tensor.kind not in SUPPORTED_KINDS:
        supported = ", ".join(SUPPORTED_KINDS)
        raise tensor_fault(tensor, name, f"is of kind {tensor.kind}, which is not supported (supported: {supported})")


def tensor_fault(tensor: StoredTensor, name: str, text: str) -> ModelError:
    """The error that one tensor is unusable."""
    return fault(tensor.file.path, f"the tensor {shown(name)} {text}")
