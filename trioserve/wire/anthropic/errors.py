"""The body of an error, in Anthropic's envelope.

Owns: the envelope, and what that API calls a kind of error. Must not know: which error has which status.

``param`` and ``code`` extend that API: they name the field at fault, and are a word for programs.
"""

from __future__ import annotations

from typing import Final

from trioserve.wire.errors import ErrorFields, describe, describe_http
from trioserve.wire.line import json_line, named_event

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: BaseException) -> tuple[int, bytes]:
    """The status code and body for ``error``."""
    status, fields = describe(error)
    return status, json_line(_envelope(status, fields))


def http_error_body(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself."""
    return json_line(_envelope(status, describe_http(status, message)))


def error_event(error: BaseException) -> bytes:
    """The end of a stream that failed after its headers (FAN-28)."""
    return named_event(_envelope(*describe(error)))


def _envelope(status: int, fields: ErrorFields) -> dict[str, object]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": fields.message, "param": fields.param, "code": fields.code}
    return {"type": "error", "error": error}
