"""How the log looks: a line for each event, on standard error.

Owns: the set-up of structlog and of the standard library's logging, which have the same look. A traceback is for a
bug. Must not know: who logs what.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

import click
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, WrappedLogger

from trioserve.cli.harmless import harmless_line

ACCESS_LOG: Final = "trioserve.access"


def configure_logs(*, verbose: bool) -> None:
    """Send log lines of trioserve, and warnings of its libraries, to standard error. Verbose: more of both."""
    common: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            _name_request,
            _escape,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer = structlog.dev.ConsoleRenderer(
        colors="NO_COLOR" not in os.environ and sys.stderr.isatty(),
        # rich's would print local variables, which hold what users wrote
        exception_formatter=structlog.dev.plain_traceback,
        sort_keys=False,
    )
    handler = StandardErrorHandler()
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[*common, _escape],
            processors=[ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, StandardErrorHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("trioserve").setLevel(logging.DEBUG if verbose else logging.INFO)


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
    if logger.name == ACCESS_LOG:
        # None: the head of the request could not be understood
        event["event"] = f"{event.pop('method', None) or '-'} {event.pop('path', None) or '-'}"
    return event


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """What clients wrote can't start a new line, or speak to the terminal."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = harmless_line(value)
    return event
