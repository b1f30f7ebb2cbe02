"""How the HTTP server is set up.

Owns: ServeOptions and its checks. Must not know: flags, environment variables.
"""

from __future__ import annotations

import math
import re
import stat
from pathlib import Path

import attrs

from trioserve.errors import ParamError
from trioserve.params import at_least
from trioserve.web.auth import ApiKeys
from trioserve.web.cors import Cors

MAX_PORT = 65535
ALL_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


def _is_port(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value <= MAX_PORT:
        raise ParamError(f"{attribute.name} must be between 0 and {MAX_PORT}, got {value}.", attribute.name)


def _positive(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    # written so that NaN fails too
    if not value > 0:
        raise ParamError(f"{attribute.name} must be more than 0 seconds, got {value}.", attribute.name)


def _not_negative(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value >= 0:
        raise ParamError(f"{attribute.name} must not be negative, got {value}.", attribute.name)


def _without_last_slash(path: str) -> str:
    return path.removesuffix("/")


def _is_path(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not re.fullmatch(r"(/[\w.~-]+)*", value, re.ASCII):
        raise ParamError(f'{attribute.name} must be a path such as "/llm", got {value!r}.', attribute.name)


def _are_origins(_: object, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    Cors.of(value)


def _is_mode(_: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and not 0 <= value <= ALL_PERMISSIONS:
        raise ParamError(
            f"{attribute.name} must be between 0 and {ALL_PERMISSIONS:#o}, got {value:#o}.", attribute.name
        )


@attrs.frozen(kw_only=True)
class ServeOptions:
    """Options of the HTTP server. Frozen, and valid once it exists. Times are in seconds; ``math.inf`` is no limit.

    Raises:
        ParamError: a value is out of range.
    """

    host: str = "127.0.0.1"
    """A name or address; all addresses of a name are served."""
    port: int = attrs.field(default=8000, validator=_is_port)
    """0: any free port."""
    unix_socket: Path | None = None
    """Listen on this path instead of on host and port."""
    unix_socket_mode: int | None = attrs.field(default=None, validator=_is_mode)
    """The permissions of that path, such as 0o660; None: what the umask leaves."""
    tls_cert: Path | None = None
    """PEM file with a certificate and those that it rests on; there is TLS if there is one."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, not encrypted; None: it is in the same file."""
    tls_client_ca: Path | None = None
    """PEM file with certificates, one of which must have signed that of each client; None: no client is asked."""
    root_path: str = attrs.field(default="", converter=_without_last_slash, validator=_is_path)
    """The prefix of all paths as clients of a reverse proxy see them, which may strip it or not: "/llm"."""
    api_keys: ApiKeys | None = None
    """Who may ask; None: whoever connects."""
    cors_origins: tuple[str, ...] = attrs.field(default=(), validator=_are_origins)
    """The origins of web pages that may ask, "*" for all."""
    backlog: int = attrs.field(default=1024, validator=at_least(1))
    """Connections that the kernel keeps while they wait to be accepted."""
    max_connections: int = attrs.field(default=1024, validator=at_least(1))
    """Connections served at once; more wait in the backlog."""
    keep_alive_timeout: float = attrs.field(default=75.0, validator=_positive)
    """How long a connection may be idle: before its first request and between requests."""
    header_timeout: float = attrs.field(default=10.0, validator=_positive)
    """From the first byte of a request to the end of its head."""
    body_timeout: float = attrs.field(default=30.0, validator=_positive)
    """How long a handler waits for the whole body of its request."""
    send_stall_timeout: float = attrs.field(default=30.0, validator=_positive)
    """How long a client may read nothing of what it is sent."""
    max_head_size: int = attrs.field(default=64 * 2**10, validator=at_least(1024))
    """Bytes of a request line and its headers."""
    max_headers: int = attrs.field(default=100, validator=at_least(1))
    """Header lines of a request."""
    max_body_size: int = attrs.field(default=32 * 2**20, validator=at_least(0))
    """Bytes of a request's body."""
    request_timeout: float = attrs.field(default=math.inf, validator=_positive)
    """How long a request may take, from its head to the end of its answer; its X-Request-Timeout may say less."""
    graceful_timeout: float = attrs.field(default=30.0, validator=_not_negative)
    """How long requests may go on after the signal to shut down."""
    ping_interval: float = attrs.field(default=15.0, validator=_positive)
    """Silence in a stream after which a comment is sent, for the sake of proxies."""

    def __attrs_post_init__(self) -> None:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_cert is None:
                raise ParamError(f"{name} is of no use without a certificate.", name)
        if self.unix_socket_mode is not None and self.unix_socket is None:
            raise ParamError("unix_socket_mode is of no use without a unix socket.", "unix_socket_mode")
