"""trioserve's engine as a worker: an order per line of stdin, what it took per line of stdout.

python trioserve_worker.py MODEL DEVICE THREADS
"""

from __future__ import annotations

import json
import sys
import time

import trio

from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.params import SamplingParams
from trioserve.version import __version__


async def main(model: str, device: str, threads: str) -> None:
    async with open_engine(model, EngineOptions(device=device, threads=int(threads))) as engine:
        say({"ready": __version__})
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            say(await obey(engine, json.loads(line)))


async def obey(engine: Engine, order: dict) -> dict[str, object]:
    params = SamplingParams(n=order["n"], max_tokens=order["tokens"], ignore_eos=True, **order["sampling"])
    started, cpu = time.perf_counter(), time.process_time()
    answer = await engine.complete(order["prompt"], params)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu_seconds, "lengths": [len(each.token_ids) for each in answer.choices]}


def say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
