"""How the log looks: a line for each event, on standard error, for people or as JSON.

Owns: the set-up of structlog and of the standard library's logging, which have the same look. A traceback is for a
bug. Must not know: who logs what.

What clients and models wrote can't start a line of its own: in text, control characters are written out and tracebacks
are indented; JSON has no line feeds inside.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import traceback
from typing import Final, Literal, TextIO

import click
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from trioserve.cli.harmless import harmless_line, harmless_text

ACCESS_LOG: Final = "trioserve.access"
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
DEFAULT_LEVEL: Final = "info"

LogFormat = Literal["text", "json"]


def configure_logs(*, level: str = DEFAULT_LEVEL, form: LogFormat = "text") -> None:
    """Send log lines of trioserve and its libraries to standard error.

    Args:
        level: one of LEVELS: the least that is logged of trioserve. Of libraries it is a step more, so that they are
            heard by their warnings, and by their infos with "debug".
        form: "text" for people, in local time; "json" for programs, in UTC.
    """
    common, last = _text_processors() if form == "text" else _json_processors()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *common, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = StandardErrorHandler()
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, StandardErrorHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.INFO if level == "debug" else max(LEVELS[level], logging.WARNING))
    logging.getLogger("trioserve").setLevel(LEVELS[level])
    # those of Python itself have the same look
    logging.captureWarnings(True)


def _text_processors() -> tuple[list[Processor], list[Processor]]:
    """What is done to each event when it is logged, and what makes a line of it."""
    renderer = structlog.dev.ConsoleRenderer(
        colors="NO_COLOR" not in os.environ and sys.stderr.isatty(),
        # rich's would print local variables, which hold what users wrote
        exception_formatter=_write_indented,
        sort_keys=False,
    )
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        _name_request,
        _escape,
    ], [renderer]


def _json_processors() -> tuple[list[Processor], list[Processor]]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ], [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


class StandardErrorHandler(logging.Handler):
    """Writes to what is standard error at the moment: a progress bar puts itself in its place while it is shown.

    A line that can't be written, because nobody reads the pipe any more, is dropped: the server goes on.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            click.echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def _name_request(logger: WrappedLogger, _: str, event: EventDict) -> EventDict:
    """A finished request stands in the log under its method and path."""
    # None: of the standard library's own
    if logger is not None and logger.name == ACCESS_LOG:
        # None: the head of the request could not be understood
        event["event"] = f"{event.pop('method', None) or '-'} {event.pop('path', None) or '-'}"
    return event


def _write_indented(out: TextIO, error: ExcInfo) -> None:
    """A traceback, of which no line can pass for one of the log: those begin at the margin."""
    text = "".join(traceback.format_exception(*error))
    out.write("\n" + textwrap.indent(harmless_text(text.rstrip()), "    ", lambda _: True))


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """What clients wrote can't start a new line, or speak to the terminal."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = harmless_line(value)
    return event
