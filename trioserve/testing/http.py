"""Clients for tests of HTTP: one in memory, one on a socket that does exactly what it is told.

Owns: AsgiClient, which needs no server and works in virtual time; RawClient, which can be as rude as a client gets.
Must not know: what is served.

Quart's own test client hangs after a disconnect and on responses of more than ten chunks, and httpx's ASGITransport
reads a response whole before it gives any of it away; so neither can test a stream.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import attrs
import h11
import trio
import trio.testing

Asgi = Callable[..., Awaitable[None]]
Message = dict[str, Any]


@attrs.frozen
class HttpResponse:
    """A complete response."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


class AsgiClient:
    """Calls an ASGI app, every request on its own.

    ``await client.request("GET", "/health")`` is a complete response; ``async with client.open(...) as exchange`` is
    a request in progress, of which the response can be read piece by piece, or left.
    """

    def __init__(self, app: Asgi, *, state: Mapping[str, object] | None = None) -> None:
        self._app = app
        self._state = dict(state or {})

    def open(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = b"",
        headers: Mapping[str, str] | None = None,
        http_version: str = "1.1",
    ) -> AsgiExchange:
        """An exchange to enter. With ``body=None`` the body is yet to be sent, with ``send_body()``."""
        raw_path, _, query = path.partition("?")
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": http_version,
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"test")] + [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": dict(self._state),
            "extensions": {},
        }
        return AsgiExchange(self._app, scope, body)

    async def request(self, method: str, path: str, **settings: Any) -> HttpResponse:
        """The complete response to a request; ``settings`` are those of ``open()``."""
        async with self.open(method, path, **settings) as exchange:
            return await exchange.response()


class AsgiExchange:
    """One request in progress. Leaving the block is a disconnect, and waits for the app's end.

    What the app sends is handed over when ``receive()`` asks for it: a test that does not ask is a client that does
    not read. Like a server, it tells the app of a disconnect also when the response has ended, and does so from inside
    the last send.
    """

    def __init__(self, app: Asgi, scope: Message, body: bytes | None) -> None:
        self.scope = scope
        self.status: int | None = None
        """None until the head of the response has arrived."""
        self.headers: dict[str, str] = {}
        self.complete = False
        """The app has sent the end of its response, and was not cancelled while it did."""
        self._app = app
        self._body = body
        self._gone = False
        self._to_app, self._messages = trio.open_memory_channel[Message](math.inf)
        self._from_app, self._chunks = trio.open_memory_channel[bytes](0)
        self._block = trio.open_nursery()

    async def __aenter__(self) -> Self:
        nursery = await self._block.__aenter__()
        nursery.start_soon(self._run)
        if self._body is not None:
            self.send_body(self._body)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.disconnect()
        try:
            # an async with in two halves, so no shield is wanted
            return await self._block.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102
        except BaseExceptionGroup as group:
            # what the test's own block raised comes out as it is
            if group.exceptions == (exc,):
                return False
            raise

    def send_body(self, data: bytes, *, more: bool = False) -> None:
        """Send a piece of the request's body."""
        self._to_app.send_nowait({"type": "http.request", "body": data, "more_body": more})

    def disconnect(self) -> None:
        """Leave. Idempotent."""
        if not self._gone:
            self._gone = True
            self._to_app.send_nowait({"type": "http.disconnect"})
            # if the app is sending, it gets an error
            self._chunks.close()

    async def receive(self) -> bytes:
        """The next piece of the response's body.

        Raises:
            trio.EndOfChannel: there is no more; ``complete`` says whether the response has ended or broken off.
        """
        return await self._chunks.receive()

    async def response(self) -> HttpResponse:
        """The complete response.

        Raises:
            trio.BrokenResourceError: it broke off.
        """
        body = b"".join([chunk async for chunk in self._chunks])
        # the last send is not over when its bytes are there
        await trio.testing.wait_all_tasks_blocked()
        if self.status is None or not self.complete:
            raise trio.BrokenResourceError("the response broke off")
        return HttpResponse(self.status, self.headers, body)

    async def _run(self) -> None:
        with self._from_app:
            await self._app(self.scope, self._messages.receive, self._send)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            await trio.lowlevel.checkpoint()
            return
        if message["body"]:
            try:
                await self._from_app.send(message["body"])
            except trio.BrokenResourceError:
                raise BrokenPipeError from None
        if not message["more_body"]:
            self._from_app.close()
            self._to_app.send_nowait({"type": "http.disconnect"})
            # time for the app to act on it
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            self.complete = True


def request_bytes(
    method: str,
    target: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    http_version: str = "1.1",
) -> bytes:
    """A request with a Host header, and with a Content-Length if there is a body and no header says otherwise."""
    lines = {"Host": "test"}
    if body:
        lines["Content-Length"] = str(len(body))
    lines.update(headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/{http_version}\r\n{head}\r\n".encode() + body


class RawClient:
    """A connection to a server; what is sent on it is up to the test."""

    def __init__(self, connected: trio.socket.SocketType) -> None:
        self._socket = connected
        self._buffer = b""

    @classmethod
    async def connect(cls, where: int | Path, *, receive_buffer: int | None = None) -> Self:
        """Connect to a port of 127.0.0.1 or to a unix socket.

        A small ``receive_buffer`` makes a client that does not read stall a TCP server soon.
        """
        is_tcp = isinstance(where, int)
        connecting = trio.socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX)
        try:
            if receive_buffer is not None:
                connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            if is_tcp:
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await connecting.connect(("127.0.0.1", where) if is_tcp else str(where))
        except BaseException:
            connecting.close()
            raise
        return cls(connecting)

    @property
    def port(self) -> int:
        """The client's own TCP port."""
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        rest = memoryview(data)
        while rest:
            rest = rest[await self._socket.send(rest) :]

    async def receive(self) -> bytes:
        """What there is; b"" at the end. Raises ConnectionResetError for any other end."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        return await self._socket.recv(65536)

    async def receive_until(self, mark: bytes) -> bytes:
        """Everything up to and including ``mark``; what follows is kept for the next call."""
        data = b""
        while mark not in data:
            more = await self.receive()
            if not more:
                raise trio.EndOfChannel
            data += more
        end = data.index(mark) + len(mark)
        self._buffer = data[end:]
        return data[:end]

    async def receive_all(self) -> bytes:
        """Everything up to the end. Raises ConnectionResetError if the server does not close in the normal way."""
        data = b""
        while more := await self.receive():
            data += more
        return data

    async def response(self, method: str = "GET") -> HttpResponse:
        """The response to a request with this method.

        Raises:
            h11.RemoteProtocolError: it broke off, or is not HTTP.
        """
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "test")]))
        parser.send(h11.EndOfMessage())
        status, headers, body = 0, {}, b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await self.receive())
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._buffer = parser.trailing_data[0]
                return HttpResponse(status, headers, body)

    def close(self) -> None:
        """Close, as a client that is done or that was ended."""
        self._socket.close()

    def reset(self) -> None:
        """Close with a TCP reset, as a client that crashed."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def half_close(self) -> None:
        """Stop sending, and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)
