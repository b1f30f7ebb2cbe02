"""What an exchange sees of the server it belongs to: the access log, and the warning before it is cut off.

Owns: Access, ServerState. Must not know: HTTP, Quart, connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from trioserve.web.front import Front

STATE_KEY: Final = "trioserve"
"""Where a request's ASGI scope["state"] has the ServerState."""
CLIENT_LEFT: Final = 499
"""The status in the log, never on the wire, of an exchange whose client left before its end (FAN-25)."""
CUT_OFF: Final = 503
"""The status in the log of an exchange that the server cut off in order to shut down."""


@attrs.frozen(kw_only=True)
class Access:
    """One finished exchange, for the access log."""

    request_id: str
    """The caller's X-Request-Id, or the one that it was given."""
    method: str | None
    """None if the head of the request could not be understood."""
    path: str | None
    status: int
    """What was sent; 499 if the client left first, 500 if the response broke off, 503 if a shutdown cut it off."""
    sent_bytes: int
    """Bytes of the body, without framing; for HEAD those that GET would have sent."""
    seconds: float
    """From the head of the request to the end; 0.0 for a request that was refused before it reached the app."""
    client: tuple[str, int] | None
    """Address and port; None on a unix socket."""

    @property
    def client_address(self) -> str:
        """The client as a log names it: "127.0.0.1:51234", "[::1]:51234", or "unix" on a unix socket."""
        if self.client is None:
            return "unix"
        host, port = self.client
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def log_nothing(access: Access) -> None:
    """The access log of those who don't want one."""


@attrs.define(eq=False)
class ServerState:
    """What the exchanges of one server share."""

    log: Callable[[Access], None] = log_nothing
    """Called once for every exchange, when it has ended."""
    front: Front = attrs.field(factory=Front)
    """What is asked of requests before they are exchanges."""
    closing: bool = attrs.field(default=False, init=False)
    """The time for requests in progress is running out; once true, always true."""
    _scopes: set[trio.CancelScope] = attrs.field(factory=set, init=False)

    @property
    def scope_count(self) -> int:
        """Scopes that were added and not discarded."""
        return len(self._scopes)

    def add_scope(self) -> trio.CancelScope:
        """A new cancel scope, cancelled by ``begin_closing()``, at once if that has been called already."""
        scope = trio.CancelScope()
        if self.closing:
            scope.cancel()
        self._scopes.add(scope)
        return scope

    def discard_scope(self, scope: trio.CancelScope) -> None:
        """Forget the scope of an exchange that has ended."""
        self._scopes.discard(scope)

    def begin_closing(self) -> None:
        """Cancel all scopes: what still runs has about a second to tell its client so."""
        self.closing = True
        for scope in self._scopes:
            scope.cancel()
