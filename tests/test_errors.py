"""The table of errors."""

from __future__ import annotations

import pytest

from trioserve import errors
from trioserve.errors import (
    ERRORS,
    ChoiceFailedError,
    ContextLengthError,
    ErrorRow,
    ParamError,
    TrioserveError,
    error_row,
)


def test_every_class_has_a_row_or_inherits_one_with_its_meaning() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, TrioserveError):
            assert value in ERRORS or any(base in ERRORS for base in value.__mro__[1:-3]), value


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ParamError("x", "n"), 400, None),
        (ParamError("x", "n", "too_odd"), 400, "too_odd"),
        (ContextLengthError(10, 11, "prompt"), 400, "context_length_exceeded"),
        (errors.ModelNotFoundError("a", ("b",)), 404, "model_not_found"),
        (errors.QueueFullError("x"), 429, "queue_full"),
        (errors.EngineStoppingError(), 503, "server_stopping"),
        (errors.EngineClosedError(), 503, "engine_closed"),
        (errors.EngineFailedError(KeyError("x")), 500, "engine_failed"),
        (ChoiceFailedError("x", "r", 3), 500, "generation_failed"),
        (errors.RequestCancelledError("x", "r"), 409, "request_cancelled"),
        (errors.StructureError("x"), 400, "structure_failed"),
        (errors.InvariantError("x"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_an_error_has_the_row_of_its_nearest_class(error: BaseException, status: int, code: str | None) -> None:
    row = error_row(error)
    assert isinstance(row, ErrorRow)
    assert (row.status, row.code) == (status, code)


def test_a_prompt_too_long_says_what_clients_look_for() -> None:
    assert "maximum context length is 10 tokens" in str(ContextLengthError(10, 11, "prompt"))
    assert "at least 11 tokens" in str(ContextLengthError(10, 11, "prompt", at_least=True))


def test_what_ended_an_engine_is_said_again() -> None:  # FAN-23
    cause = errors.DeviceError("The device failed in step 3: OSError: gone")
    failed = errors.EngineFailedError(cause)
    assert (str(failed), failed.__cause__) == (str(cause), cause)
    assert str(errors.EngineFailedError(KeyError("x"))) == "The engine failed: KeyError: 'x'"


def test_a_field_can_be_named_as_its_caller_does() -> None:
    names = {"prompt": "messages"}
    for param, renamed in (("prompt", "messages"), ("n", "n"), ("prompt.1", "prompt.1"), (None, None)):
        error = ParamError("x", param)
        error.rename(names)
        assert error.param == renamed
