"""The access log of a whole server."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog.testing
import trio

from trioserve.testing.engine import open_fake_engine, say
from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve
from trioserve.web.state import Access


@pytest.mark.parametrize(
    ("client", "address"),
    [(("127.0.0.1", 51234), "127.0.0.1:51234"), (("::1", 51234), "[::1]:51234"), (None, "unix")],
)
def test_a_client_is_named_by_its_address(client: tuple[str, int] | None, address: str) -> None:
    access = Access(request_id="r", method="GET", path="/", status=200, sent_bytes=0, seconds=0.0, client=client)
    assert access.client_address == address


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
async def test_a_line_of_the_log_says_who_asked_for_what_and_what_came_of_it(unix: bool, tmp_path: Path) -> None:
    options = ServeOptions(port=0, unix_socket=tmp_path / "socket" if unix else None, graceful_timeout=0.2)
    block, _ = open_fake_engine(say("ok"))
    with structlog.testing.capture_logs() as lines, trio.fail_after(10), bind(options) as listeners:
        async with block as engine, trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: serve(engine, options, listeners=listeners, task_status=task_status)
            )
            with await RawClient.connect(tmp_path / "socket" if unix else listeners.port) as client:
                await client.send(request_bytes("GET", "/health", headers={"X-Request-Id": "mine"}))
                response = await client.response()
                address = "unix" if unix else f"127.0.0.1:{client.port}"
                while not lines:  # noqa: ASYNC110  # the exchange ends after its client has the answer
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    (line,) = lines
    assert line.pop("ms") >= 0
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "mine",
        "method": "GET",
        "path": "/health",
        "status": 200,
        "bytes": len(response.body),
        "client": address,
    }
