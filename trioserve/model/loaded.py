"""What reading a model gives, whatever its files were.

Owns: LoadedModel and the Weights protocol. Must not know: devices, the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.abc import Tokenizer
from trioserve.model.spec import DecoderSpec
from trioserve.params import Pooling
from trioserve.text.template import ChatTemplate

Float32Array = npt.NDArray[np.float32]


@attrs.frozen
class RawTensor:
    """A weight as its file stores it."""

    kind: str
    """"F32", "F16", "BF16", or a GGUF block format: "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", ..."""
    shape: tuple[int, ...]
    """(out, in) for matrices."""
    data: memoryview
    """The bytes, row after row; usually a view of a mapped file, so use it before the Weights is closed."""


class Weights(Protocol):
    """The weights of one model under their canonical names (DecoderSpec.weight_shapes)."""

    def float32(self, name: str) -> Float32Array:
        """The weight, dequantised, as a new C-contiguous array of its shape."""
        ...

    def raw(self, name: str) -> RawTensor: ...

    def close(self) -> None:
        """Unmap the files. Idempotent."""
        ...


@attrs.frozen(kw_only=True)
class LoadedModel:
    """A model ready for a device: description, weights, tokenizer, chat template."""

    name: str
    """The id it is served under."""
    path: Path
    spec: DecoderSpec
    weights: Weights
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model's files have no chat template."""
    default_temperature: float | None = None
    """From the model's own generation config; None when it says nothing."""
    pooling: Pooling | None = None
    """How the model was made to make one vector of a text; None when its files say nothing, or another way than these.
    """
    warnings: tuple[str, ...] = ()
    """What its files leave open and had to be assumed, and what in them has no effect. For people: log them."""
