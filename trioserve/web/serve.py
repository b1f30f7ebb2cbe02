"""Serving an engine over HTTP.

Owns: the access log's form, and that the engine takes nothing new once a shutdown begins.
Must not know: signals, flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from trioserve.engine.engine import Engine
from trioserve.web.app import create_app
from trioserve.web.listeners import Listeners
from trioserve.web.options import ServeOptions
from trioserve.web.server import serve_app
from trioserve.web.shutdown import Shutdown
from trioserve.web.state import Access

if TYPE_CHECKING:
    # imports OpenTelemetry, which need not be there
    from trioserve.web.tracing import Tracing


async def serve(
    engine: Engine,
    options: ServeOptions = ServeOptions(),
    *,
    listeners: Listeners | None = None,
    shutdown: Shutdown | None = None,
    tracing: Tracing | None = None,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``engine`` until a shutdown has run its course.

    Args:
        engine: an open engine; it must outlive this call.
        options: how to serve.
        listeners: sockets bound before, by ``bind(options)``; None binds now.
        shutdown: begin it to take nothing new and to end when what runs has ended, or when its time is up.
        tracing: where spans of the requests go; None: there are none. It must outlive the engine.
        task_status: started with the addresses.

    Raises:
        OSError: an address can't be bound.
    """
    log = structlog.get_logger("trioserve.access")

    def log_access(access: Access) -> None:
        log.info(
            "request",
            request_id=access.request_id,
            method=access.method,
            path=access.path,
            status=access.status,
            bytes=access.sent_bytes,
            ms=round(access.seconds * 1000, 1),
            client=access.client_address,
        )

    async def drain_when_told() -> None:
        if shutdown is not None:
            await shutdown.wait()
            engine.begin_drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain_when_told)
        await serve_app(
            create_app(engine, options, tracing=tracing),
            options,
            listeners=listeners,
            shutdown=shutdown,
            log_access=log_access,
            before_closing=engine.begin_cut_off,
            task_status=task_status,
        )
        nursery.cancel_scope.cancel()
