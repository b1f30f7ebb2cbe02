"""How waiting looks: bars on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import signal
import threading

import pytest

from trioserve.cli.progress import FIRST_LINE_AFTER_S, NEXT_LINE_AFTER_S, ProgressDisplay, human_size
from trioserve.cli.signals import ending_soon

MB = 10**6


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trioserve.cli.progress.time.monotonic", clock)
    return clock


def test_what_is_done_soon_is_no_line_in_a_log_file(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress("opening", 0, 98 * MB)
        clock.now += FIRST_LINE_AFTER_S / 2
        progress("opening", 98 * MB, 98 * MB)
        progress("loading", 0, 500 * MB)
    assert capsys.readouterr() == ("", "")


def test_what_takes_long_is_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress("downloading", 0, 90 * MB)
        for second in range(1, 31):
            clock.now = float(second)
            progress("downloading", 3 * second * MB, 90 * MB)
    lines = capsys.readouterr().err.splitlines()
    seconds = [FIRST_LINE_AFTER_S + k * NEXT_LINE_AFTER_S for k in range(3)]
    assert lines == [f"downloading: {3 * second:.1f} MB of 90.0 MB" for second in seconds]


def test_what_may_last_for_ever_is_a_line_at_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress("waiting for another process", 0, None)
    assert capsys.readouterr().err == "waiting for another process\n"


def test_nothing_is_shown_after_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress("loading", 0, 500 * MB)
        progress.stop()
        clock.now = 100.0
        # a thread that was abandoned goes on reporting
        progress("loading", 100 * MB, 500 * MB)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_one_bar_at_a_time_and_keeps_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressDisplay() as progress:
        progress("downloading", 40 * MB, 90 * MB)
        progress("loading", 100 * MB, 500 * MB)
    out, shown = capsys.readouterr()
    assert out == ""
    assert "\x1b[?25l" in shown
    assert "100.0/500.0 MB" in shown
    # the last thing written shows the cursor again and erases one line: there was one bar
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_sizes_are_for_people() -> None:
    assert [human_size(size) for size in (7, 98_362_432)] == ["7 bytes", "98.4 MB"]


def test_clean_up_that_takes_too_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    over = threading.Event()

    def leave(code: int) -> None:
        exits.append(code)
        over.set()

    monkeypatch.setattr("trioserve.cli.signals.os._exit", leave)
    monkeypatch.setattr("trioserve.cli.signals.CLEANING_TIME_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        with ending_soon():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                # as the threads of huggingface_hub do
                over.wait(5)
    assert exits == [130]
