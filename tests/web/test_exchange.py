"""Exchanges, from the app's side: what ends them, and what becomes of their children's failures."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from quart import request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import HTTPException

from trioserve.errors import EngineStoppingError, QueueFullError, TrioserveError
from trioserve.testing.http import AsgiClient, AsgiExchange
from trioserve.web.exchange import exchange, prepare_app
from trioserve.web.options import ServeOptions
from trioserve.web.state import STATE_KEY, Access, ServerState
from trioserve.web.stream import event_stream

Child = Callable[..., Any]


class Bench:
    """An app, its client, and everything that both of them noticed."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.state = ServerState(self.accesses.append)
        self.notes: list[str] = []
        self.app = QuartTrio("bench")
        prepare_app(self.app, ServeOptions(max_body_size=1000, body_timeout=20))
        self.client = AsgiClient(self.app, state={STATE_KEY: self.state})
        self.app.register_error_handler(TrioserveError, self._refuse)
        self.app.register_error_handler(HTTPException, self._refuse_http)

    async def _refuse(self, error: TrioserveError) -> tuple[dict[str, str], int]:
        return {"refused": str(error)}, 503

    async def _refuse_http(self, error: HTTPException) -> tuple[dict[str, str], int]:
        return {"refused": error.name}, error.code or 500

    def handler(self, function: Child) -> None:
        """Let ``function`` answer requests for /."""
        self.app.add_url_rule("/", "handler", function, methods=["GET", "POST"])

    def streaming(self, pump: Child) -> None:
        """Let ``pump(channel, task_status=...)`` fill the stream that answers requests for /."""

        async def stream() -> Any:
            send_channel, receive_channel = trio.open_memory_channel[bytes](2)
            await exchange().nursery.start(pump, send_channel)
            return event_stream(receive_channel)

        self.handler(stream)

    async def note_cancellation(self, name: str) -> None:
        """Wait for ever, and note what ends that."""
        try:
            await trio.sleep_forever()
        finally:
            self.notes.append(f"{name} ended")

    @property
    def statuses(self) -> list[int]:
        return [access.status for access in self.accesses]


async def received(there: AsgiExchange) -> list[bytes]:
    """Every chunk until there are no more."""
    chunks = []
    try:
        while True:
            chunks.append(await there.receive())
    except trio.EndOfChannel:
        return chunks


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING] == []


# ---- the client leaves


# FAN-25; case: disconnect-before-first-chunk
@pytest.mark.usefixtures("no_errors")
async def test_a_disconnect_cancels_the_handler_and_its_child(bench: Bench) -> None:
    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await bench.note_cancellation("child")

    async def handler() -> str:
        await exchange().nursery.start(child)
        await bench.note_cancellation("handler")
        return ""

    bench.handler(handler)
    async with bench.client.open("GET", "/") as there:
        await trio.sleep(3600)
        there.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(bench.notes) == ["child ended", "handler ended"]
    assert there.status is None
    assert bench.statuses == [499]
    assert bench.accesses[0].seconds == 3600


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_disconnect_cancels_a_stream(bench: Bench, chunks: int) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            for _ in range(chunks):
                await channel.send(b"x")
            await bench.note_cancellation("pump")

    bench.streaming(pump)
    async with bench.client.open("GET", "/") as there:
        for _ in range(chunks):
            assert await there.receive() == b"x"
        await trio.testing.wait_all_tasks_blocked()
        there.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.notes == ["pump ended"]
    assert bench.statuses == [499]
    assert bench.accesses[0].sent_bytes == chunks


