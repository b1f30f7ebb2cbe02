"""The messages of the engine, one class for each, by boundary.

Owns: what requests say to the scheduler actor. What the actor says to a choice is sched.Progress.
Must not know: who handles them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import trio

from trioserve.errors import TrioserveError
from trioserve.sched.group import Group, Uid
from trioserve.step import StepResult

if TYPE_CHECKING:
    from trioserve.engine.ticket import Ticket


@attrs.frozen(eq=False)
class Submit:
    """Take these groups, all or none. ``reply`` gets None, or the error that refuses them."""

    groups: tuple[Group, ...]
    tickets: tuple[Ticket, ...]
    reply: trio.MemorySendChannel[TrioserveError | None]

    def answer(self, refusal: TrioserveError | None) -> None:
        """Tell whoever asked; nobody waits for it any more if the request was cancelled meanwhile."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self.reply.send_nowait(refusal)


@attrs.frozen
class Abort:
    """Nobody wants this choice any more; say nothing to it."""

    uid: Uid


@attrs.frozen
class Cancel:
    """End this choice now with the finish reason "cancelled"."""

    uid: Uid


@attrs.frozen
class Drained:
    """A ticket whose channel was full has room again."""

    uid: Uid


Command = Submit | Abort | Cancel | Drained
Mail = Command | StepResult
