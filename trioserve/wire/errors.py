"""The body of an error, in OpenAI's envelope.

Owns: the envelope, and what is said of an error that nobody raised on purpose: nothing of its insides.
Must not know: which error has which status (trioserve.errors), headers.
"""

from __future__ import annotations

from trioserve.errors import ERRORS, GenerationError, TrioserveError, error_row
from trioserve.wire.line import json_line


def error_body(error: BaseException) -> tuple[int, bytes]:
    """The status code and body for ``error``. One of ours speaks for itself (FAN-23), any other is kept quiet about."""
    row = error_row(error)
    if isinstance(error, TrioserveError):
        return row.status, _envelope(str(error), row.type, error.param, row.code)
    return row.status, _envelope("The server had an internal error.", row.type, None, row.code)


def http_error_body(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself, such as 404 for an unknown path, 405, 408 or 413."""
    return _envelope(message, "invalid_request_error" if status < 500 else "server_error", None, None)


def failure_fields(message: str) -> dict[str, object]:
    """What is said of one choice that failed while its siblings did not."""
    row = ERRORS[GenerationError]
    return _fields(message, row.type, None, row.code)


def _envelope(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return json_line({"error": _fields(message, kind, param, code)})


def _fields(message: str, kind: str, param: str | None, code: str | None) -> dict[str, object]:
    return {
        "message": _valid(message),
        "type": kind,
        "param": None if param is None else _valid(param),
        "code": code,
    }


def _valid(text: str) -> str:
    """Text that can be encoded. Lone surrogates come from file names, and from field names of bad JSON."""
    return text.encode(errors="replace").decode()
