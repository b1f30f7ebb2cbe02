"""The command in this process: run(), with an environment, a cache and a log of its own."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import structlog

from trioserve.cli.commands import run
from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf, write_tiny_llama

TINY = TinyLlama(seed=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an environment without settings of our own."""
    for name in list(os.environ):
        if name.startswith("TRIOSERVE_"):
            monkeypatch.delenv(name)
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRIOSERVE_CACHE", str(cache))
    return cache


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test fetches anything: what is refused is refused before."""

    def fetch(*arguments: object) -> None:
        raise AssertionError("it was going to fetch a model")

    monkeypatch.setattr("trioserve.model.aliases._download_wheel", fetch)
    monkeypatch.setattr("trioserve.model.sources.download_repo", fetch)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """What a command does to the log of the process ends with the test."""
    root, ours = logging.getLogger(), logging.getLogger("trioserve")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def own_garbage() -> Iterator[None]:
    """What a command keeps from the garbage collector is given back."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a model of random weights; its context has 256 tokens."""
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", TINY)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a folder."""
    return write_tiny_llama(tmp_path_factory.mktemp("folder") / "tiny", TINY)


@attrs.frozen
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """What it said, if it was refused as it should be: with one line on standard error, and nothing else."""
        assert self.code == 2, self
        return self.line

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("trioserve: ")
        return line.removeprefix("trioserve: ")


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command in this process: call("generate", "hello", "-n", 2)."""

    def call(*arguments: object) -> Ended:
        code = run([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return call
