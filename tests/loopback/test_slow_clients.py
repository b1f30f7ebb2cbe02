"""A client that does not read is waited for, but not for ever, and nobody else waits with it (FAN-29)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.testing.http import RawClient, request_bytes

pytestmark = pytest.mark.usefixtures("no_errors")


async def test_a_reader_that_stalls_is_closed(start: Any, jobs: Any) -> None:
    served = await start(send_stall_timeout=0.15)
    with await RawClient.connect(served.port, receive_buffer=4096) as client:
        began = trio.current_time()
        await client.send(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(1)
        await jobs.wait_until_running(0)
        assert 0.15 < trio.current_time() - began < 2
        assert await served.statuses(1) == [499]
        with pytest.raises(ConnectionResetError):
            await client.receive_all()


async def test_a_reader_that_stalls_is_closed_without_help_from_the_kernel(
    start: Any, jobs: Any, tmp_path: Path
) -> None:
    # there are no timeouts in the kernel for unix sockets
    served = await start(send_stall_timeout=0.15, unix_socket=tmp_path / "http.sock")
    with await RawClient.connect(tmp_path / "http.sock") as client:
        await client.send(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(1)
        await jobs.wait_until_running(0)
        assert await served.statuses(1) == [499]


async def test_a_producer_that_never_waits_leaves_time_for_others(start: Any, jobs: Any) -> None:
    served = await start()

    async def read(client: RawClient) -> None:
        while await client.receive():
            pass

    with await RawClient.connect(served.port) as greedy:
        await greedy.send(request_bytes("GET", "/tight"))
        await greedy.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, greedy)
            turns = []
            for _ in range(100):
                before = jobs.produced
                await trio.lowlevel.checkpoint()
                turns.append((jobs.produced - before) // len(b"data: {}\n\n"))
            nursery.cancel_scope.cancel()
        # eight events in a row; twice that if it is the last one of a round of tasks and the first one of the next
        assert 8 <= max(turns) <= 16
        greedy.close()
        with trio.fail_after(1):
            assert await served.statuses(1) == [499]


async def test_a_stalled_reader_of_one_large_body_is_closed(start: Any, jobs: Any) -> None:
    served = await start(send_stall_timeout=0.15)
    with await RawClient.connect(served.port, receive_buffer=4096) as client:
        await client.send(request_bytes("GET", "/blob?size=20000000"))
        await jobs.wait_until_running(1)
        await jobs.wait_until_running(0)
        assert await served.statuses(1) == [499]


async def test_a_slow_reader_that_goes_on_reading_is_not_closed(start: Any, jobs: Any) -> None:
    served = await start(send_stall_timeout=0.25)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/blob?size=20000000"))
        began, received = trio.current_time(), 0
        # longer in all than a stall may last
        while trio.current_time() - began < 0.5:
            received += len(await client.receive())
            await trio.sleep(0.01)
        assert jobs.running == 1
        while received < 20_000_000:
            received += len(await client.receive())
    assert await served.statuses(1) == [200]


async def test_a_stalled_reader_holds_little_and_hinders_nobody(start: Any, jobs: Any) -> None:
    # case h2-backpressure, of the protocol that is spoken
    served = await start()
    with (
        await RawClient.connect(served.port, receive_buffer=4096) as stalled,
        await RawClient.connect(served.port) as other,
    ):
        await stalled.send(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(1)
        await other.send(request_bytes("GET", "/stream?chunks=20&pause=0.005"))
        assert (await other.response()).body.count(b"data") == 20
        # 16 KiB in the kernel here, what the client's kernel takes, and what is between the job and the connection
        assert jobs.produced < 200_000


async def test_a_reader_that_comes_back_gets_everything(start: Any) -> None:
    served = await start()
    with await RawClient.connect(served.port, receive_buffer=4096) as client:
        await client.send(request_bytes("GET", "/blob?size=1000000"))
        await trio.sleep(0.1)
        assert len((await client.response()).body) == 1_000_000
        await client.send(request_bytes("GET", "/stream?chunks=5000"))
        await trio.sleep(0.1)
        assert (await client.response()).body.count(b"data") == 5000
