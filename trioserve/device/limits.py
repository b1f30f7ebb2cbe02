"""What a device may be asked to hold: how long a context, how many keys and values, how large a model.

Owns: the checks before anything is allocated. Must not know: tensors, pages.
"""

from __future__ import annotations

from trioserve.device.machine import usable_memory
from trioserve.errors import DeviceError, ParamError
from trioserve.model.spec import DecoderSpec


def resolve_context_length(spec: DecoderSpec, requested: int | None) -> int:
    """Tokens per sequence at most: what was requested, or what the model was made for.

    Raises:
        ParamError: the model was not made for so long a context.
    """
    if requested is None:
        return spec.context_length
    if requested > spec.context_length:
        raise ParamError(
            f"context_length must be at most {spec.context_length} for this model, got {requested}.", "context_length"
        )
    return requested


def check_memory(tokens: int, kv_bytes: int, weight_bytes: int, *, memory: int | None = None) -> None:
    """Refuse what the machine has no memory for, instead of being ended by it when the pages are written.

    Args:
        tokens: that the pages hold.
        kv_bytes: that the pages take.
        weight_bytes: that the weights take, before any are loaded.
        memory: bytes in all; None asks the system.

    Raises:
        DeviceError: there is no memory for the weights.
        ParamError: there is some, but not for so many pages.
    """
    if memory is None:
        memory = usable_memory()
    if weight_bytes > memory:
        raise DeviceError(
            f"The model's weights take {_gigabytes(weight_bytes)}, and there are {_gigabytes(memory)} of memory."
        )
    if weight_bytes + kv_bytes > memory:
        raise ParamError(
            f"kv_tokens is too large: the keys and values of {tokens} tokens take {_gigabytes(kv_bytes)}, the model's "
            f"weights {_gigabytes(weight_bytes)}, and there are {_gigabytes(memory)} of memory.",
            "kv_tokens",
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
