"""What SIGINT and SIGTERM mean while there is nothing to shut down in order.

Owns: the way out of a download. Must not know: what is fetched.

Before a server serves, and in all other commands, a signal ends the command with the exit code that a shell reports
for a process which the signal has ended: 128 plus its number.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

SIGNAL_BASE: Final = 128
INTERRUPTED: Final = SIGNAL_BASE + signal.SIGINT
# Ctrl-C is for a person who wants to be back at the prompt.
CLEANING_TIME_S: Final = 0.8


def end_by_signal(number: int) -> NoReturn:
    """Raise what ends the command as the signal would have."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(SIGNAL_BASE + number)


@contextmanager
def ending_soon() -> Iterator[None]:
    """In the body, which blocks the main thread, both signals raise; what clean-up is not over soon is cut short.

    Python's own SIGTERM would leave half a download and pip running; and the threads of huggingface_hub finish the
    file they are at before they let an exception pass.
    """
    timers: list[threading.Timer] = []

    def end(number: int, _: FrameType | None) -> None:
        timer = threading.Timer(CLEANING_TIME_S, os._exit, [SIGNAL_BASE + number])
        timer.daemon = True
        timers.append(timer)
        timer.start()
        end_by_signal(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()
