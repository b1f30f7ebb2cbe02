"""How errors look to a client."""

from __future__ import annotations

import json

import pytest

from trioserve.errors import (
    ChoiceFailedError,
    ContextLengthError,
    DeviceError,
    EngineClosedError,
    EngineFailedError,
    EngineStoppingError,
    GenerationError,
    InternalError,
    InvariantError,
    ModelNotFoundError,
    ParamError,
    QueueFullError,
)
from trioserve.wire.errors import error_body, http_error_body


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (ParamError("no", "n"), 400, "invalid_request_error", "n", None),
        (ParamError("no", None, "why"), 400, "invalid_request_error", None, "why"),
        (ContextLengthError(8, 9, "prompt"), 400, "invalid_request_error", "prompt", "context_length_exceeded"),
        (ModelNotFoundError("a", ("b",)), 404, "invalid_request_error", "model", "model_not_found"),
        (QueueFullError("full"), 429, "rate_limit_error", None, "queue_full"),
        (EngineStoppingError(), 503, "service_unavailable_error", None, "server_stopping"),
        (EngineFailedError(DeviceError("it broke")), 500, "server_error", None, "engine_failed"),
        (EngineClosedError(), 503, "service_unavailable_error", None, "engine_closed"),
        (GenerationError("a parser broke", "id"), 500, "server_error", None, "generation_failed"),
        (ChoiceFailedError("it broke", "id", 1), 500, "server_error", None, "generation_failed"),
        (InternalError("a bug"), 500, "server_error", None, "internal_error"),
        (InvariantError("pages leak"), 500, "server_error", None, "internal_error"),
    ],
)
def test_an_error_of_ours_tells_its_own_message(
    error: Exception, status: int, kind: str, param: str | None, code: str | None
) -> None:  # FAN-23; case model-404
    expected = {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
    found_status, body = error_body(error)
    assert (found_status, json.loads(body)) == (status, expected)


@pytest.mark.parametrize("error", [KeyError("secret"), ValueError("secret"), ExceptionGroup("secret", [OSError()])])
def test_any_other_error_tells_nothing_of_our_insides(error: Exception) -> None:
    status, body = error_body(error)
    assert status == 500
    assert b"secret" not in body
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, "invalid_request_error"),
        (405, "invalid_request_error"),
        (413, "invalid_request_error"),
        (500, "server_error"),
    ],
)
def test_an_error_of_http_itself_has_the_same_envelope(status: int, kind: str) -> None:
    expected = {"error": {"message": "Not so.", "type": kind, "param": None, "code": None}}
    assert json.loads(http_error_body(status, "Not so.")) == expected


def test_an_error_about_text_that_is_no_unicode_can_be_written() -> None:  # case json-body-junk
    _, body = error_body(ParamError("bad name \ud800", "\ud800"))
    assert json.loads(body)["error"]["message"] == "bad name ?"
    assert json.loads(body)["error"]["param"] == "?"


def test_an_error_body_is_one_line() -> None:
    _, body = error_body(ParamError("a\nb\u2028c\x85", None))
    assert body.decode().splitlines() == [body.decode()]
