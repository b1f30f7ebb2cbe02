"""What every request meets before the app, decided from its head alone: nothing of its body has been looked at yet.

Owns: the order of these checks, which paths are open, the headers that every answer has, and a request's id and time.
Must not know: routes, connections.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trioserve.errors import AuthenticationError, ParamError, TrioserveError
from trioserve.web.auth import ApiKeys
from trioserve.web.cors import Cors, Headers, is_preflight
from trioserve.web.dialects import error_format, is_anthropic
from trioserve.web.headers import RawHeaders, values_of

if TYPE_CHECKING:
    from trioserve.web.options import ServeOptions

OPEN_PATHS: Final = frozenset({"/health", "/version"})
"""What needs no key: a load balancer has none to show, and these tell nothing about what is served or who asks."""
MAX_REQUEST_ID: Final = 128
TIMEOUT_HEADER: Final = "X-Request-Timeout"

_SECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,9})?")


@attrs.frozen
class PlainAnswer:
    """An answer that needs no app."""

    status: int
    headers: Headers
    body: bytes = b""

    @classmethod
    def to_error(cls, error: BaseException, path: str) -> PlainAnswer:
        """The answer that tells of an error to who asks for ``path``, the local one."""
        status, body = error_format(path).error_body(error)
        wants_key = isinstance(error, AuthenticationError)
        return cls.json(status, body, [(b"www-authenticate", b"Bearer")] if wants_key else [])

    @classmethod
    def json(cls, status: int, body: bytes, headers: Headers) -> PlainAnswer:
        framing = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        return cls(status, [*framing, *headers], body)


@attrs.frozen(kw_only=True)
class Front:
    """What one server asks of every request."""

    keys: ApiKeys | None = None
    """None: whoever connects may ask."""
    cors: Cors = attrs.field(factory=Cors)
    root_path: str = ""
    """The prefix of all paths, as those outside see them; "" for none, else "/llm"."""
    request_timeout: float = math.inf
    """Seconds that a request may take; the smaller one counts if it says so itself."""

    @classmethod
    def of(cls, options: ServeOptions) -> Front:
        """As the options say."""
        return cls(
            keys=options.api_keys,
            cors=Cors.of(options.cors_origins),
            root_path=options.root_path,
            request_timeout=options.request_timeout,
        )

    def local_path(self, path: str) -> str:
        """``path`` without the prefix, which a proxy may keep or strip."""
        if path == self.root_path:
            return "/"
        return path.removeprefix(self.root_path) if path.startswith(f"{self.root_path}/") else path

    def early_answer(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> PlainAnswer | None:
        """The answer to a request that does not get to the app; ``path`` is the local one."""
        # a browser shows no key in a preflight, so this comes first
        if self.cors.is_on and is_preflight(method, headers):
            if not self.cors.allows(headers):
                body = error_format(path).http_error_body(403, "Pages of this origin may not ask this server.")
                return PlainAnswer.json(403, body, [])
            return PlainAnswer(204, self.cors.preflight_headers(headers))
        try:
            self._check_key(path, headers)
            self.timeout(headers)
        except TrioserveError as error:
            return PlainAnswer.to_error(error, path)
        return None

    def _check_key(self, path: str, headers: RawHeaders) -> None:
        if self.keys is not None and path not in OPEN_PATHS and not self.keys.admit(headers):
            raise AuthenticationError

    def timeout(self, headers: RawHeaders) -> float:
        """Seconds that a request with these headers may take.

        Raises:
            ParamError: the header that says so is no number of seconds.
        """
        given = values_of(headers, TIMEOUT_HEADER.lower().encode())
        if not given:
            return self.request_timeout
        if len(given) > 1 or not _SECONDS.fullmatch(given[0]) or not float(given[0]):
            raise ParamError(
                f'{TIMEOUT_HEADER} must be a number of seconds above 0, such as "30" or "2.5".', TIMEOUT_HEADER
            )
        return min(self.request_timeout, float(given[0]))

    def answer_headers(self, path: str, headers: RawHeaders, request_id: str) -> Headers:
        """What every answer to a request with these headers has beside its own; ``path`` is the local one."""
        # Anthropic's clients look for it under another name
        names = (b"x-request-id", b"request-id") if is_anthropic(path) else (b"x-request-id",)
        return [*((name, request_id.encode()) for name in names), *self.cors.answer_headers(headers)]


def given_request_id(headers: RawHeaders) -> str | None:
    """The caller's X-Request-Id if it is short and plain enough to be harmless in a log (FAN-12); else None."""
    given = values_of(headers, b"x-request-id")
    text = given[0].decode("latin-1") if given else ""
    return text if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable() else None


def new_request_id() -> str:
    """An id for a request whose caller has given it none."""
    return f"req-{uuid.uuid4().hex}"
