"""Headers as ASGI and h11 have them: pairs of bytes, names in lower case.

Owns: how they are looked up. Must not know: what any of them means.
"""

from __future__ import annotations

from collections.abc import Iterable

RawHeaders = Iterable[tuple[bytes, bytes]]


def values_of(headers: RawHeaders, name: bytes) -> list[bytes]:
    """The values of all headers called ``name``, which is in lower case, in their order."""
    return [value for each, value in headers if each == name]
