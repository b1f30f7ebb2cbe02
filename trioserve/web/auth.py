"""Who may ask: API keys, and the header that a request shows one in.

Owns: ApiKeys, and how a key is compared. Must not know: paths, where keys come from.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from typing import Final, Self

import attrs

from trioserve.errors import ParamError
from trioserve.web.headers import RawHeaders, values_of

# RFC 9110: the scheme is case-insensitive, and one or more spaces follow it
_BEARER: Final = re.compile(rb"bearer +(.*)", re.IGNORECASE | re.DOTALL)
# what can't be sent in a header, or would be cut off there
_UNSENDABLE: Final = re.compile(rb"[\x00-\x20\x7f]")


@attrs.frozen(repr=False)
class ApiKeys:
    """The keys of a server, of which it keeps only the SHA-256: so no log, traceback or repr can tell one.

    Digests have one length, and all are compared, each in constant time: how long the answer takes says nothing about
    the keys.
    """

    _digests: tuple[bytes, ...]

    @classmethod
    def of(cls, keys: Iterable[str]) -> Self:
        """The keys as text, which may be any that a header can carry; it is compared as UTF-8.

        Raises:
            ParamError: a key is empty, or has a space or a control character in it. The message does not tell it.
        """
        digests = []
        for key in keys:
            # the bytes as they are if they came from the command line and are not UTF-8
            data = os.fsencode(key)
            if not data or _UNSENDABLE.search(data):
                raise ParamError(
                    "A key has one character or more, and no spaces or control characters among them.", "api_key"
                )
            digests.append(_digest(data))
        return cls(tuple(digests))

    def __repr__(self) -> str:
        return f"<{len(self._digests)} API keys>"

    def admit(self, headers: RawHeaders) -> bool:
        """Whether a request shows one of the keys, as ``Authorization: Bearer KEY`` or as ``x-api-key: KEY``.

        Either of the two will do, but a header that comes twice is no key.
        """
        return sum(self._count(shown) for shown in _shown_keys(headers)) > 0

    def _count(self, key: bytes) -> int:
        """How many of the keys are ``key``. It counts, because any() would stop at the first."""
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, each) for each in self._digests)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _shown_keys(headers: RawHeaders) -> list[bytes]:
    shown = []
    bearers, plain = values_of(headers, b"authorization"), values_of(headers, b"x-api-key")
    if len(bearers) == 1 and (bearer := _BEARER.fullmatch(bearers[0].strip(b" \t"))) is not None:
        shown.append(bearer[1])
    if len(plain) == 1:
        shown.append(plain[0].strip(b" \t"))
    return shown
