"""The server: accepts connections, and ends them in order.

Owns: the number of connections, the course of a shutdown.
Must not know: what the app does, signals.
"""

from __future__ import annotations

import errno
import logging
import resource
from collections.abc import Callable
from typing import Final, Protocol

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from quart_trio import QuartTrio

from trioserve.web.connection import Connection
from trioserve.web.exchange import prepare_app
from trioserve.web.front import Front
from trioserve.web.listeners import Listeners, bind
from trioserve.web.options import ServeOptions
from trioserve.web.state import Access, ServerState, log_nothing
from trioserve.web.tls import TlsFilter

logger = logging.getLogger(__name__)

CLOSING_TIME: Final = 1.0
"""Seconds before the end of a shutdown at which requests that still run are told to end."""

# accept() fails for want of these, and will work again
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ACCEPT_PAUSE: Final = 0.1
# Open files of the process besides connections: the log, the model, the event loop.
_OTHER_FILES: Final = 64


class ShutdownSignal(Protocol):
    """What a server waits for to shut down. A trio.Event is one."""

    async def wait(self) -> float | None:
        """Return when it is time: the seconds that requests may go on, or None for the option's graceful_timeout."""
        ...


def do_nothing() -> None:
    """What a server does before it closes, if it is told of nothing else."""


async def serve_app(
    app: QuartTrio,
    options: ServeOptions,
    *,
    listeners: Listeners | None = None,
    shutdown: ShutdownSignal | None = None,
    log_access: Callable[[Access], None] = log_nothing,
    before_closing: Callable[[], None] = do_nothing,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` over HTTP/1.1 until a shutdown has run its course, or for ever.

    Hooks around serving (``before_serving`` and its kin) are not run: what outlives a request belongs in a nursery
    around this call, where its failure ends the server.

    When ``shutdown`` comes, the listeners and all idle connections are closed at once, and requests may go on for
    ``options.graceful_timeout`` seconds. A second before that is over, those that are left are told to end (see
    Exchange.closing_scope); then all connections are closed. Cancelling closes all connections at once.

    Args:
        app: gets the configuration that this server needs (see prepare_app).
        listeners: bound before, with the same options; closed in the end. None: bind now.
        log_access: called once for every finished exchange; must not raise.
        before_closing: called in a shutdown, before requests that are left are told to end; must not raise.
        task_status: started with the addresses that are listened on.

    Raises:
        OSError: an address can't be bound.
        ValueError: the app has hooks around serving.
    """
    if app.before_serving_funcs or app.while_serving_gens or app.after_serving_funcs:
        raise ValueError("The app has hooks around serving, which this server does not run.")
    prepare_app(app, options)
    _allow_open_files(options.max_connections + _OTHER_FILES)
    with bind(options) if listeners is None else listeners as bound:
        task_status.started(bound.addresses)
        await _Server(app, options, bound, log_access, before_closing).serve(shutdown)


def hypercorn_config(options: ServeOptions) -> Config:
    """The configuration of the parts of Hypercorn that are used here."""
    config = Config()
    # exchanges log themselves, and failures go to this package's loggers
    config.accesslog = None
    config.errorlog = None
    config.h11_max_incomplete_size = options.max_head_size
    config.include_server_header = False
    return config


class _Server:
    def __init__(
        self,
        app: QuartTrio,
        options: ServeOptions,
        listeners: Listeners,
        log_access: Callable[[Access], None],
        before_closing: Callable[[], None],
    ) -> None:
        self._app = ASGIWrapper(app)
        self._options = options
        self._listeners = listeners
        self._state = ServerState(log_access, Front.of(options))
        self._before_closing = before_closing
        self._config = hypercorn_config(options)
        # Hypercorn's view of the server: ``terminated`` is set while it drains
        self._context = WorkerContext(None)
        self._slots = trio.Semaphore(options.max_connections)
        self._connections: set[Connection] = set()
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Server on {', '.join(self._listeners.addresses)} with {len(self._connections)} connections>"

    async def serve(self, shutdown: ShutdownSignal | None) -> None:
        async with trio.open_nursery() as outer:
            if shutdown is not None:
                outer.start_soon(self._shut_down, shutdown)
            with self._serving:
                async with trio.open_nursery() as connections:
                    with self._accepting:
                        await self._accept_all(connections)
                    # from here a client that connects is refused, not kept waiting
                    self._listeners.close()
            outer.cancel_scope.cancel()

    async def _accept_all(self, connections: trio.Nursery) -> None:
        async with trio.open_nursery() as nursery:
            for listener in self._listeners.sockets:
                wrapped = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
                nursery.start_soon(self._accept, wrapped, connections)

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        while True:
            # in this order, so that a listener without clients does not keep a slot from another
            await trio.lowlevel.wait_readable(listener.socket)
            await self._slots.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:
                self._slots.release()
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                logger.error("can't accept connections: %s", error)
                await trio.sleep(_ACCEPT_PAUSE)
            else:
                connections.start_soon(self._run_connection, stream)

    async def _run_connection(self, stream: trio.SocketStream) -> None:
        context = self._listeners.tls
        tls = None if context is None else TlsFilter(context)
        connection = Connection(stream, self._app, self._config, self._context, self._state, self._options, tls)
        self._connections.add(connection)
        if self._context.terminated.is_set():
            # accepted at the last moment: it was not among those that the shutdown found
            connection.drain()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._slots.release()

    async def _shut_down(self, shutdown: ShutdownSignal) -> None:
        graceful_timeout = await shutdown.wait()
        if graceful_timeout is None:
            graceful_timeout = self._options.graceful_timeout
        self._accepting.cancel()
        await self._context.terminated.set()
        for connection in tuple(self._connections):
            connection.drain()
        closing_time = min(CLOSING_TIME, graceful_timeout)
        await trio.sleep(graceful_timeout - closing_time)
        self._before_closing()
        self._state.begin_closing()
        await trio.sleep(closing_time)
        self._serving.cancel()


def _allow_open_files(count: int) -> None:
    """Raise the process's limit on open files towards ``count``, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
