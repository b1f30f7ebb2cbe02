"""Keys, certificates and logs, as the command line has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trioserve.cli.operations import read_api_keys
from trioserve.errors import ParamError

if TYPE_CHECKING:
    from tests.cli.conftest import Call


def admits(keys: object, key: bytes) -> bool:
    return bool(keys.admit([(b"x-api-key", key)]))  # type: ignore[attr-defined]


def test_keys_come_from_flags_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"# of the team\n  third \r\n\nfour\xe9th\n")
    keys = read_api_keys(["first", "second"], file)
    assert all(admits(keys, key) for key in (b"first", b"second", b"third", b"four\xe9th"))
    assert not any(admits(keys, key) for key in (b"", b"#", b"# of the team", b"fourth"))


def test_without_any_everybody_may_ask() -> None:
    assert read_api_keys([], None) is None


@pytest.mark.parametrize("content", ["", "\n", "# nothing yet\n"])
def test_a_file_without_keys_does_not_open_the_server(content: str, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ParamError):
        read_api_keys([], file)
    assert call("serve", "--api-key-file", file).refusal == f"--api-key-file: {file} has no key in it."


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "keys"
    assert call("serve", "--api-key-file", file).refusal == f"{file}: No such file or directory"


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_does_not_open_the_server(value: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSERVE_API_KEY", value)
    assert call("serve").refusal == "TRIOSERVE_API_KEY is there, but has no key in it."


@pytest.mark.parametrize("arguments", [["--api-key", ""], ["--api-key", "good", "--api-key", "my secret"]])
def test_a_bad_key_is_refused_without_telling_it(arguments: list[str], call: Call) -> None:
    line = call("serve", *arguments).refusal
    assert line.startswith("--api-key: A key has one character or more")
    assert "secret" not in line
    assert "good" not in line


def test_traces_without_opentelemetry_say_what_to_install(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    # what the import system makes of a module that is not there
    monkeypatch.delitem(sys.modules, "trioserve.web.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    line = call("serve", "--port", 0, "--otel-endpoint", "http://localhost:4318").refusal
    assert line.startswith("--otel-endpoint: ")
    assert 'pip install "trioserve[otel]"' in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--otel-endpoint localhost:4318", "--otel-endpoint must be an address"),
        ("--cors-origin example.org", "--cors-origin: An origin is"),
        ("--root-path llm", "--root-path must be a path"),
        ("--request-timeout 0", "--request-timeout must be more than 0 seconds, got 0.0."),
        ("--unix-socket-mode 999", "'999' is no mode such as 660."),
        ("--unix-socket-mode 660", "--unix-socket-mode is of no use without a unix socket."),
        ("--tls-cert nope.pem", "--tls-cert: nope.pem: No such file or directory"),
        ("--tls-key key.pem", "--tls-key is of no use without a certificate."),
        ("--verbose --log-level error", "--verbose is a log level of debug, and --log-level says error."),
        ("--log-format xml", "'--log-format'"),
    ],
)
def test_what_does_not_go_together_or_is_no_value_is_refused(arguments: str, said: str, call: Call) -> None:
    assert said in call("serve", "--port", 0, *arguments.split()).refusal
