"""The log: one look for all, one line for each event."""

from __future__ import annotations

import json
import logging
import re
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

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
    configure_logs()
    structlog.get_logger("trioserve.serve").warning("watch out", limit=3)
    logging.getLogger("trioserve.web.server").warning("can't accept %s", "more")
    assert lines(capsys) == [("warning", "watch out limit=3"), ("warning", "can't accept more")]


def test_a_request_stands_under_its_method_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    log = structlog.get_logger("trioserve.access")
    log.info("request", method="POST", path="/v1/completions", status=200, bytes=12, ms=0.5, client="[::1]:51234")
    log.info("request", method=None, path=None, status=400, bytes=1, ms=0.0, client="unix")
    assert lines(capsys) == [
        ("info", "POST /v1/completions status=200 bytes=12 ms=0.5 client=[::1]:51234"),
        ("info", "- - status=400 bytes=1 ms=0.0 client=unix"),
    ]


def test_what_a_client_wrote_cannot_forge_a_line_or_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    path = "/x\n2026-01-01 00:00:00 [info     ] forged\x1b[2J"
    structlog.get_logger("trioserve.access").info("request", method="GET", path=path, status=404)
    logging.getLogger("trioserve.web.app").error("GET %s failed", path)
    escaped = "/x\\x0a2026-01-01 00:00:00 [info ] forged\\x1b[2J"
    assert lines(capsys) == [("info", f"GET {escaped} status=404"), ("error", f"GET {escaped} failed")]


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("error", []),
        ("warning", ["warning of a library"]),
        ("info", ["info of trioserve", "warning of a library"]),
        ("debug", ["debug of trioserve", "info of trioserve", "info of a library", "warning of a library"]),
    ],
)
def test_a_level_is_a_step_more_for_libraries(level: str, heard: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(level=level)
    ours, library = structlog.get_logger("trioserve.engine"), logging.getLogger("some.library")
    ours.debug("debug of trioserve")
    ours.info("info of trioserve")
    library.debug("debug of a library")
    library.info("info of a library")
    library.warning("warning of a library")
    assert [text for _, text in lines(capsys)] == heard


def test_a_bug_has_a_plain_traceback_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
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


FORGED = "x\n2026-01-01 00:00:00 [info     ] forged\x1b[2J"


def test_no_line_of_a_traceback_can_pass_for_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    try:
        raise KeyError from ValueError(FORGED)
    except KeyError as error:
        logging.getLogger("trioserve.web.app").error("failed", exc_info=error)
        structlog.get_logger("trioserve.serve").error("failed", exc_info=error)
    _, err = capsys.readouterr()
    assert len([line for line in err.splitlines() if line and not line.startswith("    ")]) == 2
    assert "\n    2026-01-01 00:00:00 [info     ] forged\\x1b[2J\n" in err


def test_what_is_logged_for_a_request_has_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    with structlog.contextvars.bound_contextvars(request_id="mine"):
        logging.getLogger("trioserve.web.app").error("failed")
        structlog.get_logger("trioserve.engine").warning("slow")
    logging.getLogger("trioserve.web.app").error("failed")
    assert lines(capsys) == [
        ("error", "failed request_id=mine"),
        ("warning", "slow request_id=mine"),
        ("error", "failed"),
    ]


def test_warnings_of_python_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        configure_logs()
        warnings.warn("old\nthing", DeprecationWarning, stacklevel=1)
        ((level, text),) = lines(capsys)
        logging.captureWarnings(False)
    assert level == "warning"
    assert "DeprecationWarning: old\\x0athing" in text


# ---- JSON


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_json_is_one_object_a_line_whoever_logs(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(form="json")
    structlog.get_logger("trioserve.access").info(
        "request", request_id="r", method="GET", path=FORGED, status=200, bytes=3, ms=0.5, client="unix"
    )
    logging.getLogger("hypercorn.error").warning("odd %s", FORGED)
    structlog.get_logger("trioserve.serve").warning("odd", path=Path("/x"), broken="\udcff")
    access, library, ours = objects(capsys)
    for line in (access, library, ours):
        moment = datetime.fromisoformat(line.pop("timestamp"))
        assert moment.tzinfo is not None
    assert access == {
        "level": "info",
        "logger": "trioserve.access",
        "event": "request",
        "request_id": "r",
        "method": "GET",
        "path": FORGED,
        "status": 200,
        "bytes": 3,
        "ms": 0.5,
        "client": "unix",
    }
    assert library == {"level": "warning", "logger": "hypercorn.error", "event": f"odd {FORGED}"}
    assert ours == {
        "level": "warning",
        "logger": "trioserve.serve",
        "event": "odd",
        "path": "/x",
        "broken": "\udcff",
    }


def test_a_bug_is_one_object_too_and_has_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(form="json")
    prompt = "what a user wrote"
    try:
        raise KeyError(len(prompt))
    except KeyError as error:
        logging.getLogger("trioserve.web.app").error("failed", exc_info=error)
        structlog.get_logger("trioserve.serve").critical("failed", exc_info=error)
    for line in objects(capsys):
        assert line["exception"].startswith("Traceback (most recent call last):")
        assert line["exception"].endswith("KeyError: 17")
        assert prompt not in json.dumps(line)


def test_a_log_that_nobody_reads_any_more_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stderr", Closed())
    configure_logs()
    structlog.get_logger("trioserve.serve").info("loaded")


def test_configuring_twice_does_not_log_twice(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    configure_logs()
    logging.getLogger("trioserve.web.app").error("once")
    assert len(lines(capsys)) == 1
