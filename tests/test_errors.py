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
        (ChoiceFailedError("x", "r", 3), 500, "generation_failed"),
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
