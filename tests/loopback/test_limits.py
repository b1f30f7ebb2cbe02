"""What is too large, too slow or too many is refused with a status, as JSON, and costs the server little."""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from trioserve.testing.http import HttpResponse, RawClient, request_bytes

pytestmark = pytest.mark.usefixtures("no_errors")


def check_refusal(response: HttpResponse, status: int) -> str:
    """Check the form of a refusal, and return its message."""
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    error = json.loads(response.body)["error"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert sorted(error) == ["code", "message", "param", "type"]
    message = error["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"hello\r\n\r\n", 400, "not valid HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "not valid HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "Content-Length"),
        (b"GET ? HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
        (b"GET http://[x HTTP/1.1\r\nHost: a\r\n\r\n", 404, ""),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505, "HTTP/1.1"),
        # cases h2-backpressure, h2-cancel: HTTP/2 is left to a proxy
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "proxy"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "too large"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000 + b"\r\nY: " + b"y" * 6_000 + b"\r\n\r\n",
            431,
            "too large",
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 100 + b"\r\n", 431, "too large"),
    ],
)
async def test_a_head_that_is_refused(start: Any, data: bytes, status: int, words: str) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(data)
        response = await client.response()
        if status == 404:
            # strange, but an address: up to the app
            assert response.status == 404
            return
        assert words in check_refusal(response, status)
        assert await client.receive_all() == b""
    (access,) = await served.finished(1)
    assert (access.status, access.sent_bytes, access.seconds) == (status, len(response.body), 0.0)


async def test_a_hundred_headers_of_64_kib_are_served(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n" + (b"X: " + b"x" * 600 + b"\r\n") * 99 + b"\r\n")
        assert (await client.response()).body == b"ok"


@pytest.mark.parametrize("target", ["http://test/health", "HTTP://test:80/health?x", "/health?a=%ff"])
async def test_targets_that_are_served(start: Any, target: str) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", target))
        assert (await client.response()).body == b"ok"


@pytest.mark.parametrize("before", [b"", request_bytes("GET", "/health")], ids=["first", "second"])
async def test_a_head_that_trickles_in_is_cut_off(start: Any, before: bytes) -> None:
    served = await start(header_timeout=0.1, keep_alive_timeout=60)
    with await RawClient.connect(served.port) as client:
        if before:
            await client.send(before)
            await client.response()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                for byte in request_bytes("GET", "/health", headers={"X": "x" * 1000}):
                    await client.send(bytes([byte]))
                    await trio.sleep(0.01)

            nursery.start_soon(trickle)
            assert "too long" in check_refusal(await client.response(), 408)
            assert 0.05 < trio.current_time() - began < 1
            nursery.cancel_scope.cancel()


async def test_a_body_that_trickles_in_is_cut_off(start: Any) -> None:
    served = await start(body_timeout=0.1)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={"Content-Length": "1000"}) + b"abc")
        assert (await client.response("POST")).status == 408
        assert await client.receive_all() == b""


async def test_an_announced_body_that_is_too_large_is_refused_unread(start: Any) -> None:
    served = await start(max_body_size=1000)
    with await RawClient.connect(served.port) as client:
        head = request_bytes("POST", "/size", headers={"Content-Length": "1001", "Expect": "100-continue"})
        await client.send(head)
        # no 100 Continue before it
        assert (await client.receive_until(b"\r\n")).startswith(b"HTTP/1.1 413")
        await client.receive_all()


async def test_a_body_that_is_expected_is_asked_for(start: Any) -> None:
    served = await start(max_body_size=1000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={"Content-Length": "1000", "Expect": "100-continue"}))
        assert await client.receive_until(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await client.send(bytes(1000))
        assert (await client.response("POST")).body == b"1000"


@pytest.fixture
def peak_memory() -> Iterator[Callable[[], int]]:
    """Tells the most memory that Python has had allocated at any time in the test, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("chunk", [65536, 16])
async def test_a_chunked_body_that_is_too_large_is_not_kept(
    start: Any, chunk: int, peak_memory: Callable[[], int]
) -> None:
    served = await start(max_body_size=100_000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={"Transfer-Encoding": "chunked"}))
        async with trio.open_nursery() as nursery:

            async def upload() -> None:
                piece = b"%x\r\n%b\r\n" % (chunk, bytes(chunk))
                try:
                    for _ in range(20):
                        await client.send(piece * (1_000_000 // len(piece)))
                except OSError:
                    # the server has closed
                    pass

            nursery.start_soon(upload)
            assert (await client.response("POST")).status == 413
    assert peak_memory() < 8_000_000


async def test_a_body_that_no_handler_reads_is_not_kept_either(start: Any, peak_memory: Callable[[], int]) -> None:
    served = await start(max_body_size=100_000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/stream?pause=1000", headers={"Transfer-Encoding": "chunked"}))
        for _ in range(20):
            await client.send(b"f4240\r\n%b\r\n" % bytes(1_000_000))
    assert peak_memory() < 8_000_000


async def test_a_body_of_just_the_limit_is_served(start: Any) -> None:
    served = await start(max_body_size=1000)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", body=bytes(1000)))
        assert (await client.response("POST")).body == b"1000"


async def test_more_clients_than_connections_wait_their_turn(start: Any) -> None:
    served = await start(max_connections=2)
    clients = [await RawClient.connect(served.port) for _ in range(3)]
    for client in clients:
        await client.send(request_bytes("GET", "/health"))
    assert (await clients[0].response()).body == b"ok"
    assert (await clients[1].response()).body == b"ok"
    with trio.move_on_after(0.1) as waiting:
        await clients[2].response()
    assert waiting.cancelled_caught
    clients[0].close()
    assert (await clients[2].response()).body == b"ok"
    for client in clients:
        client.close()


async def test_an_address_without_clients_keeps_no_connection_from_another(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
        served = await start(host="two", max_connections=1)
    for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"):
        stream = await trio.open_tcp_stream(host, served.port)
        await stream.send_all(request_bytes("GET", "/health", headers={"Connection": "close"}))
        assert b"".join([data async for data in stream]).endswith(b"ok")
        await stream.aclose()
