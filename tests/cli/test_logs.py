"""The log: one look for all, one line for each event."""

from __future__ import annotations

import logging
import re

import pytest
import structlog

from trioserve.cli.logs import configure_logs

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[(\w+) *\] (.*)")


def lines(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Level and text of the lines in the log, with runs of spaces as one."""
    out, err = capsys.readouterr()
    assert out == ""
    found = []
    for line in err.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        found.append((match[1], " ".join(match[2].split())))
    return found


def test_structlog_and_logging_look_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(verbose=False)
    structlog.get_logger("trioserve.serve").warning("watch out", limit=3)
    logging.getLogger("trioserve.web.server").warning("can't accept %s", "more")
    assert lines(capsys) == [("warning", "watch out limit=3"), ("warning", "can't accept more")]


def test_a_request_stands_under_its_method_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(verbose=False)
    log = structlog.get_logger("trioserve.access")
    log.info("request", method="POST", path="/v1/completions", status=200, bytes=12, seconds=0.5, client="[::1]:51234")
    log.info("request", method=None, path=None, status=400, bytes=1, seconds=0.0, client="unix")
    assert lines(capsys) == [
        ("info", "POST /v1/completions status=200 bytes=12 seconds=0.5 client=[::1]:51234"),
        ("info", "- - status=400 bytes=1 seconds=0.0 client=unix"),
    ]


def test_what_a_client_wrote_cannot_forge_a_line_or_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(verbose=False)
    path = "/x\n2026-01-01 00:00:00 [info     ] forged\x1b[2J"
    structlog.get_logger("trioserve.access").info("request", method="GET", path=path, status=404)
    logging.getLogger("trioserve.web.app").error("GET %s failed", path)
    escaped = "/x\\x0a2026-01-01 00:00:00 [info ] forged\\x1b[2J"
    assert lines(capsys) == [("info", f"GET {escaped} status=404"), ("error", f"GET {escaped} failed")]


@pytest.mark.parametrize(
    ("verbose", "heard"),
    [
        (False, ["info of trioserve", "warning of a library"]),
        (True, ["debug of trioserve", "info of trioserve", "info of a library", "warning of a library"]),
    ],
)
def test_verbose_is_more_of_trioserve_and_of_its_libraries(
    verbose: bool, heard: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs(verbose=verbose)
    ours, library = structlog.get_logger("trioserve.engine"), logging.getLogger("some.library")
    ours.debug("debug of trioserve")
    ours.info("info of trioserve")
    library.debug("debug of a library")
    library.info("info of a library")
    library.warning("warning of a library")
    assert [text for _, text in lines(capsys)] == heard


def test_a_bug_has_a_plain_traceback_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(verbose=False)
    prompt = "what a user wrote"
    try:
        raise KeyError(len(prompt))
    except KeyError as error:
        logging.getLogger("trioserve.web.app").error("POST /v1/completions failed", exc_info=error)
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last):" in shown
    assert "KeyError: 17" in shown
    assert shown.count(prompt) == 0
    assert "╭" not in shown


def test_a_log_that_nobody_reads_any_more_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stderr", Closed())
    configure_logs(verbose=False)
    structlog.get_logger("trioserve.serve").info("loaded")


def test_configuring_twice_does_not_log_twice(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(verbose=False)
    configure_logs(verbose=False)
    logging.getLogger("trioserve.web.app").error("once")
    assert len(lines(capsys)) == 1
