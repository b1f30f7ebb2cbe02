"""Turning an exception group into the one exception that a caller should see.

Owns: the policy, in one place, used by Generation, the engine's block and the command that serves.
Must not know: what either of them does.

A nursery raises a group of everything that went wrong in it. Callers of trioserve never see a group. The
first rule that applies says what they see:

1. the exception of their own block, if it is among them (they raised it, they expect it);
2. a KeyboardInterrupt or SystemExit;
3. the only exception that is not a Cancelled;
4. the first, if all of them are our own errors (of choices that failed together: that of the lowest index);
5. a Cancelled (that of the block, if it has one), if there is nothing else;
6. InternalError, with the group as its cause.

An EngineClosedError is dropped beforehand if its cause is in the same group: it only repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NoReturn

import trio

from trioserve.errors import ChoiceFailedError, EngineClosedError, InternalError, TrioserveError


def leaves(exception: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups, in order; an exception that is not a group is its own leaf."""
    if isinstance(exception, BaseExceptionGroup):
        for member in exception.exceptions:
            yield from leaves(member)
    else:
        yield exception


def collapse(group: BaseExceptionGroup[BaseException], body: BaseException | None) -> BaseException:
    """The one exception that stands for ``group``; ``body`` is what the caller's own block raised."""
    everything = list(leaves(group))
    if body is not None and not isinstance(body, (trio.Cancelled, BaseExceptionGroup)):
        for error in everything:
            if error is body:
                return error
    for error in everything:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
    errors = [error for error in everything if not isinstance(error, trio.Cancelled)]
    known = {id(error) for error in errors}
    distinct = [
        error for error in errors if not (isinstance(error, EngineClosedError) and id(error.__cause__) in known)
    ]
    if not distinct:
        return body if isinstance(body, trio.Cancelled) and body in everything else everything[0]
    if len(distinct) == 1 or all(isinstance(error, TrioserveError) for error in distinct):
        choices = [error for error in distinct if isinstance(error, ChoiceFailedError)]
        # which task came first is chance
        return min(choices, key=attrgetter("index")) if distinct[0] in choices else distinct[0]
    internal = InternalError("Several things failed at once; this is a bug, please report it.")
    internal.__cause__ = group
    return internal


def raise_alone(error: BaseException) -> NoReturn:
    """Raise ``error`` from an ``except`` block of its group as if the group had never been."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
