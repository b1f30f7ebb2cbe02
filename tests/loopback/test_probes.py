"""What one client does, however strange, is never felt by another. Each probe ended some other server's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from trioserve.testing.http import RawClient, request_bytes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
DATA, HEADERS, PRIORITY, RST_STREAM = 0, 1, 2, 3
WEBSOCKET = (
    "GET /health HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: eA==\r\n"
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2c(settings: str) -> bytes:
    """A request to go on in HTTP/2."""
    return (
        "GET /health HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + settings + "\r\n"
    ).encode()


# The bytes of a connection, in the pieces in which they are sent.
PROBES: dict[str, Sequence[bytes]] = {
    # case: h2-backpressure, h2-cancel: HTTP/2 is not spoken, so none of it gets further than its preface
    "HTTP/2: answered before the upload ended": [PREFACE, frame(HEADERS, 4, 1, b"\x83\x86"), frame(DATA, 0, 1, b"x")],
    "HTTP/2: too large an upload": [PREFACE, frame(HEADERS, 4, 1, b"\x83\x86"), *[frame(DATA, 0, 1, bytes(1000))] * 3],
    "HTTP/2: a path that is not ASCII": [PREFACE + frame(HEADERS, 5, 1, b"\x82\x86\x04\x02\xff\xfe")],
    "HTTP/2: a thousand priorities": [
        PREFACE + b"".join(frame(PRIORITY, 0, 2 * i + 1, b"\0\0\0\0\x0a") for i in range(1200))
    ],
    "HTTP/2: priorities in a circle": [PREFACE] + [frame(PRIORITY, 0, s, b"\x80\0\0\x03\x0a") for s in (1, 3, 1)],
    "HTTP/2: data for a stream that was reset": [
        PREFACE,
        frame(RST_STREAM, 0, 1, b"\0\0\0\x08") + frame(DATA, 0, 1, b"x"),
    ],
    "HTTP/2: CONNECT": [PREFACE + frame(HEADERS, 4, 1, b"\x02\x07CONNECT")],
    "HTTP/2: trailers": [PREFACE + frame(HEADERS, 4, 1, b"\x83\x86") + frame(HEADERS, 5, 1, b"\x40\x01x\x01y")],
    "a target that is not ASCII": [b"GET /\xff HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n"],
    "headers that are not ASCII": [
        b"GET /health?a=%ff HTTP/1.1\r\nHost: a\r\nX: \xff\xfe\r\nUser-Agent: \xf0\x9f\x98\r\n\r\n"
    ],
    "a bad chunk": [b"POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    "a bad chunk in mid-upload": [
        b"POST /wait HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"zz\r\n",
    ],
    "CONNECT": [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nxxx"],
    # case: ws-upgrade-kills-server
    "a WebSocket": [WEBSOCKET.encode() + b"\r\nx"],
    "a WebSocket without a key": [
        b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ],
    "a WebSocket with a strange extension": [
        WEBSOCKET.encode() + b"Sec-WebSocket-Extensions: permessage-deflate; bogus=\xff\r\n\r\nxxxxx"
    ],
    "h2c with bad settings": [h2c("HTTP2-Settings: !!!\r\n")],
    "h2c without settings": [h2c("")],
    "h2c with short settings": [h2c("HTTP2-Settings: AAMA\r\n")],
    "empty lines": [b"\r\n\r\n\r\n"],
    "a TLS hello": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300)],
    "noise": [bytes(range(256)) * 8],
    "half a body": [b"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc"],
    "bytes after the last request": [request_bytes("GET", "/health", headers={"Connection": "close"}) + b"xxx"],
    "too much sent ahead": [request_bytes("GET", "/wait"), *[bytes(30_000)] * 4],
} | {
    f"target {target!r}": [b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n"]
    for target in (
        b"*",
        b"http://x/health",
        b"http://[x/",
        b"http://x",
        b"//health",
        b"/%zz%00",
        b"a",
        b"?",
        b"/%2e%2e/",
    )
}


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("pieces", PROBES.values(), ids=PROBES.keys())
async def test_nobody_else_notices(start: Any, jobs: Any, pieces: Sequence[bytes]) -> None:
    served = await start()
    with await RawClient.connect(served.port) as other:
        await other.send(request_bytes("GET", "/stream?chunks=10&pause=0.002"))
        await other.receive_until(b"data")
        with await RawClient.connect(served.port) as rude:
            try:
                for piece in pieces:
                    await rude.send(piece)
                    await trio.sleep(0.002)
            except OSError:
                # refused before all was said
                pass
        assert (await other.receive_until(b"0\r\n\r\n")).count(b"data") == 9
        await other.send(request_bytes("GET", "/health"))
        assert (await other.response()).body == b"ok"
    with await RawClient.connect(served.port) as next_one:
        await next_one.send(request_bytes("GET", "/health"))
        assert (await next_one.response()).body == b"ok"
    await jobs.wait_until_running(0)


@pytest.mark.usefixtures("no_errors")
async def test_two_hundred_resets(start: Any, jobs: Any) -> None:
    served = await start()
    for _ in range(200):
        with await RawClient.connect(served.port) as rude:
            await rude.send(request_bytes("GET", "/stream"))
            rude.reset()
    with await RawClient.connect(served.port) as next_one:
        await next_one.send(request_bytes("GET", "/health"))
        assert (await next_one.response()).body == b"ok"
    await jobs.wait_until_running(0)


async def test_a_fault_of_our_own_ends_one_connection_only(
    start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = await start()

    async def faulty(self: object, data: bytes) -> None:
        raise RuntimeError("a bug in the protocol")

    with await RawClient.connect(served.port) as unlucky, await RawClient.connect(served.port) as other:
        with monkeypatch.context() as patch:
            patch.setattr("trioserve.web.protocol.HTTP1Protocol.receive", faulty)
            await unlucky.send(request_bytes("GET", "/health"))
            assert await unlucky.receive_all() == b""
        await other.send(request_bytes("GET", "/health"))
        assert (await other.response()).body == b"ok"
    assert "a bug in the protocol" in caplog.text
