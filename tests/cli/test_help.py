"""What the help says, and that it is all there."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import attrs
import click
import pytest

from trioserve.cli.commands import LATE_COMMANDS, commands
from trioserve.cli.generate import generate
from trioserve.cli.models import models
from trioserve.cli.options import Option
from trioserve.cli.serve import serve
from trioserve.engine.options import EngineOptions
from trioserve.params import Limits, SamplingParams
from trioserve.version import __version__
from trioserve.web.options import ServeOptions

if TYPE_CHECKING:
    from tests.cli.conftest import Call


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((120, 40)))


def test_the_command_alone_prints_its_help(call: Call) -> None:
    ended = call()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == call("--help").out
    assert all(f"\n  {name} " in ended.out for name in ("serve", "generate", "models"))


def test_a_group_alone_prints_its_help(call: Call) -> None:
    ended = call("models")
    assert (ended.code, ended.err) == (0, "")
    assert all(f"\n  {name} " in ended.out for name in ("list", "pull", "show", "rm"))
    assert "TRIOSERVE_CACHE" in ended.out


@pytest.mark.parametrize("name", LATE_COMMANDS)
def test_a_command_that_is_listed_can_be_loaded(name: str, call: Call) -> None:
    late = LATE_COMMANDS[name]
    assert late.load(name).name == name
    assert f"\n  {name:<10}{late.help}\n" in call("--help").out


def test_ctrl_c_while_a_command_is_imported_ends_it_with_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trioserve.cli.commands.import_module", interrupted)
    ended = call("serve")
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", "")


def test_the_version_is_that_of_the_package(call: Call) -> None:
    assert __version__ in call("--version").out


@pytest.mark.parametrize("command", [serve, generate, models, commands], ids=lambda command: str(command.name))
def test_every_option_is_explained_in_one_or_two_sentences(command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert re.fullmatch(r"[^.]+\.( [^.]+\.)?", parameter.help.replace(".gguf", "gguf")), parameter.help


@pytest.mark.parametrize("command", [serve, generate], ids=lambda command: str(command.name))
def test_an_option_that_can_be_in_the_environment_has_the_flags_own_name_there(command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, Option) and parameter.envvar is not None:
            flag = max(parameter.opts, key=len)
            assert parameter.envvar == "TRIOSERVE_" + flag.removeprefix("--").replace("-", "_").upper()
            assert parameter.show_envvar


def test_serve_shows_sections_variables_and_defaults(call: Call) -> None:
    shown = re.sub(r"\s+", " ", call("serve", "--help").out)
    for heading in ("Address:", "Limits of a request:", "Connections:", "Engine:", "Other:"):
        assert f" {heading} " in shown
    assert "--port PORT Port; 0 takes a free one. [env var: TRIOSERVE_PORT; default: 8000]" in shown
    assert "[env var: TRIOSERVE_MAX_N; default: 128]" in shown  # FAN-2
    assert "[env var: TRIOSERVE_GREEDY_N; default: reject]" in shown  # FAN-6
    assert "--slow-reader-timeout SECONDS" in shown  # FAN-29
    assert "-h, --help" in shown


@pytest.mark.parametrize("cls", [ServeOptions, Limits, EngineOptions], ids=lambda cls: cls.__name__)
def test_an_option_left_alone_is_the_default_of_what_it_sets(cls: type[attrs.AttrsInstance]) -> None:
    set_by_serve = {parameter.name: parameter for parameter in serve.params}
    fields = [field for field in attrs.fields(cls) if field.name in set_by_serve]
    assert fields
    for field in fields:
        # None: the command works it out from another option
        assert set_by_serve[field.name].default in {field.default, None}, field.name


def test_generate_has_a_flag_for_every_plain_sampling_parameter() -> None:
    structured = {"choice_params", "stop_when", "choice_errors", "logit_bias", "structure"}
    # of the request's place among others, or of an answer that is more than its text
    structured |= {"logprobs", "prompt_logprobs", "priority", "cache_salt"}
    fields = {field.name for field in attrs.fields(SamplingParams)}
    assert structured <= fields
    assert fields - structured <= {parameter.name for parameter in generate.params}
