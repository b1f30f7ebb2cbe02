"""What a device may be asked to hold: how long a context, how many keys and values.

Owns: the checks before anything is allocated. Must not know: tensors, pages.
"""

from __future__ import annotations

import os

from trioserve.errors import ParamError
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


def check_memory(tokens: int, size: int) -> None:
    """Refuse what the machine has no memory for, instead of being ended by it when the pages are written."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise ParamError(
            f"kv_tokens is too large: the keys and values of {tokens} tokens take {size / 1e9:,.1f} GB, "
            f"and this machine has {memory / 1e9:,.1f} GB of memory.",
            "kv_tokens",
        )
