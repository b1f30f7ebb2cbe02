"""A chaos run: clients that do everything a client can do, against the real server, and a count of what is left.

    python tests/chaos/run.py --requests 20000 --seed 7

The real HTTP stack on a real socket, in front of a real engine with a simulated device that is too small, in one
process and on the real clock. Every answer is compared to its replay; at the end no task, socket, page, channel or
request may be left, and memory must not have grown. The exit status is 1 if anything was wrong.

The seed decides what every client does, but not how they meet: a failing run can be repeated as far as time allows.
"""

from __future__ import annotations

import gc
import logging
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import click
import structlog
import trio
from calls import MAX_BODY_SIZE
from census import Census, flush_cache, idle, until_idle
from crashes import crash
from figures import Figures
from ticker import Ticker
from visits import BEHAVIOURS, STALL_SECONDS, Visit
from world import PAGE_COUNT, open_chaos_engine, poison_message

from trioserve.engine.engine import Engine
from trioserve.engine.observer import Observer, RequestReport
from trioserve.params import SamplingParams
from trioserve.structure import Structure
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve
from trioserve.web.shutdown import Shutdown

_VISIT_SECONDS: Final = 120.0
"""A client that is not done by then hangs, however busy the machine is with other things."""
_SETTLE_SECONDS: Final = 5.0
"""What clients left behind is gone by then, or stays."""
_WARM_UP: Final = 40
"""Requests before anything is counted."""
_GROWTH_BYTES: Final = 4 * 2**20
"""How much memory may grow in the second half of a long run."""
_LONG_RUN: Final = 1500
"""Requests of a run whose memory has settled by its middle."""
_CRASHES: Final = 6

_EXPECTED_ERROR: Final = re.compile(rf"request \S+: choice \d+ failed: {re.escape(poison_message())}")
_EXPECTED_IN_CRASH: Final = re.compile(
    r"POST /(v1/(chat/)?completions|inference/v1/generate): The device failed in step \d+: RuntimeError: out of order|"
    + _EXPECTED_ERROR.pattern
)


class AbortCounter(Observer):
    """Counts the choices that were aborted."""

    def __init__(self, figures: Figures) -> None:
        self._aborted = figures.aborted

    def request_ended(self, report: RequestReport) -> None:
        if report.abort_cause is not None:
            self._aborted[report.abort_cause] += report.aborted_choices


class ErrorLog(logging.Handler):
    """Takes all errors that are logged, and makes a violation of each that is not expected."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(logging.ERROR)
        self.expected = _EXPECTED_ERROR
        self._figures = figures

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += f": {record.exc_info[1]}"
        if self.expected.fullmatch(message):
            self._figures.outcomes["errors logged, as expected"] += 1
            return
        if record.exc_info:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info))
        self._figures.violate(f"logged by {record.name}: {message}")


@attrs.define(eq=False)
class Run:
    """One chaos run."""

    figures: Figures
    engine: Engine
    port: int
    concurrency: int
    ticker: Ticker = attrs.field(factory=Ticker, init=False)
    _visits: int = attrs.field(default=0, init=False)

    async def visit(self, requests: int) -> None:
        """Let clients come, so many at once, until there were so many requests in all; wait for the last to go."""

        async def come_again() -> None:
            while self.figures.requests < requests:
                await self._visit_once()

        async with trio.open_nursery() as nursery:
            # only while clients are there: counting everything, for one, makes the loop late
            nursery.start_soon(self.ticker.run)
            async with trio.open_nursery() as clients:
                for _ in range(self.concurrency):
                    clients.start_soon(come_again)
            nursery.cancel_scope.cancel()

    async def _visit_once(self) -> None:
        self._visits += 1
        number = self._visits
        # its own generator: what a client does must not depend on what others did meanwhile
        rng = random.Random(f"{self.figures.seed} {number}")
        (behave,) = rng.choices(tuple(BEHAVIOURS), weights=tuple(BEHAVIOURS.values()))
        try:
            with trio.fail_after(_VISIT_SECONDS):
                await behave(Visit(number, rng, self.engine, self.port, self.figures))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.figures.violate(
                f"visit {number}, {behave.__name__}: {type(error).__name__}: {error} "
                f"({Path(where.filename).name}:{where.lineno})"
            )

    async def settle(self, tasks: int) -> None:
        """Wait for the server to be done with everybody, and check that it is."""
        # trio holds on to what has woken a task for as long as it runs on: here, the Cancelled that ended the ticker
        await trio.lowlevel.checkpoint()
        if not await until_idle(self.engine, tasks, _SETTLE_SECONDS):
            living = trio.lowlevel.current_statistics().tasks_living
            self.figures.violate(f"not at rest: {living} tasks ({tasks} before), {self.engine.statistics()}")
        try:
            self.engine.check()
            flush_cache(self.engine)
            self.engine.check()
        except Exception as error:
            self.figures.violate(f"the books are wrong: {error}")
        free = self.engine.statistics().scheduler.pages_free
        if idle(self.engine) and free != PAGE_COUNT:
            self.figures.violate(f"{free} of {PAGE_COUNT} pages are free")

    def compare(self, when: str, before: Census, after: Census) -> None:
        """Whatever has become more is a leak, and of some things none may be left at all."""
        for message in (*before.growth(after), *after.left_over()):
            self.figures.violate(f"{when}: {message}")


async def run_load(figures: Figures, requests: int, concurrency: int, step_seconds: float) -> None:
    """The whole course of a run, but for the crashes."""
    options = ServeOptions(
        port=0,
        send_stall_timeout=STALL_SECONDS,
        max_body_size=MAX_BODY_SIZE,
        # short, so that queued streams get some
        ping_interval=0.1,
    )
    shutdown = Shutdown()
    with bind(options) as listeners:
        async with open_chaos_engine(step_seconds=step_seconds) as engine, trio.open_nursery() as nursery:
            engine.add_observer(AbortCounter(figures))
            await nursery.start(
                lambda task_status: serve(
                    engine, options, listeners=listeners, shutdown=shutdown, task_status=task_status
                )
            )
            # what is made on first use, and stays
            await engine.complete("x", SamplingParams(max_tokens=1, structure=Structure(kind="regex", text="a")))
            tasks = trio.lowlevel.current_statistics().tasks_living
            run = Run(figures, engine, listeners.port, concurrency)
            await _run_halves(run, requests, tasks)
            totals = engine.statistics().scheduler
            shutdown.begin(0)
            nursery.cancel_scope.cancel()
    figures.measured |= {
        "steps": totals.steps,
        "groups scheduled": totals.groups,
        "tokens generated": totals.tokens_generated,
        "prompt tokens computed": totals.prompt_tokens_computed,
        "prompt tokens cached": totals.prompt_tokens_cached,
        "tokens recomputed": totals.tokens_recomputed,
        "preemptions": totals.preemptions,
        "draft tokens": totals.draft_tokens,
        "draft tokens accepted": totals.draft_tokens_accepted,
        "event loop late, 99 % of ticks, ms": run.ticker.percentile(0.99),
        "event loop late at most, ms": run.ticker.longest,
    }


async def _run_halves(run: Run, requests: int, tasks: int) -> None:
    """Half of the requests, a count of everything, the other half, and a count again."""
    figures = run.figures
    await run.visit(min(_WARM_UP, requests // 4))
    await run.settle(tasks)
    start = Census.take()
    await run.visit(requests // 2)
    await run.settle(tasks)
    middle = Census.take()
    run.compare("in the middle", start, middle)
    await run.visit(requests)
    await run.settle(tasks)
    end = Census.take()
    run.compare("at the end", start, end)
    if requests >= _LONG_RUN and end.resident - middle.resident > _GROWTH_BYTES:
        figures.violate(f"memory has grown by {(end.resident - middle.resident) / 2**20:.1f} MiB in the second half")
    for name, census in (("start", start), ("middle", middle), ("end", end)):
        figures.measured[f"MiB resident, {name}"] = census.resident / 2**20


async def run_crashes(figures: Figures, rng: random.Random) -> None:
    """Engines that fail, one after the other; nothing of them may be left."""
    # what is made on first use
    await trio.to_thread.run_sync(gc.collect)
    before: Census | None = None
    for number in range(_CRASHES):
        try:
            await crash(rng, figures)
        except Exception as error:
            figures.violate(f"crash {number}: {type(error).__name__}: {error}")
            figures.violations += [repr(leaf) for leaf in getattr(error, "exceptions", ())]
        after = Census.take()
        if before is not None:
            for growth in before.growth(after):
                figures.violate(f"after crash {number}: {growth}")
        # the first one is the warm-up
        before = before or after


def run_all(figures: Figures, requests: int, concurrency: int, step_seconds: float) -> None:
    """A run and the crashes, with everything that Python complains about on the way."""

    def count_access(_: object, __: str, access: MutableMapping[str, Any]) -> NoReturn:
        figures.statuses[access["status"]] += 1
        raise structlog.DropEvent

    structlog.configure(processors=[count_access])
    errors = ErrorLog(figures)
    logging.getLogger().addHandler(errors)
    # what is raised in finalisers, and warnings of things that were never closed or awaited
    warnings.simplefilter("error")
    sys.unraisablehook = lambda complaint: figures.violate(
        f"unraisable: {complaint.exc_value!r} in {complaint.object!r}"
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    try:
        trio.run(run_load, figures, requests, concurrency, step_seconds)
    except Exception as error:
        figures.violate("the engine or the server has ended: " + "".join(traceback.format_exception(error)))
    figures.measured |= {
        "seconds": time.perf_counter() - began,
        "CPU seconds, clients included": time.process_time() - cpu_began,
    }
    errors.expected = _EXPECTED_IN_CRASH
    trio.run(run_crashes, figures, random.Random(figures.seed))
    gc.collect()


@click.command()
@click.option("--requests", default=2000, show_default=True, type=click.IntRange(1), help="How many to make.")
@click.option("--seed", type=int, help="Decides what every client does; random if not given.")
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(1), help="Clients at once.")
@click.option("--step-ms", default=0.7, show_default=True, help="How long a step of the device takes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(requests: int, seed: int | None, concurrency: int, step_ms: float, json_path: Path | None) -> None:
    """Let clients do their worst, and count what is left."""
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    click.echo(f"seed {seed}")
    figures = Figures(seed)
    run_all(figures, requests, concurrency, step_ms / 1000)
    click.echo(figures.table())
    if json_path is not None:
        figures.write_json(json_path)
    sys.exit(1 if figures.violations else 0)


if __name__ == "__main__":
    main()
