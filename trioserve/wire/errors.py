"""What is said of an error, and its body in OpenAI's envelope.

Owns: the envelope, and what is said of an error that nobody raised on purpose: nothing of its insides.
Must not know: which error has which status (trioserve.errors), headers.
"""

from __future__ import annotations

import attrs

from trioserve.errors import ERRORS, GenerationError, TrioserveError, error_row
from trioserve.wire.line import json_line


@attrs.frozen
class ErrorFields:
    """What is said of an error, whatever the envelope."""

    message: str
    type: str
    """The kind of error, in OpenAI's words."""
    param: str | None
    code: str | None


def describe(error: BaseException) -> tuple[int, ErrorFields]:
    """The status code of ``error``, and what is said of it. One of ours speaks for itself (FAN-23), any other is kept
    quiet about."""
    row = error_row(error)
    if isinstance(error, TrioserveError):
        param = None if error.param is None else _valid(error.param)
        return row.status, ErrorFields(_valid(str(error)), row.type, param, row.code)
    return row.status, ErrorFields("The server had an internal error.", row.type, None, row.code)


def describe_http(status: int, message: str) -> ErrorFields:
    """What is said of an error of HTTP itself, such as 404 for an unknown path, 405, 408 or 413."""
    return ErrorFields(_valid(message), "invalid_request_error" if status < 500 else "server_error", None, None)


def error_body(error: BaseException) -> tuple[int, bytes]:
    """The status code and body for ``error``."""
    status, fields = describe(error)
    return status, _envelope(fields)


def http_error_body(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself."""
    return _envelope(describe_http(status, message))


def failure_fields(message: str) -> dict[str, object]:
    """What is said of one choice that failed while its siblings did not."""
    row = ERRORS[GenerationError]
    return attrs.asdict(ErrorFields(_valid(message), row.type, None, row.code))


def _envelope(fields: ErrorFields) -> bytes:
    return json_line({"error": attrs.asdict(fields)})


def _valid(text: str) -> str:
    """Text that can be encoded. Lone surrogates come from file names, and from field names of bad JSON."""
    return text.encode(errors="replace").decode()
