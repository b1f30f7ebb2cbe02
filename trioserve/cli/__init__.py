"""The ``trioserve`` command. It alone reads the environment, writes to the terminal and ends the process."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console script: run the command that the process was started with, and end the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal may not have all the characters that a model writes
        sys.stdout.reconfigure(errors="replace")
    try:
        # takes half a second, in which Ctrl-C is no bug either
        from trioserve.cli.commands import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    # Everything is closed by now. Python's own end would wait for threads that were left while they fetched, write
    # once more to a pipe that nobody reads, and take half a second to take torch apart.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
