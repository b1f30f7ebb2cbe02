"""What memory the machine has for keys and values.

Owns: the check before they are allocated. Must not know: tensors, pages.
"""

from __future__ import annotations

import os

from trioserve.errors import ParamError


def check_memory(tokens: int, size: int) -> None:
    """Refuse what the machine has no memory for, instead of being ended by it when the pages are written."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise ParamError(
            f"kv_tokens is too large: the keys and values of {tokens} tokens take {size / 1e9:,.1f} GB, "
            f"and this machine has {memory / 1e9:,.1f} GB of memory.",
            "kv_tokens",
        )
