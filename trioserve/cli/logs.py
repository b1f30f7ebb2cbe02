"""How the log looks: one line for each event on standard error.

Owns: the set-up of structlog and of the standard library's logging.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(*, verbose: bool) -> None:
    """Send log lines of trioserve, and warnings of its libraries, to standard error."""
    level = logging.DEBUG if verbose else logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
