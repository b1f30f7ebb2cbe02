"""What the commands share: progress bars, and the options that several of them take.

Owns: how waiting looks on a terminal. Must not know: what is being waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import click
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trioserve.engine.options import EngineOptions
from trioserve.model.cache import cache_dir
from trioserve.params import Limits

DEFAULT_MODEL = "smollm2"

Command = TypeVar("Command", bound=Callable[..., Any])


class ProgressBars:
    """A trioserve.abc.Progress that draws a bar for each stage, on standard error; off a terminal, one line each."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        # stages report from worker threads
        self._lock = Lock()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bars away; nothing is shown any more. Idempotent."""
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        with self._lock:
            task = self._tasks.get(stage)
            if task is None:
                task = self._tasks[stage] = self._bars.add_task(stage, total=total)
                if not self._console.is_terminal:
                    self._console.print(f"{stage} ...")
            self._bars.update(task, completed=done, total=total)


def cache_path() -> Path:
    """Where fetched models are kept, as the environment says."""
    return cache_dir(os.environ)


def option(flag: str, help_text: str, **settings: Any) -> Callable[[Command], Command]:
    """A click option that can also be given as TRIOSERVE_<NAME> in the environment."""
    name = flag.split("/", maxsplit=1)[0].removeprefix("--no-").removeprefix("--").replace("-", "_").upper()
    return click.option(flag, help=help_text, envvar=f"TRIOSERVE_{name}", show_envvar=True, **settings)


def engine_options(command: Command) -> Command:
    """The options of every command that opens an engine."""
    at_least_one = click.IntRange(min=1)
    for decorator in reversed(
        [
            option("--device", "What runs the model.", type=click.Choice(["auto", "reference"]), default="auto"),
            option("--threads", "CPU threads of the device.", type=at_least_one),
            option("--context-length", "Tokens per sequence at most.", type=click.IntRange(min=2)),
            option("--kv-tokens", "Tokens that the KV pages hold in all.", type=click.IntRange(min=2)),
            option("--max-batch-tokens", "Tokens computed in one step at most.", type=at_least_one),
        ]
    ):
        command = decorator(command)
    return command


def make_engine_options(settings: Mapping[str, Any], limits: Limits = Limits()) -> EngineOptions:
    """EngineOptions from the values of ``engine_options`` and of further flags named like its fields."""
    return EngineOptions(limits=limits, cache_dir=cache_path(), **settings)


def human_size(size: int) -> str:
    """A number of bytes for people: "98.4 MB"."""
    return filesize.decimal(size)
