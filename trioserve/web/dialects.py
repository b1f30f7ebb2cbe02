"""Which paths have errors in which format.

Owns: the paths of Anthropic's API. Must not know: the formats.

An error may come before any handler is known: a client must be able to read it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from trioserve.wire import errors as openai_errors
from trioserve.wire.anthropic import errors as anthropic_errors

MESSAGES_PATH: Final = "/v1/messages"


@attrs.frozen
class ErrorFormat:
    """How errors are written."""

    error_body: Callable[[BaseException], tuple[int, bytes]]
    """The status code and the body of an error."""
    http_error_body: Callable[[int, str], bytes]
    """The body of an error of HTTP itself, of which there is a status and a message."""


_OPENAI: Final = ErrorFormat(openai_errors.error_body, openai_errors.http_error_body)
_ANTHROPIC: Final = ErrorFormat(anthropic_errors.error_body, anthropic_errors.http_error_body)


def is_anthropic(path: str) -> bool:
    """Whether those who ask for ``path`` speak Anthropic's dialect."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def error_format(path: str) -> ErrorFormat:
    """The format of the errors of ``path``."""
    return _ANTHROPIC if is_anthropic(path) else _OPENAI
