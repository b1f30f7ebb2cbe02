"""What stands for an exception group, rule by rule."""

from __future__ import annotations

from typing import NoReturn

import pytest
import trio

from trioserve.engine.groups import collapse, raise_alone
from trioserve.errors import ChoiceFailedError, EngineClosedError, InternalError, ParamError


async def a_cancelled() -> trio.Cancelled:
    """A real Cancelled: they can't be made by hand."""
    caught: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            caught.append(error)
            raise
    return caught[0]


def group(*members: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", members)


async def test_the_blocks_own_error_wins() -> None:
    own, other = KeyError("own"), ValueError("other")
    assert collapse(group(other, group(await a_cancelled(), own)), own) is own


async def test_a_keyboard_interrupt_wins_over_other_errors() -> None:
    interrupt = KeyboardInterrupt()
    assert collapse(group(ValueError(), interrupt, await a_cancelled()), None) is interrupt


async def test_the_only_error_beside_cancellations_comes_out() -> None:
    error = ValueError()
    cancelled = await a_cancelled()
    assert collapse(group(cancelled, group(error)), cancelled) is error


def test_of_several_of_our_own_errors_the_first_comes_out() -> None:
    first, second = ChoiceFailedError("a", "r", 0), ParamError("b", "n")
    assert collapse(group(first, second), None) is first


def test_of_choices_that_failed_together_that_of_the_lowest_index_comes_out() -> None:
    errors = [ChoiceFailedError("x", "r", index) for index in (2, 0, 1)]
    assert collapse(group(*errors, ParamError("b", "n")), None) is errors[1]


async def test_cancellations_alone_are_one_cancellation_that_of_the_block() -> None:
    own, other = await a_cancelled(), await a_cancelled()
    assert collapse(group(other, own), own) is own
    assert collapse(group(other), None) is other


def test_a_closed_engine_is_dropped_beside_its_cause() -> None:
    cause = RuntimeError()
    closed = EngineClosedError()
    closed.__cause__ = cause
    assert collapse(group(closed, cause), None) is cause
    assert collapse(group(closed), None) is closed


def test_different_errors_of_strangers_are_an_internal_error_that_keeps_them() -> None:
    both = group(ValueError(), KeyError())
    error = collapse(both, None)
    assert isinstance(error, InternalError)
    assert error.__cause__ is both


def test_the_error_is_raised_as_if_the_group_had_never_been() -> None:
    def fail(error: BaseException) -> NoReturn:
        try:
            raise group(error)
        except BaseExceptionGroup:
            raise_alone(error)

    own_context = KeyError("what it came from")
    error = ValueError()
    error.__context__ = own_context
    with pytest.raises(ValueError) as caught:
        fail(error)
    assert caught.value is error
    assert error.__context__ is own_context
