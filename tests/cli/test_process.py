"""The command as a process of its own: signals, pipes and exit codes as a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from types import ModuleType
from typing import cast

import openai
import pytest
import trustme

from trioserve.cli import main
from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf

Process = subprocess.Popen[str]
Spawn = Callable[..., Process]


@pytest.fixture(scope="module")
def long_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers can take longer than any test."""
    return write_tiny_gguf(tmp_path_factory.mktemp("long") / "tiny.gguf", TinyLlama(seed=1, context_length=8192))


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts the command; it is killed if it outlives the test."""
    processes: list[Process] = []

    def spawn(*arguments: object) -> Process:
        # not a pipe: a log that nobody reads could block
        with (tmp_path / "stderr").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "trioserve", *map(str, arguments)], stdout=subprocess.PIPE, stderr=err, text=True
            )
        processes.append(process)
        return process

    yield spawn
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def errors(tmp_path: Path) -> Callable[[], str]:
    """What the command has written on standard error."""
    return (tmp_path / "stderr").read_text


def address_of(server: Process) -> str:
    """Where the server serves, once it says so."""
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("Serving "):
            return line.split(" on ")[1].split()[0]
    raise AssertionError("it ended before it served")


def stream(address: str, max_tokens: int) -> HTTPResponse:
    """A stream of two choices that has begun."""
    body = {"model": "tiny", "prompt": "go", "n": 2, "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
    response = cast(HTTPResponse, urllib.request.urlopen(f"{address}/v1/completions", data=json.dumps(body).encode()))
    assert response.readline().startswith(b"data: ")
    return response


def test_ctrl_c_ends_a_server_and_its_streams_within_a_second(
    spawn: Spawn, errors: Callable[[], str], long_tiny: Path
) -> None:  # FAN-28
    server = spawn("serve", long_tiny, "--port", 0, "--threads", 1)
    with stream(address_of(server), max_tokens=8000) as response:
        began = time.monotonic()
        server.send_signal(signal.SIGINT)
        rest = response.read()
        assert server.wait(timeout=10) == 0
        # half a second of grace, the end of a step and of the process; a busy machine may take twice as long
        assert time.monotonic() - began < 2
    assert b'"code":"server_stopping"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert "POST /v1/completions" in errors()
    assert "Traceback" not in errors()


def test_a_server_for_others_as_a_file_sets_it_up(
    spawn: Spawn, errors: Callable[[], str], long_tiny: Path, tmp_path: Path
) -> None:
    ca = trustme.CA()
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    (tmp_path / "keys").write_text("secret\n")
    config = tmp_path / "trioserve.toml"
    config.write_text(
        f"""
        model = "{long_tiny}"
        port = 0
        threads = 1
        tls-cert = "{tmp_path}/cert.pem"
        api-key-file = "{tmp_path}/keys"
        request-timeout = 0.5
        log-format = "json"
        """
    )
    server = spawn("serve", "--config", config)
    address = address_of(server)
    assert address.startswith("https://")
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    with openai.OpenAI(
        base_url=f"{address}/v1",
        api_key="secret",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trusting),
    ) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.AuthenticationError) as refused:
            client.with_options(api_key="guess").models.list()
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.APIStatusError) as late:
            client.completions.create(model="tiny", prompt="go", n=2, max_tokens=8000, extra_body={"ignore_eos": True})
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=10) == 0
    log = [json.loads(line) for line in errors().splitlines()]
    # each when its exchange has ended, which may be after its client has gone on
    assert sorted(line["status"] for line in log if line["logger"] == "trioserve.access") == [200, 401, 504]
    assert "secret" not in errors()
    assert "guess" not in errors()


def test_ctrl_c_ends_generate_with_130(spawn: Spawn, errors: Callable[[], str], long_tiny: Path) -> None:
    command = spawn("generate", "go", "-m", long_tiny, "--threads", 1, "--max-tokens", 8000, "--ignore-eos")
    assert command.stdout is not None
    assert command.stdout.read(1)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=10) == 130
    assert errors().strip() == ""


def test_a_pipe_that_nobody_reads_any_more_ends_generate_without_a_word(
    spawn: Spawn, errors: Callable[[], str], long_tiny: Path
) -> None:
    command = spawn("generate", "go", "-m", long_tiny, "--threads", 1, "--max-tokens", 8000, "--ignore-eos")
    assert command.stdout is not None
    os.read(command.stdout.fileno(), 1)
    command.stdout.close()
    assert command.wait(timeout=10) == 128 + signal.SIGPIPE
    assert errors() == ""


def test_a_thread_that_was_left_does_not_keep_the_process() -> None:
    program = (
        "import threading, time; threading.Thread(target=time.sleep, args=[60]).start();"
        "from trioserve.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, timeout=10, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(b"trioserve, version ")


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    codes: list[int] = []
    monkeypatch.setitem(sys.modules, "trioserve.cli.commands", Importing("trioserve.cli.commands"))
    monkeypatch.setattr("trioserve.cli.os._exit", codes.append)
    main()
    assert codes == [130]
