"""A client that leaves ends its request at once, wherever the two are (FAN-25, FAN-26, FAN-27)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from trioserve.testing.http import RawClient, request_bytes

# A disconnect takes the server a millisecond or two; the rest is for a busy machine.
PROMPTLY = 1.0

WAYS: dict[str, Callable[[RawClient], None]] = {
    "close": RawClient.close,
    "reset": RawClient.reset,
    "half-close": RawClient.half_close,
}
PLACES = {
    "handler waits, nothing sent": "/wait",
    "stream, before its first chunk": "/stream?pause=1000",
    "stream, in mid-flow": "/stream?pause=0.002",
    "stream, at full speed": "/stream",
}
UPGRADE_TO_H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}


async def check_leaving(start: Any, jobs: Any, request: bytes, leave: Callable[[RawClient], None]) -> None:
    served = await start()
    with await RawClient.connect(served.port) as client:
        await client.send(request)
        await jobs.wait_until_running(1)
        # let it get into its stride
        await trio.sleep(0.01)
        leave(client)
        with trio.fail_after(PROMPTLY):
            await jobs.wait_until_running(0)
    assert await served.statuses(1) == [499]


# case: disconnect-before-first-chunk, h2-cancel (there is no HTTP/2, so leaving is closing)
@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("http_version", ["1.1", "1.0"])
@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("target", PLACES.values(), ids=PLACES.keys())
async def test_leaving_ends_the_request(
    start: Any, jobs: Any, target: str, leave: Callable[[RawClient], None], http_version: str
) -> None:
    await check_leaving(start, jobs, request_bytes("GET", target, http_version=http_version), leave)


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("headers", [{"Content-Length": "1000"}, {"Transfer-Encoding": "chunked"}], ids=str)
async def test_leaving_in_mid_upload_ends_the_request(
    start: Any, jobs: Any, headers: dict[str, str], leave: Callable[[RawClient], None]
) -> None:
    await check_leaving(start, jobs, request_bytes("POST", "/wait", headers=headers) + b"3\r\nabc\r\n", leave)


# Each of these makes h11 pause until the request in progress is answered, and a server that then stops reading does
# not see the client leave.
@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize(
    "request_",
    [
        request_bytes("GET", "/wait") + request_bytes("GET", "/wait"),
        request_bytes("GET", "/stream") + request_bytes("GET", "/wait"),
        request_bytes("POST", "/wait", body=b"{}") + b"\r\n",
        request_bytes("POST", "/wait", body=b"{}", headers=UPGRADE_TO_H2C),
        request_bytes("GET", "/wait", headers={"Connection": "Upgrade", "Upgrade": "foo"}),
        request_bytes("GET", "/stream", headers={"Connection": "Upgrade", "Upgrade": "websocket"}),
    ],
    ids=["pipelined", "pipelined behind a stream", "stray bytes", "curl --http2 -d", "Upgrade: foo", "websocket"],
)
@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
async def test_leaving_is_seen_though_more_was_sent_than_one_request(
    start: Any, jobs: Any, request_: bytes, leave: Callable[[RawClient], None]
) -> None:
    await check_leaving(start, jobs, request_, leave)


@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
async def test_leaving_releases_a_stream_that_has_stalled(
    start: Any, jobs: Any, leave: Callable[[RawClient], None]
) -> None:
    served = await start()
    with await RawClient.connect(served.port, receive_buffer=4096) as client:
        await client.send(request_bytes("GET", "/stream"))
        await until_stalled(jobs)
        leave(client)
        with trio.fail_after(PROMPTLY):
            await jobs.wait_until_running(0)


# case: abort-needs-shield, lock-across-tasks
async def test_many_clients_that_leave_and_many_that_stay(start: Any, jobs: Any) -> None:
    served = await start()

    async def leaving(index: int) -> None:
        with await RawClient.connect(served.port) as client:
            await client.send(request_bytes("GET", "/stream?pause=0.001"))
            await client.receive_until(b"data")
            client.reset() if index % 2 else client.close()

    async def staying() -> None:
        with await RawClient.connect(served.port) as client:
            await client.send(request_bytes("GET", "/stream?chunks=20&pause=0.001"))
            assert (await client.response()).body.count(b"data") == 20

    async with trio.open_nursery() as nursery:
        for index in range(60):
            nursery.start_soon(leaving, index)
            if index % 3 == 0:
                nursery.start_soon(staying)
    with trio.fail_after(PROMPTLY):
        await jobs.wait_until_running(0)
    assert sorted(await served.statuses(80)) == [200] * 20 + [499] * 60


async def until_stalled(jobs: Any) -> None:
    """Wait until the job in progress can't go on, because nobody reads what it produces."""
    produced = -1
    while produced != jobs.produced or not produced:
        produced = jobs.produced
        await trio.sleep(0.03)
