"""The configuration file: flags written down."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from trioserve.cli.commands import run
from trioserve.cli.serve import serve

if TYPE_CHECKING:
    from tests.cli.conftest import Call

Read = Callable[..., dict[str, Any]]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """What ``trioserve serve`` makes of a configuration file and flags: its parameters by name."""

    def read(text: str, *arguments: object, by_variable: bool = False) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        monkeypatch.setattr(serve, "callback", lambda **settings: found.append(settings))
        path = write(tmp_path, text)
        if by_variable:
            monkeypatch.setenv("TRIOSERVE_CONFIG", str(path))
        else:
            arguments = (*arguments, "--config", path)
        assert run(["serve", *map(str, arguments)]) == 0
        return found[0]

    return read


def write(folder: Path, text: str) -> Path:
    path = folder / "trioserve.toml"
    path.write_text(text, encoding="utf-8")
    return path


EVERYTHING = """
# a model, and a value of each kind
model = "some.gguf"
host = "::1"
port = 9000
unix-socket-mode = "660"
max-n = 7
greedy-n = "replicate"
keep-alive-timeout = 5
request-timeout = 2.5
graceful-timeout = 0.0
slow-reader-timeout = inf
prefix-cache = false
prompt-lookup = true
verbose = true
"api-key" = ["a", "b"]
cors-origin = "https://example.org"
tls-cert = "cert.pem"
"""


@pytest.mark.parametrize("by_variable", [False, True])
def test_every_kind_of_value_is_that_of_its_flag(read: Read, by_variable: bool) -> None:
    flags = read(
        "",
        *("some.gguf", "--host", "::1", "--port", 9000, "--unix-socket-mode", 660, "--max-n", 7, "--verbose"),
        *("--greedy-n", "replicate", "--keep-alive-timeout", 5, "--request-timeout", 2.5, "--graceful-timeout", 0),
        *("--slow-reader-timeout", "inf", "--no-prefix-cache", "--prompt-lookup", "--api-key", "a", "--api-key", "b"),
        *("--cors-origin", "https://example.org", "--tls-cert", "cert.pem"),
    )
    assert read(EVERYTHING, by_variable=by_variable) == flags


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'max-n = 2\nmodel = "file"\napi-key = "file"\nprefix-cache = false'
    assert [read("")[name] for name in ("max_n", "model", "api_key", "prefix_cache")] == [128, "smollm2", (), True]
    assert [read(text)[name] for name in ("max_n", "model", "api_key", "prefix_cache")] == [2, "file", ("file",), False]
    monkeypatch.setenv("TRIOSERVE_MAX_N", "3")
    monkeypatch.setenv("TRIOSERVE_MODEL", "variable")
    monkeypatch.setenv("TRIOSERVE_API_KEY", "one two")
    monkeypatch.setenv("TRIOSERVE_PREFIX_CACHE", "true")
    by_variable = read(text)
    assert (by_variable["max_n"], by_variable["model"]) == (3, "variable")
    assert (by_variable["api_key"], by_variable["prefix_cache"]) == (("one", "two"), True)
    by_flag = read(text, "flag", "--max-n", 4, "--api-key", "flag", "--no-prefix-cache")
    assert (by_flag["max_n"], by_flag["model"]) == (4, "flag")
    assert (by_flag["api_key"], by_flag["prefix_cache"]) == (("flag",), False)


def test_every_flag_of_serve_has_a_key_and_a_variable() -> None:
    for parameter in serve.params:
        assert parameter.envvar == f"TRIOSERVE_{re.sub('-', '_', longest(parameter)).upper()}", parameter.name


def longest(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len).removeprefix("--")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 8000\nmax_n = 3", "max_n ({path}, line 2) is no option of serve; did you mean max-n?"),
        ("\n\nunheard-of = 3", "unheard-of ({path}, line 3) is no option of serve."),
        ("[serve]\nport = 8000", "serve ({path}, line 1) is no option of serve"),
        ('config = "x"', "config ({path}, line 1) is no option of serve"),
        ("help = true", "help ({path}, line 1) is no option of serve"),
        ("port = 99999", "port ({path}, line 1) must be between 0 and 65535, got 99999."),
        ('port = "http"', "Invalid value for 'port ({path}, line 1)': 'http' is not a valid integer."),
        ("\nport = 8000.5", "Invalid value for 'port ({path}, line 2)': '8000.5' is not a valid integer."),
        ("port = true", "port ({path}, line 1) must be a string or a number."),
        ("port = [1]", "port ({path}, line 1) must be a string or a number."),
        ("port.number = 1", "port ({path}, line 1) must be a string or a number."),
        ("port = 2026-01-01", "port ({path}, line 1) must be a string or a number."),
        ("verbose = 1", "verbose ({path}, line 1) must be true or false."),
        ('prefix-cache = "no"', "prefix-cache ({path}, line 1) must be true or false."),
        ("api-key = [true]", "api-key ({path}, line 1) must be a string or a number."),
        ("unix-socket-mode = 0o660", 'unix-socket-mode ({path}, line 1) must be a string, such as "660".'),
        ('greedy-n = "maybe"', "Invalid value for 'greedy-n ({path}, line 1)'"),
        ("port = ", "--config: {path} is no TOML file: Invalid value (at end of document)"),
        ("max-n = 1\nmax-n = 2", "--config: {path} is no TOML file: Cannot overwrite a value"),
    ],
)
def test_what_no_flag_could_be_is_refused_with_its_place(text: str, said: str, tmp_path: Path, call: Call) -> None:
    path = write(tmp_path, text)
    assert said.format(path=path) in call("serve", "--config", path).refusal


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "trioserve.toml"
    assert call("serve", "--config", path).refusal == f"--config: {path}: No such file or directory"
    path.write_bytes(b"\xff")
    assert f"--config: {path} is no TOML file" in call("serve", "--config", path).refusal
    assert call("serve", "--config", tmp_path).refusal == f"--config: {tmp_path}: Is a directory"
