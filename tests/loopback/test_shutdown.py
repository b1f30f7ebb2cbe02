"""The course of a shutdown (case: shutdown-inflight)."""

from __future__ import annotations

from typing import Any

import h11
import pytest
import trio
from quart_trio import QuartTrio

from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.server import _Server, do_nothing, serve_app
from trioserve.web.state import log_nothing

# What a shutdown may take beyond its deadline.
SLACK = 0.8


class Stopwatch:
    def __init__(self) -> None:
        self._began = trio.current_time()

    @property
    def seconds(self) -> float:
        return trio.current_time() - self._began


async def test_idle_connections_are_closed_at_once(start: Any) -> None:
    served = await start(graceful_timeout=5)
    with await RawClient.connect(served.port) as used, await RawClient.connect(served.port) as unused:
        await used.send(request_bytes("GET", "/health"))
        await used.response()
        watch = Stopwatch()
        served.shutdown.set()
        assert await used.receive_all() == b""
        assert await unused.receive_all() == b""
        await served.ended.wait()
        assert watch.seconds < SLACK


async def test_a_connection_that_was_accepted_at_the_last_moment_is_not_waited_for(app: QuartTrio) -> None:
    with bind(ServeOptions(port=0)) as listeners:
        server = _Server(app, ServeOptions(), listeners, log_nothing, do_nothing)
        (listener,) = listeners.sockets
        with await RawClient.connect(listeners.port) as client, trio.fail_after(5):
            accepted, _ = await trio.socket.from_stdlib_socket(listener).accept()
            # between its acceptance and its task the shutdown has looked for idle connections
            await server._context.terminated.set()
            await server._run_connection(trio.SocketStream(accepted))
            assert await client.receive_all() == b""


@pytest.mark.usefixtures("no_errors")
async def test_a_request_in_progress_goes_on_to_its_end(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=5)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=10&pause=0.02"))
        # the head, which promised to keep the connection
        await client.receive_until(b"\r\n\r\n")
        watch = Stopwatch()
        served.shutdown.set()
        assert (await client.receive_until(b"\r\n0\r\n\r\n")).count(b"data: {}") == 10
        assert await client.receive_all() == b""
        await served.ended.wait()
        assert watch.seconds < 1 + SLACK
    assert await served.statuses(1) == [200]


async def test_a_response_that_begins_in_a_shutdown_says_that_it_is_the_last(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=5)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=1&pause=0.05"))
        await jobs.wait_until_running(1)
        served.shutdown.set()
        assert (await client.response()).headers["connection"] == "close"


async def test_nobody_can_connect_while_it_drains(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=5)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=5&pause=0.02"))
        await jobs.wait_until_running(1)
        served.shutdown.set()
        await trio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(served.port)
        await client.response()


# FAN-28
@pytest.mark.usefixtures("no_errors")
async def test_a_stream_that_goes_on_is_told_to_end_before_the_deadline(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=1.1)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?pause=0.01"))
        await jobs.wait_until_running(1)
        watch = Stopwatch()
        served.shutdown.set()
        assert (await client.response()).body.endswith(b"data: {}\n\ndata: closing\n\n")
        assert 0.05 < watch.seconds < SLACK
        await served.ended.wait()
    assert await served.statuses(1) == [200]


async def test_what_does_not_end_is_cut_off_at_the_deadline(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=0.2)
    with (
        await RawClient.connect(served.port) as waiting,
        await RawClient.connect(served.port, receive_buffer=4096) as stalled,
        await RawClient.connect(served.port) as unread,
    ):
        await waiting.send(request_bytes("GET", "/wait"))
        await stalled.send(request_bytes("GET", "/blob?size=20000000"))
        await unread.send(request_bytes("POST", "/wait", headers={"Content-Length": "10"}))
        await jobs.wait_until_running(3)
        watch = Stopwatch()
        served.shutdown.set()
        await served.ended.wait()
        assert 0.15 < watch.seconds < 0.2 + SLACK
        assert await waiting.receive_all() == b""
        with pytest.raises((h11.RemoteProtocolError, ConnectionResetError)):
            await stalled.response()
    assert jobs.running == 0
    assert await served.statuses(3) == [503, 503, 503]


async def test_a_shutdown_can_be_given_less_time_than_usual(
    app: QuartTrio, jobs: Any, nursery: trio.Nursery, time_limit: None
) -> None:
    begun, ended = trio.Event(), trio.Event()

    class InHaste:
        async def wait(self) -> float:
            await begun.wait()
            return 0.1

    listeners = bind(ServeOptions(port=0))

    async def run() -> None:
        await serve_app(app, ServeOptions(), listeners=listeners, shutdown=InHaste())
        ended.set()

    nursery.start_soon(run)
    with await RawClient.connect(listeners.port) as client:
        await client.send(request_bytes("GET", "/wait"))
        await jobs.wait_until_running(1)
        watch = Stopwatch()
        begun.set()
        await ended.wait()
        assert 0.05 < watch.seconds < 0.1 + SLACK


async def test_a_stalled_stream_does_not_hold_up_a_shutdown(start: Any, jobs: Any) -> None:
    served = await start(graceful_timeout=0.2)
    with await RawClient.connect(served.port, receive_buffer=4096) as stalled:
        await stalled.send(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(1)
        await trio.sleep(0.1)
        watch = Stopwatch()
        served.shutdown.set()
        await served.ended.wait()
        assert watch.seconds < 0.2 + SLACK


@pytest.mark.parametrize("drains", [False, True], ids=["at once", "while it drains"])
async def test_cancelling_closes_everything_at_once(start: Any, jobs: Any, drains: bool) -> None:
    served = await start()
    with (
        await RawClient.connect(served.port) as idle,
        await RawClient.connect(served.port) as waiting,
        await RawClient.connect(served.port) as streaming,
        await RawClient.connect(served.port, receive_buffer=4096) as stalled,
    ):
        await idle.send(request_bytes("GET", "/health"))
        await idle.response()
        await waiting.send(request_bytes("GET", "/wait"))
        await streaming.send(request_bytes("GET", "/stream?pause=0.01", http_version="1.0"))
        await streaming.receive_until(b"data")
        await stalled.send(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(3)
        if drains:
            served.shutdown.set()
            await trio.sleep(0.01)
        watch = Stopwatch()
        served.cancel_scope.cancel()
        await served.ended.wait()
        assert watch.seconds < SLACK
        assert await idle.receive_all() == b""
        # nothing is written in haste, and no end looks like a normal one
        assert await waiting.receive_all() == b""
        with pytest.raises(ConnectionResetError):
            await streaming.receive_all()
    assert jobs.running == 0


async def test_a_head_that_has_begun_is_still_served(start: Any) -> None:
    served = await start(graceful_timeout=5)
    with await RawClient.connect(served.port) as client:
        data = request_bytes("GET", "/health")
        await client.send(data[:10])
        await trio.sleep(0.02)
        served.shutdown.set()
        await trio.sleep(0.02)
        await client.send(data[10:])
        response = await client.response()
        assert (response.body, response.headers["connection"]) == (b"ok", "close")
        await served.ended.wait()
