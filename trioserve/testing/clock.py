"""Running a test on virtual time.

Owns: run_virtual, a drop-in for ``trio.run`` (pytest-trio takes it as the ``run`` of its marker).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
import trio.testing

Result = TypeVar("Result")

# Far beyond what any test waits for on purpose, so that only a deadlock jumps there.
DEADLOCK_SECONDS = 1e5


def run_virtual(
    function: Callable[[], Awaitable[Result]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Result:
    """``trio.run`` on a clock that jumps to the next deadline when every task waits.

    A deadlock is then a jump to a deadline of our own: it fails at once instead of hanging.

    Raises:
        trio.TooSlowError: nothing could go on, or a task waited for more than a virtual day.
    """

    async def guarded() -> Result:
        with trio.fail_after(DEADLOCK_SECONDS):
            return await function()

    if clock is None:
        clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(guarded, clock=clock, instruments=instruments)
