"""The sockets a server listens on.

Owns: binding, socket options, the unix socket's file, the reading of certificates.
Must not know: what is served. Binding comes before the model is loaded, so that a taken port or a
bad certificate is found out at once.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs

from trioserve.web.options import ServeOptions
from trioserve.web.tls import make_context

# What is wrong with an address of "localhost" on a machine without that version of IP.
_NO_SUCH_ADDRESS: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
# Dead peers are found after KEEPIDLE + KEEPCNT * KEEPINTVL = 60 silent seconds.
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


@attrs.frozen(eq=False)
class Listeners:
    """Bound and listening sockets. Leaving its ``with`` block, or ``close()``, frees the addresses."""

    sockets: tuple[socket.socket, ...]
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    """What is spoken on them; None: plain HTTP."""
    _file: tuple[int, int] | None = attrs.field(default=None, repr=False)
    """Device and inode of the unix socket's file."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where to connect: "http://127.0.0.1:8000", "https://[::1]:8000" or "unix:/run/trioserve.sock"."""
        scheme = "http" if self.tls is None else "https"
        return tuple(_address(listener, scheme) for listener in self.sockets)

    @property
    def port(self) -> int:
        """The TCP port, the same for all addresses; 0 for a unix socket."""
        first = self.sockets[0]
        return 0 if first.family == socket.AF_UNIX else int(first.getsockname()[1])

    def close(self) -> None:
        """Close the sockets and remove a unix socket's file. Idempotent."""
        for listener in self.sockets:
            if listener.fileno() == -1:
                continue
            if listener.family == socket.AF_UNIX:
                self._remove(Path(listener.getsockname()))
            listener.close()

    def _remove(self, path: Path) -> None:
        """Remove the file, unless another server has put its own in its place."""
        with suppress(FileNotFoundError):
            if self._file in (None, _file_of(path)):
                path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def bind(options: ServeOptions) -> Listeners:
    """Bind to the options' unix socket or to every address of their host, and listen.

    Raises:
        OSError: an address is taken, not allowed, or not one of this machine.
        ParamError: there is something wrong with the certificate.
    """
    tls = None
    if options.tls_cert is not None:
        tls = make_context(options.tls_cert, options.tls_key, options.tls_client_ca)
    if options.unix_socket is not None:
        listener = _bind_unix(options.unix_socket, options)
        return Listeners((listener,), tls, _file_of(options.unix_socket))
    return Listeners(_bind_host(options), tls)


def _bind_host(options: ServeOptions) -> tuple[socket.socket, ...]:
    # one host may stand for several addresses, as "localhost" does for ::1 and 127.0.0.1
    found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    port = options.port
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                listener = _bind_tcp(family, (address[0], port, *address[2:]), options)
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
                continue
            bound.append(listener)
            # a port of 0 is chosen once, for all addresses
            port = listener.getsockname()[1]
        if missing is not None and not bound:
            raise missing
    except BaseException:
        Listeners(tuple(bound)).close()
        raise
    return tuple(bound)


def _bind_tcp(family: int, address: tuple[object, ...], options: ServeOptions) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            # else [::] would also take the IPv4 addresses, which are bound on their own
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # lets a restarted server bind while connections of the old one are in TIME_WAIT
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # the rest is inherited by the connections
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        # the kernel's view of a stalled peer: data that stays unacknowledged; 0 is its default
        stall = options.send_stall_timeout
        milliseconds = 0 if math.isinf(stall) else min(math.ceil(stall * 1000), 2**31 - 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.bind(address)
        listener.listen(options.backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_unix(path: Path, options: ServeOptions) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mode = options.unix_socket_mode
    try:
        if mode is not None:
            # the file is made with no more than these; the umask may take some away, which chmod gives back
            os.fchmod(listener.fileno(), mode)
        listener.bind(str(path))
        if mode is not None:
            path.chmod(mode)
        listener.listen(options.backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that ended without removing it; leave that of a running one."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def _file_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _address(listener: socket.socket, scheme: str) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{scheme}://{host}:{name[1]}"
