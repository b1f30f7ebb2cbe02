"""Which web pages may ask: cross-origin resource sharing, as the Fetch standard has it.

Owns: Cors, the headers it adds to answers, and the answer to a preflight.
Must not know: what is asked for. A browser obeys these headers; anything else that connects does not look at them.

Keys come in headers that a page sets itself, never in cookies, so ``Access-Control-Allow-Credentials`` is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Self

import attrs

from trioserve.errors import ParamError
from trioserve.web.headers import RawHeaders, values_of

ANY: Final = "*"
METHODS: Final = b"GET, POST, DELETE"
EXPOSED: Final = b"x-request-id, retry-after, www-authenticate"
"""The headers of an answer that a page may read."""
MAX_AGE: Final = b"7200"
"""Seconds that a browser may remember a preflight; none remembers one for longer than 24 hours, most for 2."""

# what a browser sends: no path, and no "/" in the end
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", re.ASCII)

Headers = list[tuple[bytes, bytes]]


@attrs.frozen
class Cors:
    """The origins of the pages that may ask. Without any of them, no answer has a header about origins."""

    _origins: frozenset[bytes] = frozenset()
    _any: bool = False

    @classmethod
    def of(cls, origins: Iterable[str]) -> Self:
        """Origins such as "https://example.org:8443"; "*" is every origin.

        Raises:
            ParamError: one is not an origin.
        """
        names = [origin.lower() for origin in origins]
        for name in names:
            if name != ANY and not (name.isascii() and _ORIGIN.fullmatch(name)):
                raise ParamError(
                    f'An origin is "*", or a scheme, a host and a port, such as "https://example.org"; got {name!r}.',
                    "cors_origins",
                )
        return cls(frozenset(name.encode() for name in names if name != ANY), ANY in names)

    @property
    def is_on(self) -> bool:
        """Whether any page may ask."""
        return self._any or bool(self._origins)

    def allows(self, headers: RawHeaders) -> bool:
        """Whether the page that sends a request may have the answer."""
        return self._any or self._origin(headers) is not None

    def answer_headers(self, headers: RawHeaders) -> Headers:
        """What the answer to a request with these headers says about origins, whatever the answer is."""
        if not self.is_on:
            return []
        if self._any:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", EXPOSED)]
        # a cache must not give one page's answer to another, whoever asks first
        vary = (b"vary", b"Origin")
        origin = self._origin(headers)
        if origin is None:
            return [vary]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED), vary]

    def preflight_headers(self, headers: RawHeaders) -> Headers:
        """What the answer to an allowed preflight says, beside ``answer_headers``."""
        allowed = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", MAX_AGE),
            (b"vary", b"Access-Control-Request-Headers"),
        ]
        wanted = values_of(headers, b"access-control-request-headers")
        if wanted:
            # by name: "*" would not cover Authorization
            allowed.append((b"access-control-allow-headers", b", ".join(wanted)))
        return allowed

    def _origin(self, headers: RawHeaders) -> bytes | None:
        """The Origin header if it is one of ours."""
        given = values_of(headers, b"origin")
        return given[0] if len(given) == 1 and given[0].lower() in self._origins else None


def is_preflight(method: str, headers: RawHeaders) -> bool:
    """Whether a browser asks whether a page may ask."""
    return method == "OPTIONS" and bool(
        values_of(headers, b"origin") and values_of(headers, b"access-control-request-method")
    )
