"""Progress: bars on a terminal, and now and then a line elsewhere.

Owns: how waiting looks. Must not know: what is being waited for.
"""

from __future__ import annotations

import time
from threading import Lock
from types import TracebackType
from typing import Final, Self

import click
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

# Off a terminal: what is done soon is not worth a line in a log file, and what takes long not one every second.
FIRST_LINE_AFTER_S: Final = 2.0
NEXT_LINE_AFTER_S: Final = 10.0


class ProgressDisplay:
    """A trioserve.abc.Progress on standard error, as a context manager. Nothing of it is left on a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._animated = console.is_terminal and not console.is_dumb_terminal
        self._tasks: dict[str, TaskID] = {}
        self._next_line: dict[str, float] = {}
        self._stopped = False
        # stages report from worker threads
        self._lock = Lock()

    def __enter__(self) -> Self:
        if self._animated:
            self._bars.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bars away; nothing is shown any more. Idempotent."""
        with self._lock:
            self._stopped = True
        if self._animated:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        with self._lock:
            # a thread that was abandoned may still report
            if self._stopped:
                return
            if self._animated:
                self._draw(stage, done, total)
            else:
                self._write(stage, done, total)

    def _draw(self, stage: str, done: int, total: int | None) -> None:
        task = self._tasks.get(stage)
        if task is None:
            # one bar at a time: a stage begins when the one before has ended
            for earlier in self._tasks.values():
                self._bars.update(earlier, visible=False)
            task = self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(task, completed=done, total=total)

    def _write(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        # a stage without a length says so once, and may last for ever
        due = self._next_line.setdefault(stage, now if total is None else now + FIRST_LINE_AFTER_S)
        if now >= due:
            self._next_line[stage] = now + NEXT_LINE_AFTER_S
            how_far = "" if total is None else f": {human_size(done)} of {human_size(total)}"
            click.echo(f"{stage}{how_far}", err=True)


def human_size(size: int) -> str:
    """A number of bytes for people: "98.4 MB"."""
    return filesize.decimal(size)
