"""Engines whose device fails in the middle of everything.

Owns: what must be seen then, by those who use the engine, by HTTP clients and by whoever holds the engine.
Must not know: how a device fails.
"""

from __future__ import annotations

import json
import random
from typing import Final

import trio
from answers import check_response
from calls import Call, long_call, random_call
from details import require
from figures import Figures
from reading import Reading
from world import open_chaos_engine

from trioserve.engine.engine import Engine
from trioserve.errors import ChoiceFailedError, DeviceError, EngineClosedError
from trioserve.params import SamplingParams
from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve

_CLIENTS: Final = 12
_SECONDS: Final = 10.0
_CODES: Final = {"engine_closed", "engine_failed"}


async def crash(rng: random.Random, figures: Figures) -> None:
    """An engine that fails after a few steps, with those who use it directly and over HTTP."""
    options = ServeOptions(port=0, graceful_timeout=0.2)
    # the users live outside the engine's block, so that its end does not simply cancel them
    with trio.fail_after(_SECONDS), bind(options) as listeners:
        async with trio.open_nursery() as users:
            try:
                async with open_chaos_engine(step_seconds=0.001, fails_at=rng.randrange(40)) as engine:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(
                            lambda task_status: serve(engine, options, listeners=listeners, task_status=task_status)
                        )
                        for _ in range(_CLIENTS):
                            users.start_soon(_generate, engine, random.Random(rng.random()), figures)  # noqa: ASYNC111
                            users.start_soon(_ask, listeners.port, random.Random(rng.random()), figures)
                        await trio.sleep_forever()
            except DeviceError as error:
                require(isinstance(error.__cause__, RuntimeError), f"the cause is {error.__cause__!r}")
                figures.crashes["the block raised DeviceError"] += 1


async def _generate(engine: Engine, rng: random.Random, figures: Figures) -> None:
    """Use the engine again and again until it is closed."""
    while True:
        try:
            async with engine.generate(
                "count", SamplingParams(n=rng.randint(1, 8), seed=rng.getrandbits(60), max_tokens=20)
            ) as generation:
                async for _ in generation:
                    pass
        except ChoiceFailedError:
            figures.crashes["a choice failed before"] += 1
        except EngineClosedError as error:
            require(isinstance(error.__cause__, DeviceError), f"closed because of {error.__cause__!r}")
            figures.crashes["a user got EngineClosedError"] += 1
            return
        else:
            figures.crashes["a user got an answer before"] += 1


async def _ask(port: int, rng: random.Random, figures: Figures) -> None:
    """Ask over HTTP again and again until there is no answer."""
    while True:
        call = long_call(rng, stream=rng.random() < 0.5) if rng.random() < 0.5 else random_call(rng)
        try:
            with await RawClient.connect(port) as client:
                await client.send(request_bytes("POST", call.path, body=call.encoded()))
                reading = Reading(client)
                await reading.whole()
        except (ConnectionError, OSError):
            figures.crashes["a client was not connected"] += 1
            return
        if not reading.complete:
            figures.crashes["a client was cut off"] += 1
            return
        code = _error_code(call, reading)
        if code in _CODES:
            figures.crashes[f"a client was told {code}"] += 1
            return
        await check_response(call, reading.received())
        figures.crashes["a client got an answer before"] += 1


def _error_code(call: Call, reading: Reading) -> str | None:
    """The code of the error in a response, if there is one."""
    body = bytes(reading.body)
    if reading.status == 200:
        if not call.stream or b'data: {"error"' not in body:
            return None
        body = body[body.index(b'data: {"error"') :].partition(b"\n")[0].removeprefix(b"data: ")
    code = json.loads(body)["error"]["code"]
    return None if code is None else str(code)
