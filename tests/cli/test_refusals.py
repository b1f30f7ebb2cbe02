"""Whatever can't be carried out is refused with exit code 2 and one line, before anything is done."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trioserve.errors import ParamError
from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf
from trioserve.web.listeners import Listeners
from trioserve.web.options import ServeOptions

if TYPE_CHECKING:
    from tests.cli.conftest import Call


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bogus", "No such command 'bogus'."),
        ("generate", "Missing argument 'PROMPT'."),
        ("generate hello world", "unexpected extra argument (world)"),
        ("serve --nonsense", "--nonsense"),
        ("serve --port http", "Invalid value for '--port'"),
        ("serve --port 99999", "--port must be between 0 and 65535, got 99999."),
        ("serve --max-n 0", "--max-n must be between 1 and 16384, got 0."),
        ("serve --max-n 16385", "--max-n must be between 1 and 16384, got 16385."),
        ("serve --max-choices 0", "--max-choices must be at least 1, got 0."),
        ("serve --max-queued 0", "--max-queued must be at least 1, got 0."),
        ("serve --max-overtaken inf", "--max-overtaken must be a finite number, 0 or more, got inf."),
        ("serve --greedy-n maybe", "'--greedy-n'"),
        ("serve --threads 0", "--threads must be between 1 and 1024, got 0."),
        ("serve --threads 1000000", "--threads must be between 1 and 1024, got 1000000."),
        ("serve --graceful-timeout nan", "--graceful-timeout must not be negative, got nan."),
        ("serve --slow-reader-timeout 0", "--slow-reader-timeout"),
        ("generate x --device abacus", "'--device'"),
        ("serve --kv-type int4", "'--kv-type'"),
        ("generate x -n 0", "-n must be at least 1, got 0."),
        ("generate x -n 16385", "-n must be at most 16384, got 16385."),
        ("generate x -n 2 --temperature 0", "-n must be 1 when using greedy sampling, got 2."),
        ("generate x --max-tokens -1", "--max-tokens must be at least 0, got -1."),
        ("generate x --temperature 2.5", "--temperature must be between 0 and 2, got 2.5."),
        ("generate x --top-p nan", "--top-p must be between 0 and 1, got nan."),
        ("generate x --top-k -2", "--top-k must be at least -1, got -2."),
        ("generate x --min-p 7", "--min-p must be between 0 and 1, got 7.0."),
        ("generate x --seed 9223372036854775808", "--seed must be at most 9223372036854775807"),
        ("generate x --stop=", "--stop: A stop string has 1 to 1024 characters, got 0."),
        ("models show nope", "unknown model 'nope'"),
        ("models pull nope", "'nope' is nothing that can be fetched"),
        ("models rm nope", "'nope' is not in the cache"),
        ("models rm ../../etc", "'../../etc' is no name of a model in the cache"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_what_is_wrong(arguments: str, said: str, call: Call) -> None:
    assert said in call(*arguments.split(" ")).refusal


@pytest.mark.parametrize("value", ["many", "0", "16385", "1.5"])
def test_a_bad_max_n_in_the_environment_fails_the_start(
    value: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:  # FAN-2
    monkeypatch.setenv("TRIOSERVE_MAX_N", value)
    line = call("serve").refusal
    assert "TRIOSERVE_MAX_N" in line
    assert value in line


def test_an_error_names_the_flag_if_that_was_given_besides_the_environment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOSERVE_MAX_N", "4")
    assert call("serve", "--max-n", 0).refusal == "--max-n must be between 1 and 16384, got 0."


@pytest.mark.parametrize("name", ["TRIOSERVE_THREADS", "TRIOSERVE_CONTEXT_LENGTH", "TRIOSERVE_KV_TOKENS"])
def test_generate_reads_the_options_of_the_engine_from_the_environment_too(
    name: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    assert name in call("generate", "hello").refusal


# ---- model files


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _hostile_count(path: Path) -> None:
    # 2**62 tensors
    data = bytearray(path.read_bytes())
    data[8:16] = (2**62).to_bytes(8, "little")
    path.write_bytes(data)


def _text(path: Path) -> None:
    path.write_text("hello\n" * 100)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _gone(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other_architecture(path: Path) -> None:
    write_tiny_gguf(path, metadata={"general.architecture": "mamba"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_truncated, "is truncated"),
        (_header_only, "is truncated or broken"),
        (_hostile_count, "tensors"),
        (_text, "is not a GGUF file"),
        (_empty, "is empty"),
        (_gone, "there is no such file"),
        (_folder, "has no config.json"),
        (_other_architecture, "architecture 'mamba' is not supported"),
    ],
)
@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["generate", "hello", "--model"]], ids=["serve", "generate"]
)
def test_a_broken_model_is_one_line_that_names_it(
    spoil: Callable[[Path], None], said: str, command: list[str], tmp_path: Path, call: Call
) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", TinyLlama(layers=1))
    spoil(path)
    line = call(*command, path).refusal
    assert str(path) in line
    assert said in line


@pytest.mark.parametrize("spoil", [_truncated, _text, _gone])
def test_a_broken_model_can_be_looked_at_no_more_than_run(
    spoil: Callable[[Path], None], tmp_path: Path, call: Call
) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", TinyLlama(layers=1))
    spoil(path)
    assert str(path) in call("models", "show", path).refusal


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["generate", "hello", "--model"]], ids=["serve", "generate"]
)
def test_a_context_longer_than_the_models_is_refused_by_the_name_of_the_flag(
    command: list[str], tiny: Path, call: Call
) -> None:
    line = call(*command, tiny, "--context-length", 257).refusal
    assert line == "--context-length must be at most 256 for this model, got 257."


def test_a_prompt_that_does_not_fit_is_one_line(tiny: Path, call: Call) -> None:
    line = call("generate", "word " * 300, "--model", tiny, "--threads", 1).refusal
    assert "maximum context length is 256 tokens" in line


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["generate", "hello", "--model"]], ids=["serve", "generate"]
)
@pytest.mark.parametrize("tokens", [10**12, 10**30])
def test_more_kv_tokens_than_memory_are_refused_by_the_name_of_the_flag(
    command: list[str], tokens: int, tiny: Path, call: Call
) -> None:
    line = call(*command, tiny, "--kv-tokens", tokens).refusal
    assert line.startswith(f"--kv-tokens is too large: the keys and values of {tokens} tokens take ")


# ---- the cache


@pytest.fixture
def cache_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "file"
    path.write_text("not a folder")
    monkeypatch.setenv("TRIOSERVE_CACHE", str(path))
    return path


@pytest.mark.parametrize("command", ["serve --port 0", "generate hello", "models pull smollm2", "models rm smollm2"])
def test_a_cache_that_cannot_be_written_is_one_line(command: str, cache_is_a_file: Path, call: Call) -> None:
    assert call(*command.split()).refusal.startswith(f"{cache_is_a_file}: can't be written")


def test_a_cache_that_cannot_be_read_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    path = own_cache / "models" / "smollm2"
    line = call("models", "show", "smollm2").refusal
    assert line == f"{own_cache}: can't be read: [Errno 13] Permission denied: '{path}'"


def test_a_cache_that_cannot_be_listed_is_one_line(call: Call, own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "models").write_text("not a folder")
    assert call("models", "list").refusal.startswith(f"{own_cache}: can't be read: ")


# ---- the address


def test_a_taken_port_is_found_out_before_the_model_is_looked_for(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            call("serve", "nope", "--port", port).refusal == f"can't listen on 127.0.0.1:{port}: Address already in use"
        )


@pytest.mark.parametrize(
    ("host", "said"),
    [("a" * 300, "label too long"), ("192.0.2.1", "Cannot assign requested address")],
)
def test_a_host_that_cannot_be_listened_on_is_one_line(host: str, said: str, call: Call) -> None:
    line = call("serve", "--host", host, "--port", 8000).refusal
    assert line.startswith("can't listen on ")
    assert said in line


def test_a_host_that_nobody_knows_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_nobody(*arguments: object, **settings: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", ask_nobody)
    assert call("serve", "--host", "far").refusal == "can't listen on far:8000: Name or service not known"


def test_a_port_that_is_not_allowed_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(options: ServeOptions) -> Listeners:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # whether ports below 1024 are allowed depends on the machine
    monkeypatch.setattr("trioserve.cli.serve.bind", bind)
    assert call("serve", "--port", 80).refusal == "can't listen on 127.0.0.1:80: Permission denied"


@pytest.mark.parametrize(
    ("name", "said"), [("no-such-folder/socket", "No such file or directory"), ("s" * 300, "too long")]
)
def test_a_unix_socket_that_cannot_be_made_is_one_line(name: str, said: str, tmp_path: Path, call: Call) -> None:
    line = call("serve", "--unix-socket", tmp_path / name).refusal
    assert str(tmp_path) in line
    assert said in line


# ---- what an error may hold


def test_an_error_is_one_line_without_control_characters_whatever_is_in_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise ParamError("two\nlines and \x1b[31mred", None)

    monkeypatch.setattr("trioserve.cli.generate.resolve", refuse)
    assert call("generate", "hello").refusal == "two lines and \\x1b[31mred"
