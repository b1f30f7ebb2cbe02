"""HTTP/1.1 on one connection: bytes from the client to exchanges, and responses to bytes.

Owns: the state of h11, the limits on a request's head, refusals below the app, the framing of responses.
Must not know: sockets, clocks, Quart.

Hypercorn's H11Protocol is the base, and its HTTPStream turns requests into ASGI calls. What differs here:

- A client that sends ahead while it is being answered is read on, so that its leaving is seen; its bytes wait in h11.
- No upgrades: neither WebSockets nor HTTP/2, which belongs to a reverse proxy. ``Upgrade`` headers are ignored, as
  HTTP allows.
- Everything refused here is refused with a JSON body.
- A chunk of a response is framed here, in one ``bytes`` and without h11, and the head goes out with the first one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

import h11
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup

from trioserve.web.dialects import error_format
from trioserve.web.front import given_request_id, new_request_id
from trioserve.web.options import ServeOptions
from trioserve.web.state import STATE_KEY, Access, ServerState

MAX_AHEAD: Final = 64 * 2**10
"""Bytes that a client may send ahead, beyond the request that is being answered; one that sends more is cut off."""

# Events of a body that has arrived, but that nobody wants any more, skipped at once to keep the connection.
_MAX_SKIPPED_EVENTS: Final = 64
_HTTP_VERSIONS: Final = (b"1.0", b"1.1")
# What clients send to proxies, and servers must take too; the group is all that follows the authority.
_ABSOLUTE_FORM: Final = re.compile(rb"https?://[^/?#]+(?P<path>.*)", re.IGNORECASE)


class Phase(enum.Enum):
    """What a connection is doing, as far as its time limits go."""

    IDLE = "waits for a request"
    HEAD = "receives the head of a request"
    EXCHANGE = "has a request to answer"


class RefusedError(Exception):
    """A well-formed head that is refused all the same."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HTTP1Protocol(H11Protocol):
    """The protocol of one connection.

    The connection calls ``receive``, ``resume``, ``time_out`` and ``closed``. The protocol answers through ``send``:
    RawData is to be written, which raises BrokenPipeError if it can't be; Updated says that ``phase`` has changed;
    Closed that all is said.
    """

    connection: h11.Connection

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        state: ServerState,
        options: ServeOptions,
        tls: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        shared = ConnectionState({STATE_KEY: state})
        super().__init__(app, config, context, task_group, shared, tls, client, server, send)
        self._state = state
        self._options = options
        # the head of the response, until there is something to write it with
        self._head = b""
        self._chunked = False
        # bytes that wait while h11 is paused, or None if it takes more
        self._ahead: int | None = None

    @property
    def phase(self) -> Phase:
        """What the connection is doing."""
        if self.connection.their_state is not h11.IDLE:
            return Phase.EXCHANGE
        return Phase.HEAD if self.connection.trailing_data[0] else Phase.IDLE

    @property
    def response_incomplete(self) -> bool:
        """A response has begun and not ended: closing now must not look like its end."""
        return self.connection.our_state in (h11.SEND_BODY, h11.ERROR)

    @property
    def upload_incomplete(self) -> bool:
        """The client may be sending still, and must be let finish if it is to read the response."""
        return self.connection.their_state in (h11.SEND_BODY, h11.ERROR)

    # ---- what the connection calls

    async def receive(self, data: bytes) -> None:
        """Take bytes from the client and start what they complete."""
        self.connection.receive_data(data)
        if self._ahead is None:
            await self._handle_events()
            return
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD:
            await self.closed()
            await self.send(Closed())

    async def resume(self) -> None:
        """Go on with bytes that came ahead; the response they had to wait for has ended."""
        await self._handle_events()

    async def time_out(self) -> None:
        """The head of a request has taken too long."""
        await self._refuse(408, "The head of the request took too long.", None)

    async def closed(self) -> None:
        """The connection has ended: an exchange in progress gets http.disconnect, and is not listened to any more."""
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.handle(StreamClosed(stream_id=STREAM_ID))

    # ---- requests

    async def _handle_events(self) -> None:
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint, f"The request is not valid HTTP/1.1: {error}.", None)
                return
            if isinstance(event, h11.Request):
                try:
                    target = self._check_head(event)
                except RefusedError as refusal:
                    await self._refuse(refusal.status, str(refusal), event)
                    return
                await self._start_exchange(event, target)
            elif isinstance(event, h11.Data):
                if self.stream is not None:
                    await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                if self.stream is not None:
                    await self.stream.handle(EndBody(stream_id=STREAM_ID))
                if self.connection.their_state is h11.MUST_CLOSE:
                    # This was the client's last request. Bytes that follow mean nothing, but h11 would object to them.
                    self._ahead = 0
                    return
            else:
                if event is h11.PAUSED:
                    self._ahead = len(self.connection.trailing_data[0])
                return

    def _check_head(self, request: h11.Request) -> bytes:
        """The request's target in origin form ("/path?query"), or RefusedError."""
        if request.http_version not in _HTTP_VERSIONS:
            raise RefusedError(505, "This server speaks HTTP/1.1 and HTTP/1.0 only.")
        if request.method == b"CONNECT":
            raise RefusedError(501, "This server is not a proxy.")
        # h11 limits only what it has to buffer, and a large head may arrive in one piece
        size = (
            len(request.method) + len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
        )
        if size > self._options.max_head_size or len(request.headers) > self._options.max_headers:
            raise RefusedError(431, "The head of the request is too large.")
        if request.target.startswith(b"/"):
            return request.target
        address = _ABSOLUTE_FORM.fullmatch(request.target)
        if address is None:
            raise RefusedError(400, "The target of the request must be a path or an http address.")
        path: bytes = address["path"]
        return path if path.startswith(b"/") else b"/" + path

    async def _start_exchange(self, request: h11.Request, target: bytes) -> None:
        await self.send(Updated(idle=False))
        if self.connection.they_are_waiting_for_100_continue and not self._is_refused_unread(request, target):
            await self.send(RawData(self.connection.send(h11.InformationalResponse(status_code=100, headers=[]))))
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=target,
                state=self.connection_state,
            )
        )

    def _is_refused_unread(self, request: h11.Request, target: bytes) -> bool:
        """Whether the request is going to be refused without a look at its body."""
        front, path = self._state.front, self._local_path(target)
        if front.early_answer(request.method.decode("ascii"), path, list(request.headers)) is not None:
            return True
        for name, value in request.headers:
            if name == b"content-length":
                return int(value) > self._options.max_body_size
        return False

    def _local_path(self, target: bytes) -> str:
        return self._state.front.local_path(unquote(target.partition(b"?")[0].decode("ascii")))

    async def _refuse(self, status: int, message: str, request: h11.Request | None) -> None:
        """Answer in place of the app if nothing has been answered yet, and end the connection."""
        is_exchange = self.stream is not None
        await self.closed()
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            given = [] if request is None else list(request.headers)
            path = "" if request is None else self._local_path(request.target)
            body = error_format(path).http_error_body(status, message)
            request_id = given_request_id(given) or new_request_id()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *self._state.front.answer_headers(path, given, request_id),
                *self.config.response_headers("h11"),
            ]
            events = h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()
            await self.send(RawData(b"".join(self.connection.send(event) or b"" for event in events)))
            if not is_exchange:
                self._log_refusal(status, len(body), request, request_id)
        await self.send(Closed())

    def _log_refusal(self, status: int, sent_bytes: int, request: h11.Request | None, request_id: str) -> None:
        self._state.log(
            Access(
                request_id=request_id,
                method=None if request is None else request.method.decode("ascii"),
                path=None if request is None else request.target.partition(b"?")[0].decode("ascii"),
                status=status,
                sent_bytes=sent_bytes,
                seconds=0.0,
                client=self.client,
            )
        )

    # ---- responses

    async def stream_send(self, event: StreamEvent) -> None:
        """Write what the exchange in progress has sent. Raises BrokenPipeError if its client is gone."""
        if self.stream is None:
            raise BrokenPipeError
        if isinstance(event, Body):
            if self._chunked:
                data = b"%b%x\r\n%b\r\n" % (self._take_head(), len(event.data), event.data)
            else:
                data = self._take_head() + self.connection.send(h11.Data(data=event.data))
            await self.send(RawData(data))
        elif isinstance(event, Response):
            self._begin_response(event)
        elif isinstance(event, EndBody):
            await self.send(RawData(self._take_head() + self.connection.send(h11.EndOfMessage())))
        elif isinstance(event, StreamClosed):
            await self._exchange_ended()

    def _begin_response(self, event: Response) -> None:
        headers = [*event.headers, *self.config.response_headers("h11")]
        if self.context.terminated.is_set():
            headers.append((b"connection", b"close"))
        self._head = self.connection.send(h11.Response(status_code=event.status_code, headers=headers))
        self._chunked = b"transfer-encoding: chunked\r\n" in self._head.lower()

    def _take_head(self) -> bytes:
        head, self._head = self._head, b""
        return head

    async def _exchange_ended(self) -> None:
        await self.closed()
        self._skip_arrived_body()
        finished = self.connection.our_state is h11.DONE and self.connection.their_state is h11.DONE
        if not finished or self.context.terminated.is_set():
            await self.send(Closed())
            return
        self.connection.start_next_cycle()
        self._ahead = None
        await self.send(Updated(idle=True))

    def _skip_arrived_body(self) -> None:
        """Take a request body that was not wanted out of h11, if all of it is there already."""
        try:
            for _ in range(_MAX_SKIPPED_EVENTS):
                if self.connection.their_state is not h11.SEND_BODY or self.connection.next_event() is h11.NEED_DATA:
                    return
        except h11.RemoteProtocolError:
            # the rest is not HTTP; the connection is closed as after any body that is not finished
            return
