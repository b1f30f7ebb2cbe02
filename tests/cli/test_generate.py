"""``trioserve generate``: with a real tiny model, and with a fake engine that says what a test needs."""

from __future__ import annotations

import gc
import io
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trioserve.cli.commands import run
from trioserve.engine.options import EngineOptions
from trioserve.testing.device import Draw, Script
from trioserve.testing.engine import count_for_ever, open_fake_engine, say

if TYPE_CHECKING:
    from tests.cli.conftest import Call

SEED = 7


# ---- a real model


@pytest.fixture
def ask(call: Call, tiny: Path) -> Callable[..., str]:
    """What ``generate`` prints for a tiny model."""

    def ask(*arguments: object) -> str:
        ended = call("generate", "hello", "--model", tiny, "--threads", 1, "--seed", SEED, *arguments)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    return ask


def test_one_choice_in_a_pipe_is_its_text_and_a_line_feed(ask: Callable[..., str]) -> None:
    text = ask("--max-tokens", 12)
    assert len(text) > 1
    assert text.endswith("\n")
    assert str(SEED) not in text


def test_choices_in_a_pipe_stand_in_order_under_headings_with_their_seeds(ask: Callable[..., str]) -> None:
    text = ask("-n", 3, "--max-tokens", 12, "--ignore-eos")
    places = [text.index(f"[choice {j}: length, 12 tokens, seed {SEED + j}]\n") for j in range(3)]
    assert places == sorted(places)
    assert places[0] == 0


def test_a_choice_is_the_single_answer_to_its_seed(ask: Callable[..., str]) -> None:  # FAN-15
    several = ask("-n", 3, "--max-tokens", 12)
    alone = ask("--seed", SEED + 2, "--max-tokens", 12)
    assert several.endswith(f"seed {SEED + 2}]\n{alone}")


def test_the_best_of_more_candidates_can_be_asked_for(ask: Callable[..., str]) -> None:  # FAN-32
    ranked = ask("-n", 3, "--best-of", 8, "--max-tokens", 12, "--ignore-eos")
    seeds = [int(seed) for seed in re.findall(r"\[choice \d: length, 12 tokens, seed (\d+)\]", ranked)]
    assert len(seeds) == 3
    assert set(seeds) < set(range(SEED, SEED + 8))
    assert seeds != [SEED, SEED + 1, SEED + 2]
    best = ask("--seed", seeds[0], "--max-tokens", 12, "--ignore-eos")
    assert best == ask("--best-of", 8, "--max-tokens", 12, "--ignore-eos")


def test_sampling_flags_reach_the_model(ask: Callable[..., str]) -> None:
    greedy = ask("--max-tokens", 12, "--temperature", 0)
    assert greedy == ask("--max-tokens", 12, "--temperature", 0, "--seed", SEED + 1)
    assert greedy == ask("--max-tokens", 12, "--top-k", 1)
    assert greedy == ask("--max-tokens", 12, "--top-p", 0)
    assert greedy == ask("--max-tokens", 12, "--min-p", 1)
    assert greedy != ask("--max-tokens", 12)


def test_a_stop_text_ends_a_choice_and_is_not_in_it(ask: Callable[..., str]) -> None:
    whole = ask("--max-tokens", 12).removesuffix("\n")
    first, second = whole[3], whole[6]
    expected = whole[: min(whole.index(first), whole.index(second))]
    assert ask("--max-tokens", 12, "--stop", first, "--stop", second) == expected + "\n"


def test_a_raw_prompt_is_not_a_message(ask: Callable[..., str]) -> None:
    assert ask("--max-tokens", 12, "--raw") != ask("--max-tokens", 12)


def test_a_folder_is_served_like_a_file(ask: Callable[..., str], tiny_folder: Path) -> None:
    assert ask("--max-tokens", 12, "--model", tiny_folder) == ask("--max-tokens", 12)


def test_who_sits_at_the_machine_may_ask_for_more_choices_than_a_server_gives(ask: Callable[..., str]) -> None:
    assert ask("-n", 129, "--max-tokens", 0).count("[choice ") == 129


