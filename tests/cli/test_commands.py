"""The command as a person meets it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with a model of random weights."""
    return write_tiny_llama(tmp_path / "tiny", TINY)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "nope"], "unknown model 'nope'"),
        (["serve", "missing.gguf"], "missing.gguf"),
        (["serve", "--port", "99999"], "--port"),
        (["serve", "--max-n", "0"], "--max-n"),
        (["serve", "--nonsense"], "--nonsense"),
        (["generate", "x", "--top-p", "7"], "--top-p"),
        (["generate", "x", "-n", "0"], "n must be at least 1"),
        (["models", "rm", "nope"], "'nope' is not in the cache"),
        (["models", "pull", "nope"], "nothing that can be fetched"),
        (["models", "show", "nope"], "unknown model 'nope'"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("trioserve: ")
    assert said in line


def test_a_bad_value_in_the_environment_fails_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # FAN-2
    monkeypatch.setenv("TRIOSERVE_MAX_N", "many")
    assert run(["serve"]) == 2
    assert "TRIOSERVE_MAX_N" in capsys.readouterr().err


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def no_gguf(path: Path) -> None:
    path.write_text("hello")


@pytest.mark.parametrize("spoil", [truncated, no_gguf])
@pytest.mark.parametrize("command", [["serve"], ["generate", "x", "-m"], ["models", "show"]])
def test_a_broken_model_file_is_one_line(
    spoil: Callable[[Path], None], command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TINY)
    spoil(path)
    extra = ["--port", "0"] if command == ["serve"] else []
    assert run([*command, str(path), *extra]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trioserve: ")]
    assert len(errors) == 1
    assert str(path) in errors[0]


def test_a_taken_port_is_found_out_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "nope", "--port", str(taken.getsockname()[1])]) == 2
    assert "can't listen on 127.0.0.1" in capsys.readouterr().err


def test_generate_prints_every_choice_and_the_same_for_the_same_seed(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "-m", str(tiny), "-n", "3", "--seed", "5", "--max-tokens", "6"]
    outputs = []
    for _ in range(2):
        assert run(arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    for index in range(3):
        assert f"choice {index}" in outputs[0]
        assert f"seed {5 + index}" in outputs[0]


def test_models_lists_what_is_here_and_what_can_be_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list"]) == 0
    assert "smollm2" in capsys.readouterr().out


def test_models_show_describes_a_file(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "show", str(tiny)]) == 0
    shown = capsys.readouterr().out
    assert "safetensors" in shown
    assert "chat template" in shown


def test_help_names_every_command_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    commands = capsys.readouterr().out
    assert all(name in commands for name in ("serve", "generate", "models"))
    assert run(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("TRIOSERVE_PORT", "TRIOSERVE_MAX_N", "--max-queue", "--greedy-n"):
        assert name in shown


@pytest.fixture
def server(tiny: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real ``trioserve serve`` of a tiny model, and its address."""
    command = [sys.executable, "-m", "trioserve", "serve", str(tiny), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    address = ""
    try:
        for line in process.stdout:
            if "curl" in line:
                address = "http://" + line.split("http://")[1].split("/")[0]
                break
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_cleanly(server: tuple[subprocess.Popen[str], str], number: signal.Signals) -> None:
    process, address = server
    body = {"model": "tiny", "prompt": "hi", "n": 2, "max_tokens": 3}
    with urllib.request.urlopen(f"{address}/v1/completions", data=json.dumps(body).encode()) as response:
        assert len(json.load(response)["choices"]) == 2
    process.send_signal(number)
    assert process.wait(timeout=10) == 0
    assert process.stderr is not None
    log = process.stderr.read()
    assert "Traceback" not in log
    assert "POST /v1/completions" in log
