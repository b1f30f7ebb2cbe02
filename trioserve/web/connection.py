"""One client connection: the bytes in, the bytes out, and how long each may take.

Owns: the socket and its closing, the time limits, the task that reads.
Must not know: HTTP beyond the phases of its protocol, Quart.

The reading task never stops reading while the connection lasts, whatever else goes on: a client that leaves is seen
at once, by reading. It is also the only task that runs the protocol's receiving side. Responses are written by the
tasks of their exchanges, one after the other; the reading task writes only while there is no exchange.

This takes the place of Hypercorn's TCPServer, which waits without limit for a client that does not read, stops
reading while h11 is paused, and whose errors end the whole server.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope
from hypercorn.utils import parse_socket_addr

from trioserve.web.options import ServeOptions
from trioserve.web.protocol import HTTP1Protocol, Phase
from trioserve.web.state import ServerState
from trioserve.web.tls import TlsFilter

logger = logging.getLogger(__name__)

_RECEIVE_SIZE: Final = 64 * 2**10
# A write that succeeds at once is no checkpoint. One in so many is made one, or a producer that always has more
# would keep every other task from running.
_WRITES_PER_CHECKPOINT: Final = 8
# How long a client that is answered before it has sent its whole request may go on sending, in seconds. Closing at
# once would make the kernel reset the connection, and the client could lose the answer.
_LINGER: Final = 1.0
# closing with this option set discards what is unsent and resets the connection
_RESET: Final = struct.pack("ii", 1, 0)


class Connection:
    """A connection from accept to close. ``run`` it in a task of its own; everything else is sync."""

    def __init__(
        self,
        stream: trio.SocketStream,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ServerState,
        options: ServeOptions,
        tls: TlsFilter | None = None,
    ) -> None:
        self._tls = tls
        self._socket = stream.socket
        self._client = _address(self._socket, self._socket.getpeername)
        self._tasks = _ExchangeTasks()
        self._protocol = HTTP1Protocol(
            app,
            config,
            context,
            self._tasks,
            state,
            options,
            tls is not None,
            self._client,
            _address(self._socket, self._socket.getsockname),
            self._handle,
        )
        self._limits = {
            Phase.IDLE: options.keep_alive_timeout,
            Phase.HEAD: options.header_timeout,
            Phase.EXCHANGE: math.inf,
        }
        self._stall_timeout = options.send_stall_timeout
        self._phase: Phase | None = None
        # around the wait for bytes; its deadline is that of the phase
        self._waiting = trio.CancelScope()
        self._deadline = math.inf
        # bytes that came ahead can be looked at now
        self._resumed = False
        # all is said, and the client's unfinished request is read only to throw it away
        self._lingering = False
        self._closed = False
        self._fast_writes = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._protocol.phase.value
        return f"<Connection from {self._client}: {state}>"

    async def run(self) -> None:
        """Serve the client until the connection ends. A fault of its own ends this connection and no other."""
        try:
            async with self._tasks:
                if self._tls is not None and not await self._shake_hands(self._tls):
                    return
                self._enter_phase()
                # the reading task writes too: refusals, and 100 Continue
                with suppress(BrokenPipeError):
                    await self._read()
                self.close()
                await self._protocol.closed()
        except* Exception:
            logger.exception("the connection from %s failed", self._client)
        finally:
            self.close()

    def drain(self) -> None:
        """The server is shutting down: close if there is nothing in progress."""
        if self._protocol.phase is Phase.IDLE:
            self.close()

    def close(self) -> None:
        """Close the socket, with a reset if a response is incomplete: its end must not look like one. Idempotent."""
        self._close(reset=self._protocol.response_incomplete)

    def _close(self, *, reset: bool) -> None:
        if not self._closed:
            self._closed = True
            if reset:
                # no effect on a unix socket, which can't be reset
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            else:
                self._say_end()
            self._socket.close()

    def _say_end(self) -> None:
        """With TLS, tell the client that this is the end of all that was sent, if the kernel takes it at once."""
        if self._tls is not None:
            with suppress(OSError):
                os.write(self._socket.fileno(), self._tls.end())

    # ---- reading

    async def _read(self) -> None:
        """Hand bytes to the protocol until the client, a time limit or the protocol ends the connection."""
        while not self._closed:
            if self._resumed:
                self._resumed = False
                await self._protocol.resume()
                self._enter_phase()
                continue
            with trio.CancelScope(deadline=self._deadline) as self._waiting:
                data = await self._receive()
                if not data:
                    break
            if self._waiting.cancelled_caught:
                await self._woken()
            elif not self._lingering:
                await self._protocol.receive(data)
                self._enter_phase()

    async def _shake_hands(self, tls: TlsFilter) -> bool:
        """Agree with the client on TLS. False: it did not work out, or took longer than the head of a request may."""
        with trio.move_on_after(self._limits[Phase.HEAD]), suppress(BrokenPipeError):
            while data := await self._receive_raw():
                tls.feed(data)
                try:
                    finished = tls.shake_hands()
                except ssl.SSLError as error:
                    logger.debug("no TLS with %s: %s", self._client, error)
                    # what is wrong
                    await self._send(tls.outgoing())
                    return False
                await self._send(tls.outgoing())
                if finished:
                    return True
        return False

    async def _receive(self) -> bytes:
        """Bytes, or b"" when the client is gone. A client that only stops sending counts as gone."""
        if self._tls is None:
            return await self._receive_raw()
        with suppress(ssl.SSLError):
            # first what came with the end of the handshake
            while (plain := self._tls.decrypt()) == b"":
                data = await self._receive_raw()
                if not data:
                    return b""
                self._tls.feed(data)
            return plain or b""
        return b""

    async def _receive_raw(self) -> bytes:
        try:
            return await self._socket.recv(_RECEIVE_SIZE)
        except (OSError, trio.ClosedResourceError):
            return b""

    async def _woken(self) -> None:
        """The wait for bytes was cut short: there is work to resume, or the time is over."""
        if self._resumed:
            return
        if self._protocol.phase is Phase.HEAD and not self._lingering:
            await self._protocol.time_out()
        else:
            self.close()

    def _enter_phase(self) -> None:
        """Start the time limit of a phase that has just begun."""
        phase = self._protocol.phase
        if phase is not self._phase and not self._lingering:
            self._phase = phase
            self._set_deadline(self._limits[phase])

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = self._waiting.deadline = trio.current_time() + seconds

    # ---- what the protocol wants

    async def _handle(self, event: Event) -> None:
        if type(event) is RawData:
            await self._write(event.data)
        elif type(event) is Closed:
            self._finish()
        elif type(event) is Updated:
            self._enter_phase()
            if self._phase is Phase.HEAD:
                self._resumed = True
                self._waiting.cancel()

    def _finish(self) -> None:
        """All is said: close, or let a client that is sending still find the answer."""
        if self._closed or self._protocol.response_incomplete or not self._protocol.upload_incomplete:
            self.close()
            return
        self._say_end()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
        else:
            self._lingering = True
            self._set_deadline(_LINGER)

    async def _write(self, data: bytes) -> None:
        """Write ``data``, or close the connection and raise BrokenPipeError: the client is gone, or has stalled."""
        if self._closed:
            raise BrokenPipeError
        if data:
            await self._send(data if self._tls is None else self._tls.encrypt(data))

    async def _send(self, data: bytes) -> None:
        """Put bytes on the wire, as ``_write`` does."""
        rest = memoryview(data)
        # Nearly always the kernel takes everything at once, at a tenth of the cost of trio's send().
        try:
            rest = rest[os.write(self._socket.fileno(), rest) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            raise BrokenPipeError from None
        if rest:
            await self._write_slowly(rest)
            return
        self._fast_writes += 1
        if self._fast_writes % _WRITES_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()

    async def _write_slowly(self, rest: memoryview) -> None:
        try:
            while rest:
                with trio.fail_after(self._stall_timeout):
                    rest = rest[await self._socket.send(rest) :]
        except (OSError, trio.ClosedResourceError, trio.TooSlowError):
            raise BrokenPipeError from None
        finally:
            # gone, stalled or cancelled: after half a write there is nothing more to say on this connection
            if rest:
                self._close(reset=True)


class _ExchangeTasks(TaskGroup):
    """The nursery of a connection, where Hypercorn's HTTPStream starts the app for each request."""

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        # Unbounded, so that the reading task can't be blocked by an app that has stopped to listen. It always holds
        # little: the exchange takes and counts everything as it comes.
        messages_in, messages_out = trio.open_memory_channel[ASGIReceiveEvent](math.inf)
        self.spawn(self._run_app, app, scope, messages_out, send)
        return messages_in.send

    async def _run_app(
        self,
        app: AppWrapper,
        scope: Scope,
        messages: trio.MemoryReceiveChannel[ASGIReceiveEvent],
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        await app(scope, messages.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
        # Not when the app was cancelled, which is the end of the whole connection: this would write a 500.
        with suppress(BrokenPipeError):
            await send(None)


def _address(connected: trio.socket.SocketType, get_name: Callable[[], tuple[object, ...]]) -> tuple[str, int] | None:
    try:
        return parse_socket_addr(connected.family, get_name())
    except OSError:
        # the client has left already, which reading will tell
        return None