def test_the_model_can_be_named_in_the_environment(call: Call, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSERVE_MODEL", str(tiny))
    assert call("generate", "hello", "--threads", 1, "--max-tokens", 2).code == 0


def test_an_answer_is_what_a_schema_or_a_regular_expression_says(ask: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"enum": ["grün", {"x": 1}]}', encoding="utf-8")
    assert json.loads(ask("--schema", path)) in ("grün", {"x": 1})
    assert re.fullmatch("[ab]{3}\n", ask("--regex", "[ab]{3}"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--regex", "("], "--regex can't be enforced"),
        (["--regex", "a", "--stop", "x"], "--stop can't be given together with regex"),
        (["--regex", "a", "--schema", "-"], "can't be given together"),
        (["--schema", "/no/such/file"], "No such file"),
    ],
)
def test_a_structure_that_cant_be_is_refused_by_its_flag(
    call: Call, tiny: Path, arguments: list[str], words: str
) -> None:
    ended = call("generate", "hello", "--model", tiny, *arguments)
    assert ended.code != 0
    assert words in ended.err


# ---- a fake engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes ``generate`` open a fake engine that runs a script."""

    def use(script: Script) -> None:
        def open_engine(model: str, options: EngineOptions) -> Any:
            return open_fake_engine(script, step_seconds=0.0)[0]

        monkeypatch.setattr("trioserve.cli.generate.resolve", lambda *_, **__: None)
        monkeypatch.setattr("trioserve.cli.generate.open_engine", open_engine)

    return use


def test_ignore_eos_goes_on_to_the_last_token(engine: Callable[..., None], call: Call) -> None:
    engine(say("done"))
    assert call("generate", "hello", "--max-tokens", 9).out == "done\n"
    # the fake says nothing but ends from there on
    assert "[choice 0: length, 9 tokens" in call("generate", "x", "--max-tokens", 9, "--ignore-eos", "-n", 2).out


def test_in_a_pipe_the_text_is_as_the_model_wrote_it(engine: Callable[..., None], call: Call) -> None:
    engine(say("a\x1b[31mb\r\nc\n"))
    assert call("generate", "hello").out == "a\x1b[31mb\r\nc\n"


def test_text_comes_as_it_is_made(engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    seen: list[str] = []

    def script(draw: Draw) -> int:
        seen.append(written.getvalue())
        return say("abcdef")(draw)

    engine(script)
    assert run(["generate", "hello"]) == 0
    assert written.getvalue() == "abcdef\n"
    # a token is written by the time that the next but one is drawn
    assert [len(text) for text in seen[2:]] >= [1, 2, 3, 4]


@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_c_ends_with_130_and_keeps_what_there_is(n: int, engine: Callable[..., None], call: Call) -> None:
    def script(draw: Draw) -> int:
        if len(draw.generated) == 5:
            signal.raise_signal(signal.SIGINT)
        return count_for_ever(draw)

    engine(script)
    ended = call("generate", "hello", "-n", n, "--max-tokens", 50)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert "01" in ended.out or "12" in ended.out
    assert ended.out.endswith("\n")


def test_a_device_that_fails_ends_the_command_with_1_and_one_line(engine: Callable[..., None], call: Call) -> None:
    def script(draw: Draw) -> int:
        raise RuntimeError("out of memory\nsee above")

    engine(script)
    ended = call("generate", "hello")
    assert ended.code == 1
    assert "The device failed in step" in ended.err
    assert "RuntimeError: out of memory see above" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_a_bug_is_not_disguised(engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def divide(n: int) -> None:
        raise ZeroDivisionError

    engine(say("x"))
    monkeypatch.setattr("trioserve.cli.generate.choose_display", divide)
    with pytest.raises(ZeroDivisionError):
        run(["generate", "hello"])


class Full(io.StringIO):
    """A file that takes nothing more."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("error", "code"), [(BrokenPipeError(32, "Broken pipe"), 141), (OSError(28, "No space left"), 2)]
)
def test_an_output_that_cannot_be_written_ends_the_command(
    error: OSError,
    code: int,
    n: int,
    engine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine(count_for_ever)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Full(error))
        assert run(["generate", "hello", "-n", str(n), "--max-tokens", "40"]) == code
    # nobody reads a pipe any more: that is no news to whoever closed it
    assert capsys.readouterr().err == ("" if code == 141 else "trioserve: No space left\n")


def test_what_is_loaded_is_left_alone_by_the_garbage_collector(engine: Callable[..., None], call: Call) -> None:
    engine(say("red"))
    assert gc.get_freeze_count() == 0
    assert call("generate", "hello").code == 0
    assert gc.get_freeze_count() > 10_000
