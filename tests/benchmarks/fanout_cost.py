"""What fan-out costs beside the model: time per token of the engine, and of HTTP streaming, on a device that is free.

    python tests/benchmarks/fanout_cost.py [--json PATH]

The device answers at once, so all that is measured is the engine (scheduler, channels, choice tasks) and HTTP
(chunks, writes). CPU time of the process is given beside wall time, since machines are shared; over HTTP the client
is another process, which only throws the bytes away. Medians of several rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import statistics
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import Engine, ModelInfo
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.events import TextDelta
from trioserve.params import Limits, SamplingParams
from trioserve.step import StepPlan, StepResult
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve
from trioserve.web.shutdown import Shutdown

ROUNDS = 5
TOKENS_PER_ROUND = 20_000
# long enough that starting and ending a choice is a small part of it
SHORTEST_ANSWER = 64
LETTER = ord("a")


class FreeDevice:
    """An AsyncDevice that says "a" at no cost."""

    info = DeviceInfo(
        name="free", vocab_size=259, context_length=100_000, page_size=16, page_count=200_000, batch_tokens=16_384
    )

    async def run_async(self, plan: StepPlan) -> StepResult:
        await trio.lowlevel.checkpoint()
        return StepResult(plan.number, array("i", [LETTER]) * len(plan.rows.tokens))


def open_free_engine() -> EngineBlock:
    async def load() -> tuple[ModelInfo, FreeDevice]:
        await trio.lowlevel.checkpoint()
        return ModelInfo(id="free", tokenizer=ByteTokenizer(), template=None), FreeDevice()

    return EngineBlock(load, EngineOptions(max_running=8192, max_queued=16_384, limits=Limits(max_choices=16_384)))


@attrs.frozen
class Measured:
    """Of one case: microseconds per token."""

    path: str
    n: int
    requests: int
    wall: float
    cpu: float


async def timed(run: Callable[[], Awaitable[None]], tokens: int) -> tuple[float, float]:
    """Median wall and CPU microseconds per token of ``run``."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        await run()
        walls.append((time.perf_counter() - wall) * 1e6 / tokens)
        cpus.append((time.process_time() - cpu) * 1e6 / tokens)
    return statistics.median(walls), statistics.median(cpus)


async def read_all(engine: Engine, params: SamplingParams, expected: int) -> None:
    got = 0
    async with engine.generate("x", params) as generation:
        async for event in generation:
            if isinstance(event, TextDelta):
                got += len(event.token_ids)
    assert got == expected, (got, expected)


async def engine_case(engine: Engine, n: int, requests: int) -> Measured:
    length = max(SHORTEST_ANSWER, TOKENS_PER_ROUND // (n * requests))
    params = SamplingParams(n=n, max_tokens=length, ignore_eos=True)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(requests):
                nursery.start_soon(read_all, engine, params, n * length)

    return Measured("engine", n, requests, *await timed(run, n * requests * length))


async def http_case(port: int, n: int, requests: int) -> Measured:
    length = max(SHORTEST_ANSWER, TOKENS_PER_ROUND // (n * requests))
    command = [sys.executable, __file__, "--client", str(port), str(n), str(requests), str(length)]

    async def run() -> None:
        await trio.run_process(command)

    # the first run of a client pays for its start; it is taken off below by a run that asks for next to nothing
    async def start_only() -> None:
        await trio.run_process([*command[:-1], "1"])

    tokens = n * requests * length
    wall, cpu = await timed(run, tokens)
    idle_wall, idle_cpu = await timed(start_only, tokens)
    return Measured("http", n, requests, wall - idle_wall, cpu - idle_cpu)


def client(port: int, n: int, requests: int, length: int) -> None:
    """Open ``requests`` streams at once and read them to their end."""
    body = json.dumps(
        {"model": "free", "prompt": "x", "n": n, "max_tokens": length, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(requests)]
    for stream in streams:
        stream.sendall(head.encode() + body)
    for stream in streams:
        tail = b""
        while data := stream.recv(1 << 20):
            tail = (tail + data)[-64:]
        assert b"[DONE]" in tail, tail


async def measure() -> list[Measured]:
    cases = [(n, requests) for requests in (1, 32) for n in (1, 8, 64, 128)]
    measured = []
    with bind(ServeOptions(port=0)) as listeners:
        async with open_free_engine() as engine:
            for n, requests in cases:
                measured.append(await engine_case(engine, n, requests))
                show(measured[-1])
            async with trio.open_nursery() as nursery:
                shutdown = Shutdown()
                start = partial(serve, engine, ServeOptions(), listeners=listeners, shutdown=shutdown)
                await nursery.start(start)
                for n, requests in cases:
                    measured.append(await http_case(listeners.port, n, requests))
                    show(measured[-1])
                shutdown.begin(0)
    return measured


def show(case: Measured) -> None:
    print(f"{case.path:8}{case.n:6}{case.requests:10}{case.wall:12.1f}{case.cpu:12.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--client", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(*arguments.client)
        return
    # the access log goes nowhere: it costs once per request, whatever is generated
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(f"{'path':8}{'n':>6}{'requests':>10}{'us/token':>12}{'CPU us':>12}")
    measured = trio.run(measure)
    if arguments.json:
        arguments.json.write_text(json.dumps([attrs.asdict(case) for case in measured], indent=2) + "\n")


if __name__ == "__main__":
    main()
