"""Connections are used again when they can be, and closed when they must be (case: quart-post-response-cancel)."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
from quart_trio import QuartTrio

from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.exchange import Exchange, exchange

CLOSE = {"Connection": "close"}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("no_errors")
async def test_a_connection_serves_many_requests(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        for _ in range(3):
            await client.send(request_bytes("GET", "/health"))
            assert (await client.response()).body == b"ok"
            await client.send(request_bytes("POST", "/size", body=b"abc"))
            assert (await client.response()).body == b"3"
            await client.send(request_bytes("GET", "/stream?chunks=2"))
            assert (await client.response()).body.count(b"data") == 2


@pytest.mark.usefixtures("no_errors")
async def test_requests_sent_together_are_answered_in_order(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        requests = [
            request_bytes("GET", "/stream?chunks=3&pause=0.005"),
            request_bytes("POST", "/size", body=b"four"),
            request_bytes("POST", "/unread", body=b"four"),
            request_bytes("GET", "/health"),
        ]
        # the last one comes in two pieces, the second of them late
        await client.send(b"".join(requests)[:-5])
        assert (await client.response()).body.count(b"data") == 3
        assert (await client.response()).body == b"4"
        assert (await client.response()).status == 401
        await client.send(b"".join(requests)[-5:])
        assert (await client.response()).body == b"ok"


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    "request_",
    [
        request_bytes("POST", "/unread", body=b"x" * 10_000),
        request_bytes("POST", "/unread", headers={"Transfer-Encoding": "chunked"}) + b"1\r\nx\r\n" * 50 + b"0\r\n\r\n",
    ],
    ids=["whole", "in small pieces"],
)
async def test_a_body_nobody_wanted_does_not_cost_the_connection(start: Any, request_: bytes) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        # often, because it depends on the scheduler how much of the body is taken before the response
        for _ in range(10):
            await client.send(request_)
            assert (await client.response()).status == 401


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    "request_",
    [
        request_bytes("GET", "/health", headers=CLOSE),
        request_bytes("GET", "/health", http_version="1.0"),
        request_bytes("GET", "/stream?chunks=3", headers=CLOSE),
        request_bytes("GET", "/stream?chunks=3", http_version="1.0"),
        request_bytes("GET", "/stream?chunks=3", headers=CLOSE) + b"bytes that mean nothing",
        request_bytes("POST", "/unread", headers={"Content-Length": "2000"}),
    ],
    ids=["close", "HTTP/1.0", "stream, close", "stream, HTTP/1.0", "close, stray bytes", "answered before the upload"],
)
async def test_the_server_closes_after_a_last_response(start: Any, request_: bytes) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_)
        with trio.fail_after(1):
            received = await client.receive_all()
        assert received.startswith((b"HTTP/1.1 200", b"HTTP/1.1 401"))
        assert received.count(b"data") in (0, 3)


async def test_an_idle_connection_is_closed_in_time(start: Any) -> None:
    served = await start(keep_alive_timeout=0.1, header_timeout=60)
    with await RawClient.connect(served.port) as used, await RawClient.connect(served.port) as unused:
        await used.send(request_bytes("GET", "/health"))
        assert (await used.response()).body == b"ok"
        began = trio.current_time()
        assert await used.receive_all() == b""
        assert 0.05 < trio.current_time() - began < 1
        assert await unused.receive_all() == b""


async def test_a_connection_in_use_is_not_idle(start: Any) -> None:
    served = await start(keep_alive_timeout=0.05, header_timeout=0.05)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=2&pause=0.1"))
        assert (await client.response()).body.count(b"data") == 2


async def test_fifty_closed_connections_leave_no_open_file(start: Any) -> None:
    served = await start()
    gc.collect()
    before = open_files()
    clients = [await RawClient.connect(served.port) for _ in range(50)]
    for client in clients:
        await client.send(request_bytes("GET", "/health", headers=CLOSE))
        assert b"200" in await client.receive_all()
    # the clients' own ends are open still
    assert open_files() == before + 50
    for client in clients:
        client.close()


@pytest.mark.usefixtures("no_errors")
async def test_head_has_the_headers_of_get_and_no_body(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("HEAD", "/health"))
        response = await client.response("HEAD")
        assert (response.status, response.body, response.headers["content-length"]) == (200, b"", "2")
        await client.send(request_bytes("GET", "/health"))
        assert (await client.response()).body == b"ok"


async def test_a_stream_to_http_1_0_ends_with_the_connection(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=2", http_version="1.0"))
        head, _, body = (await client.receive_all()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"data: {}\n\n" * 2


@pytest.mark.parametrize("http_version", ["1.1", "1.0"])
async def test_a_stream_that_fails_never_seems_to_end(
    start: Any, http_version: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/break", http_version=http_version))
        with pytest.raises((ConnectionResetError, h11.RemoteProtocolError)):
            await client.response()
    assert "KeyError: 'a bug'" in caplog.text
    assert await served.statuses(1) == [500]


@pytest.mark.usefixtures("no_errors")
async def test_an_upload_that_is_refused_early_can_still_read_the_answer(start: Any) -> None:
    # More than the socket buffers take, so that the client is in mid-upload when the server has made up its mind.
    served = await start(max_body_size=1000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={"Content-Length": "20000000"}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, bytes(1_000_000))
            response = await client.response("POST")
            nursery.cancel_scope.cancel()
        assert response.status == 413


@pytest.mark.parametrize("data", [b"noise\r\n\r\n", request_bytes("POST", "/unread", headers={"Content-Length": "9"})])
async def test_a_client_that_is_refused_and_stays_is_closed(start: Any, data: bytes) -> None:
    served = await start(max_connections=1)
    with await RawClient.connect(served.port) as stubborn:
        await stubborn.send(data)
        assert await stubborn.receive_all()
        with await RawClient.connect(served.port) as next_one:
            await next_one.send(request_bytes("GET", "/health"))
            with trio.fail_after(3):
                assert (await next_one.response()).body == b"ok"


async def test_a_client_that_never_stops_uploading_is_closed(start: Any) -> None:
    served = await start(max_body_size=1000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={"Content-Length": "20000000"}))
        assert (await client.response("POST")).status == 413
        began = trio.current_time()

        async def upload() -> None:
            while True:
                await client.send(b"x")
                await trio.sleep(0.02)

        with pytest.raises(OSError, match=r"Broken pipe|reset"), trio.fail_after(3):
            await upload()
        # but not before it had the time to find the answer
        assert trio.current_time() - began > 0.5


@pytest.mark.usefixtures("no_errors")
async def test_a_body_that_is_not_http_ends_its_exchange_with_400(start: Any, jobs: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/wait", headers={"Transfer-Encoding": "chunked"}) + b"1\r\nx\r\n")
        await jobs.wait_until_running(1)
        await client.send(b"zz\r\n")
        assert (await client.response("POST")).status == 400
        with trio.fail_after(0.5):
            await jobs.wait_until_running(0)
    assert await served.statuses(1) == [499]


@pytest.mark.usefixtures("no_errors")
async def test_a_client_that_sends_far_ahead_is_cut_off(start: Any, jobs: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/wait"))
        await jobs.wait_until_running(1)
        await client.send(request_bytes("POST", "/size", body=bytes(60_000)))
        await trio.sleep(0.02)
        assert jobs.running == 1
        await client.send(request_bytes("POST", "/size", body=bytes(60_000)))
        await jobs.wait_until_running(0)
        assert await client.receive_all() == b""
    assert await served.statuses(1) == [499]


async def test_a_stream_that_fails_in_mid_upload_ends_the_connection(start: Any, jobs: Any) -> None:
    served = await start(max_connections=1)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/break", headers={"Transfer-Encoding": "chunked"}))
        with pytest.raises(OSError, match=r"Broken pipe|reset"), trio.fail_after(5):
            # many small pieces, so that the reading task is in the middle of some when the exchange fails
            while True:
                await client.send(b"1\r\nx\r\n" * 100)
        with await RawClient.connect(served.port) as next_one:
            await next_one.send(request_bytes("GET", "/health"))
            assert (await next_one.response()).body == b"ok"


async def test_a_response_that_lacks_its_last_bytes_ends_the_connection(
    start: Any, app: QuartTrio, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges: list[Exchange] = []
    write = os.write

    @app.before_request
    async def keep() -> None:
        exchanges.append(exchange())

    def write_all_but_the_end(fd: int, data: memoryview) -> int:
        if bytes(data) == b"0\r\n\r\n":
            # what a child that fails at this moment does to a write that has to wait
            exchanges[0].nursery.cancel_scope.cancel()
            raise BlockingIOError
        return write(fd, data)

    served = await start()
    monkeypatch.setattr("trioserve.web.connection.os.write", write_all_but_the_end)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=1"))
        with pytest.raises((ConnectionResetError, h11.RemoteProtocolError)), trio.fail_after(1):
            await client.response()


@pytest.mark.usefixtures("no_errors")
async def test_the_log_tells_of_every_exchange_once(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/stream?chunks=3&pause=0.01"))
        await client.response()
        await client.send(request_bytes("POST", "/size?a=b", body=b"abc"))
        await client.response()
    first, second = await served.finished(2)
    assert (first.method, first.path, first.status, first.sent_bytes) == ("GET", "/stream", 200, 30)
    assert 0.03 <= first.seconds < 1
    assert first.client is not None
    assert first.client[0] == "127.0.0.1"
    assert (second.method, second.path, second.status, second.sent_bytes) == ("POST", "/size", 200, 1)