# FAN-26
@pytest.mark.usefixtures("no_errors")
async def test_a_disconnect_between_the_handler_and_its_response_leaks_nothing(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            await channel.send(b"never sent")
            await bench.note_cancellation("pump")

    async def slow_hook(response: Any) -> Any:
        await trio.sleep(10)
        return response

    bench.streaming(pump)
    bench.app.after_request(slow_hook)
    async with bench.client.open("GET", "/") as there:
        await trio.sleep(5)
        there.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.notes == ["pump ended"]
    assert bench.statuses == [499]


@pytest.mark.usefixtures("no_errors")
async def test_a_client_that_does_not_read_can_leave(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            try:
                while True:
                    await channel.send(b"x")
            finally:
                bench.notes.append("pump ended")

    bench.streaming(pump)
    async with bench.client.open("GET", "/") as there:
        await trio.sleep(3600)
        assert bench.notes == []
        there.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.notes == ["pump ended"]
    assert bench.statuses == [499]


@pytest.mark.usefixtures("no_errors")
async def test_a_disconnect_in_mid_upload_cancels_the_handler(bench: Bench) -> None:
    async def handler() -> str:
        try:
            await request.get_data()
        finally:
            bench.notes.append("handler ended")
        return "not reached"

    bench.handler(handler)
    async with bench.client.open("POST", "/", body=None) as there:
        there.send_body(b"abc", more=True)
        await trio.testing.wait_all_tasks_blocked()
        there.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.notes == ["handler ended"]
    assert bench.statuses == [499]


# case: abort-needs-shield
async def test_an_error_in_the_clean_up_after_a_disconnect_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("clean-up failed")

    bench.streaming(pump)
    async with bench.client.open("GET", "/") as there:
        await trio.testing.wait_all_tasks_blocked()
        there.disconnect()
    assert "RuntimeError: clean-up failed" in caplog.text
    assert bench.statuses == [499]


# ---- the response ends


# case: quart-post-response-cancel
@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_end_of_a_response_is_not_cancelled_by_the_disconnect_it_makes(bench: Bench, streamed: bool) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            await channel.send(b"ok")

    async def handler() -> str:
        return "ok"

    if streamed:
        bench.streaming(pump)
    else:
        bench.handler(handler)
    # raises if the last send was cancelled
    response = await bench.client.request("GET", "/")
    assert (response.status, response.body) == (200, b"ok")
    assert bench.statuses == [200]
    assert bench.accesses[0].sent_bytes == 2


@pytest.mark.usefixtures("no_errors")
async def test_the_end_of_the_response_ends_what_the_handler_left_running(bench: Bench) -> None:
    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await bench.note_cancellation("child")

    async def handler() -> tuple[str, int]:
        await exchange().nursery.start(child)
        return "changed my mind", 409

    bench.handler(handler)
    assert (await bench.client.request("GET", "/")).status == 409
    assert bench.notes == ["child ended"]


# case: stream-cut-at-60s
@pytest.mark.usefixtures("no_errors")
async def test_a_stream_may_take_hours(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            for _ in range(90):
                await trio.sleep(100)
                await channel.send(b"x")

    bench.streaming(pump)
    assert (await bench.client.request("GET", "/")).body == b"x" * 90
    assert bench.accesses[0].seconds == 9000


@pytest.mark.usefixtures("no_errors")
async def test_an_event_stream_has_the_headers_that_keep_it_flowing(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()

    bench.streaming(pump)
    response = await bench.client.request("GET", "/")
    assert (response.status, response.body) == (200, b"")
    assert response.headers.pop("x-request-id")
    assert response.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }


@pytest.mark.usefixtures("no_errors")
async def test_one_chunk_is_one_send_and_the_head_waits_for_it(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            await trio.sleep(10)
            for chunk in (b"a", b"bb", b"ccc"):
                await channel.send(chunk)

    bench.streaming(pump)
    async with bench.client.open("GET", "/") as there:
        await trio.sleep(9)
        assert there.status is None
        assert await received(there) == [b"a", b"bb", b"ccc"]
        assert there.status == 200


# ---- something fails


# FAN-10
@pytest.mark.usefixtures("no_errors")
async def test_what_a_child_raises_before_it_started_is_the_handlers(bench: Bench) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            await trio.sleep(1)
            raise QueueFullError("no room")

    async def handler() -> Any:
        send_channel, receive_channel = trio.open_memory_channel[bytes](2)
        try:
            await exchange().nursery.start(pump, send_channel)
        except BaseException as error:
            # itself, not a group with it inside
            bench.notes.append(type(error).__name__)
            raise
        return event_stream(receive_channel)

    bench.handler(handler)
    response = await bench.client.request("GET", "/")
    assert (response.status, json.loads(response.body)) == (503, {"refused": "no room"})
    assert bench.notes == ["QueueFullError"]
    assert bench.statuses == [503]


async def test_a_handlers_error_is_answered_by_the_apps_handlers(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler() -> str:
        raise KeyError("a bug")

    async def fail(error: Exception) -> tuple[str, int]:
        return f"failed: {error!r}", 500

    bench.handler(handler)
    bench.app.register_error_handler(Exception, fail)
    response = await bench.client.request("GET", "/")
    assert (response.status, response.body) == (500, b"failed: KeyError('a bug')")
    assert bench.statuses == [500]


@pytest.mark.parametrize("pause", [None, 0.0, 1.0], ids=["at once", "soon", "later"])
async def test_a_child_that_fails_before_the_first_chunk_is_a_real_500(
    bench: Bench, caplog: pytest.LogCaptureFixture, pause: float | None
) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            if pause is not None:
                await trio.sleep(pause)
            raise KeyError("a bug")

    bench.streaming(pump)
    response = await bench.client.request("GET", "/")
    assert response.status == 500
    assert response.headers["content-type"] == "application/json"
    error = json.loads(response.body)["error"]
    assert (error["type"], error["message"]) == ("server_error", "The server had an internal error.")
    assert "KeyError: 'a bug'" in caplog.text
    assert bench.statuses == [500]


async def test_a_child_that_fails_with_an_error_of_ours_keeps_its_status(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            await trio.sleep(1)
            raise EngineStoppingError

    bench.streaming(pump)
    response = await bench.client.request("GET", "/")
    assert response.status == 503
    assert json.loads(response.body)["error"]["code"] == "server_stopping"


@pytest.mark.parametrize("pause", [None, 0.0, 1.0], ids=["at once", "soon", "later"])
async def test_a_child_that_fails_in_mid_stream_breaks_the_response_off(
    bench: Bench, caplog: pytest.LogCaptureFixture, pause: float | None
) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            await channel.send(b"x")
            if pause is not None:
                await trio.sleep(pause)
            raise KeyError("a bug")

    bench.streaming(pump)
    async with bench.client.open("GET", "/") as there:
        chunks = await received(there)
        # the channel was closed, and yet this is not the end of a response
        assert not there.complete
        assert len(chunks) <= 1
    assert "KeyError: 'a bug'" in caplog.text
    assert bench.statuses == [500]


async def test_no_error_of_several_is_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        async def fail(error: Exception) -> None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise error

        with channel:
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail, KeyError("one"))
                nursery.start_soon(fail, ValueError("two"))

    bench.streaming(pump)
    assert (await bench.client.request("GET", "/")).status == 500
    assert "KeyError: 'one'" in caplog.text
    assert "ValueError: two" in caplog.text


@pytest.mark.parametrize("started", [False, True])
async def test_a_body_that_raises_is_like_a_child_that_fails(
    bench: Bench, caplog: pytest.LogCaptureFixture, started: bool
) -> None:
    class Chunks:
        def __init__(self) -> None:
            self.left = 1 if started else 0

        def __aiter__(self) -> Chunks:
            return self

        async def __anext__(self) -> bytes:
            await trio.lowlevel.checkpoint()
            if not self.left:
                raise KeyError("a bug")
            self.left -= 1
            return b"x"

    async def handler() -> Any:
        response = TrioResponse()
        response.response.iter = Chunks()
        return response

    bench.handler(handler)
    if started:
        with pytest.raises(trio.BrokenResourceError):
            await bench.client.request("GET", "/")
    else:
        assert (await bench.client.request("GET", "/")).status == 500
    assert bench.statuses == [500]


async def test_cancelling_the_app_from_outside_says_nothing_more(bench: Bench) -> None:
    async def handler() -> str:
        await bench.note_cancellation("handler")
        return ""

    bench.handler(handler)
    with trio.move_on_after(5):
        async with bench.client.open("GET", "/") as there:
            await trio.sleep_forever()
    assert there.status is None
    assert bench.notes == ["handler ended"]
    assert bench.statuses == [503]


# ---- bodies of requests


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_refused_by_the_app(bench: Bench, announced: bool) -> None:
    async def handler() -> str:
        return str(len(await request.get_data()))

    bench.handler(handler)
    headers = {"content-length": "1001"} if announced else {}
    async with bench.client.open("POST", "/", body=None, headers=headers) as there:
        if not announced:
            for _ in range(11):
                await trio.testing.wait_all_tasks_blocked()
                assert there.status is None
                there.send_body(bytes(100), more=True)
        response = await there.response()
    assert (response.status, json.loads(response.body)) == (413, {"refused": "Request Entity Too Large"})


@pytest.mark.usefixtures("no_errors")
async def test_a_body_that_does_not_come_is_not_waited_for(bench: Bench) -> None:
    async def handler() -> str:
        return str(len(await request.get_data()))

    bench.handler(handler)
    async with bench.client.open("POST", "/", body=None) as there:
        there.send_body(b"abc", more=True)
        response = await there.response()
    assert response.status == 408
    assert bench.accesses[0].seconds == 20


@pytest.mark.usefixtures("no_errors")
async def test_a_form_can_be_read(bench: Bench) -> None:
    async def handler() -> str:
        form = await request.form
        return form["name"]

    bench.handler(handler)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await bench.client.request("POST", "/", body=b"name=value", headers=headers)
    assert response.body == b"value"


# ---- the server shuts down


# FAN-28; case: shutdown-inflight
@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("before", [True, False], ids=["closing already", "closing later"])
async def test_a_closing_server_cancels_the_closing_scopes(bench: Bench, before: bool) -> None:
    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        with channel:
            task_status.started()
            with exchange().closing_scope() as scope:
                await channel.send(b"x")
                await trio.sleep_forever()
            assert scope.cancelled_caught
            await channel.send(b"closing")

    bench.streaming(pump)
    if before:
        bench.state.begin_closing()
    async with bench.client.open("GET", "/") as there:
        await trio.sleep(1)
        if not before:
            assert await there.receive() == b"x"
            bench.state.begin_closing()
        response = await there.response()
    assert (response.status, response.body) == (200, b"closing")
    assert bench.statuses == [200]


async def test_a_closing_scope_is_forgotten_with_its_exchange(bench: Bench) -> None:
    async def handler() -> str:
        exchange().closing_scope()
        exchange().closing_scope()
        return str(bench.state.scope_count)

    bench.handler(handler)
    assert (await bench.client.request("GET", "/")).body == b"2"
    assert bench.state.scope_count == 0


# case: lock-across-tasks
@pytest.mark.usefixtures("no_errors")
async def test_a_limiter_is_full_again_after_any_ending(bench: Bench) -> None:
    limiter = trio.CapacityLimiter(4)

    async def pump(channel: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]) -> None:
        async with limiter:
            with channel:
                task_status.started()
                for _ in range(10):
                    await trio.sleep(1)
                    await channel.send(b"x")

    bench.streaming(pump)

    async def client(leaves: bool) -> None:
        async with bench.client.open("GET", "/") as there:
            if leaves:
                await there.receive()
            else:
                assert len((await there.response()).body) == 10

    async with trio.open_nursery() as nursery:
        for index in range(100):
            nursery.start_soon(client, index % 2 == 0)
    assert limiter.borrowed_tokens == 0
    assert sorted(bench.statuses) == [200] * 50 + [499] * 50
