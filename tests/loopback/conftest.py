"""A stand-in app behind the real server, on real sockets and the real clock.

Every route starts a job in the nursery of its exchange, as the real routes start a generation: what happens to the
job is what would happen to the generation.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
from quart import request
from quart.wrappers.response import ResponseBody
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse

from trioserve.web.exchange import exchange
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.server import serve_app
from trioserve.web.state import Access
from trioserve.web.stream import event_stream

EVENT = b"data: {}\n\n"


class Jobs:
    """What exchanges have running, and what the app was up to."""

    def __init__(self) -> None:
        self.running = 0
        self.produced = 0
        self._changed = trio.Event()

    @contextmanager
    def job(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            # sync, so that it works when cancelled
            self._count(-1)

    def _count(self, change: int) -> None:
        self.running += change
        self._changed.set()
        self._changed = trio.Event()

    async def wait_until_running(self, count: int) -> None:
        while self.running != count:
            await self._changed.wait()

    async def rest(self, *, task_status: trio.TaskStatus[None]) -> None:
        """A job that never ends by itself."""
        with self.job():
            task_status.started()
            await trio.sleep_forever()

    async def produce(
        self,
        channel: trio.MemorySendChannel[bytes],
        chunks: int,
        pause: float,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """A job that sends ``chunks`` events (0: without end), with a pause before each."""
        with self.job(), channel:
            task_status.started()
            with exchange().closing_scope() as scope:
                sent = 0
                while not chunks or sent < chunks:
                    await trio.sleep(pause)
                    await channel.send(EVENT)
                    sent += 1
                    self.produced += len(EVENT)
            if scope.cancelled_caught:
                await channel.send(b"data: closing\n\n")


class TightBody(ResponseBody):
    """Has always more, and waits for nothing."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def __aenter__(self) -> TightBody:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...

    def __aiter__(self) -> TightBody:
        return self

    async def __anext__(self) -> bytes:
        self._jobs.produced += len(EVENT)
        return EVENT


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def app(jobs: Jobs) -> QuartTrio:
    app = QuartTrio("stand-in")

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/size")
    async def size() -> str:
        return str(len(await request.get_data()))

    @app.post("/unread")
    async def unread() -> tuple[str, int]:
        return "no", 401

    @app.route("/wait", methods=["GET", "POST"])
    async def wait() -> str:
        await exchange().nursery.start(jobs.rest)
        await request.get_data()
        await trio.sleep_forever()
        return ""

    @app.route("/stream", methods=["GET", "POST"])
    async def stream() -> Any:
        chunks, pause = int(request.args.get("chunks", 0)), float(request.args.get("pause", 0))
        send_channel, receive_channel = trio.open_memory_channel[bytes](2)
        await exchange().nursery.start(jobs.produce, send_channel, chunks, pause)
        return event_stream(receive_channel)

    @app.get("/blob")
    async def blob() -> bytes:
        await exchange().nursery.start(jobs.rest)
        return bytes(int(request.args["size"]))

    @app.get("/tight")
    async def tight() -> Any:
        return TrioResponse(TightBody(jobs))

    @app.route("/break", methods=["GET", "POST"])
    async def break_off() -> Any:
        send_channel, receive_channel = trio.open_memory_channel[bytes](2)

        async def failing(*, task_status: trio.TaskStatus[None]) -> None:
            with send_channel:
                task_status.started()
                await send_channel.send(EVENT)
                await trio.sleep(0.02)
                raise KeyError("a bug")

        await exchange().nursery.start(failing)
        return event_stream(receive_channel)

    return app


@attrs.define
class Served:
    """A running server."""

    port: int
    shutdown: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    cancel_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _accesses: list[Access] = attrs.field(factory=list)
    _logged: trio.Event = attrs.field(factory=trio.Event)

    def log(self, access: Access) -> None:
        self._accesses.append(access)
        self._logged.set()
        self._logged = trio.Event()

    async def finished(self, count: int) -> list[Access]:
        """The log, once ``count`` exchanges are in it. They get there after the client has its answer."""
        while len(self._accesses) < count:
            await self._logged.wait()
        return self._accesses

    async def statuses(self, count: int) -> list[int]:
        """The status of every exchange, once there are ``count``."""
        return [access.status for access in await self.finished(count)]


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def time_limit() -> AsyncIterator[None]:
    """A test that hangs fails soon."""
    with trio.fail_after(10):
        yield


@pytest.fixture
def start(nursery: trio.Nursery, time_limit: None, app: QuartTrio) -> Start:
    """Starts a server for the stand-in app; arguments are those of ServeOptions."""

    async def start(**options: Any) -> Served:
        chosen = ServeOptions(port=0, **options)
        listeners = bind(chosen)
        served = Served(listeners.port)

        async def run(*, task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
            with served.cancel_scope:
                await serve_app(
                    app,
                    chosen,
                    listeners=listeners,
                    shutdown=served.shutdown,
                    log_access=served.log,
                    task_status=task_status,
                )
            served.ended.set()

        await nursery.start(run)
        return served

    return start


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that clients do in the test may be logged as an error."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []
