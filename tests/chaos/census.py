"""What there is in the process: to compare before with after.

Owns: the counts of tasks, open files, objects and memory, and the look into the engine. It knows the insides of the
engine, where nothing else in this folder does. Must not know: clients.
"""

from __future__ import annotations

import gc
import os
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from trioserve.engine.engine import Engine
from trioserve.sched.seeds import seed_key
from trioserve.sched.state import SchedulerState

_OWNERS: Final = frozenset({"trioserve", "trio", "hypercorn", "quart", "quart_trio", "h11"})
"""The packages whose objects must not become more."""
_COME_AND_GO: Final = frozenset(
    {
        # trio forgets the scopes of deadlines that were not reached when it gets round to it
        "trio.CancelScope",
        "trio._core._run.CancelReason",
        # idle threads wait for more work for a while
        "trio._core._thread_cache.WorkerThread",
    }
)
_NONE_AT_REST: Final = (
    "trioserve.engine.generation.Generation",
    "trioserve.engine.choice.Choice",
    "trioserve.engine.ticket.Ticket",
    "trioserve.text.grammar.GrammarMatcher",
    "trioserve.sched.sequence.Choice",
    "trioserve.sched.sequence.Sequence",
    "trioserve.web.exchange.Exchange",
    "trioserve.web.connection.Connection",
)
_LOOK_SECONDS: Final = 0.001
_ALSO: Final = frozenset({"coroutine", "async_generator", "traceback"})
"""Built-in types that must not either."""


def phase_of(engine: Engine, seed: int) -> str | None:
    """What the oldest choice with ``seed`` is doing in the scheduler, of a request of which it is choice 0."""
    choice = next(
        (choice for choice in _state(engine)._roster.choices.values() if choice.spec.seed == seed_key(seed)), None
    )
    if choice is None:
        return None
    sequence = choice.sequence
    if sequence.is_prompt:
        return "prefill" if sequence.pages else "queued"
    return "paused" if choice.paused else "decoding"


def flush_cache(engine: Engine) -> None:
    """Forget all prefixes, so that every page is free, and all compiled structures, so that no matcher is left."""
    _state(engine).flush_cache()
    engine.structures._cached.clear()
    engine.structures._characters = 0


def _state(engine: Engine) -> SchedulerState:
    return engine._scheduler._state


def idle(engine: Engine) -> bool:
    """Nothing runs and nothing waits."""
    statistics = engine.statistics()
    scheduler = statistics.scheduler
    return (
        statistics.requests
        + scheduler.running
        + scheduler.prefilling
        + scheduler.paused
        + scheduler.waiting
        + scheduler.pages_held
        == 0
    )


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@attrs.frozen(kw_only=True)
class Census:
    """One count of everything."""

    tasks: int
    files: int
    objects: Counter[str]
    """By type, of those packages that matter here."""
    resident: int
    """Bytes."""

    @classmethod
    def take(cls) -> Census:
        """Count, after collecting the garbage."""
        # twice: finalisers make garbage too
        gc.collect()
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))
        objects = Counter(
            {
                f"{kind.__module__}.{kind.__qualname__}": count
                for kind, count in kinds.items()
                if kind.__module__.partition(".")[0] in _OWNERS or kind.__name__ in _ALSO
            }
        )
        for name in _COME_AND_GO:
            del objects[name]
        return cls(
            tasks=trio.lowlevel.current_statistics().tasks_living,
            files=len(os.listdir("/proc/self/fd")),  # noqa: PTH208  # Path.iterdir opens as many and more
            objects=objects,
            resident=resident_bytes(),
        )

    def left_over(self) -> list[str]:
        """What there must not be while nobody asks for anything; one text for each kind."""
        return [f"objects of {kind}: {self.objects[kind]} left" for kind in _NONE_AT_REST if self.objects[kind]]

    def growth(self, after: Census) -> list[str]:
        """What became more, but for memory; one text for each kind."""
        grown = []
        if after.tasks > self.tasks:
            grown.append(f"tasks: {self.tasks} before, {after.tasks} after")
        if after.files > self.files:
            grown.append(f"open files: {self.files} before, {after.files} after")
        more = after.objects - self.objects
        grown += [f"objects of {kind}: {count} more" for kind, count in sorted(more.items())]
        return grown


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, of which nobody would tell. False: not after so many seconds."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(_LOOK_SECONDS)
        return True
    return False


async def until_idle(engine: Engine, tasks: int, seconds: float) -> bool:
    """Wait until the engine has nothing to do and no more than ``tasks`` tasks live. False: that does not come."""
    return await wait_until(lambda: idle(engine) and trio.lowlevel.current_statistics().tasks_living <= tasks, seconds)
