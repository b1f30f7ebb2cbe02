"""The gate: how the choices of a group reach an engine that knows no groups (FAN-13).

Owns: who may be submitted when. Must not know: how anything is submitted, tickets, tokens.

If all choices of a prompt were submitted at once, such an engine would compute the prompt for each of them: none finds
in its cache what another is only about to compute. Nor is it enough that the engine has taken the first, since that may
wait in a queue for long. But once the first has a token, its prompt is computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from trioserve.sched.group import Uid


def _as_line(uids: Iterable[Uid]) -> dict[Uid, None]:
    return dict.fromkeys(uids)


@attrs.define(eq=False)
class Gate:
    """Lets the first choice of a group through, and the others once that has its first token.

    One that leaves before, because it was cancelled, gives its place to the next. One that fails before closes the
    gate: the others fail of the same, and are never submitted.
    """

    _line: dict[Uid, None] = attrs.field(converter=_as_line)
    """Those that have not left, in index order: an ordered set."""
    admitted: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The engine has taken the first, or there is none any more."""
    error: Exception | None = attrs.field(default=None, init=False)
    """What closed it."""
    is_open: bool = attrs.field(default=False, init=False)
    _parked: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False, repr=False)

    async def wait(self, uid: Uid) -> None:
        """Wait until a choice may be submitted.

        Raises:
            Exception: it may not: what the first has failed of.
        """
        await trio.lowlevel.checkpoint()
        while not self.is_open and self.error is None and next(iter(self._line)) != uid:
            await self._parked.park()
        if self.error is not None:
            raise self.error

    def open(self) -> None:
        """The first has a token. Idempotent."""
        if not self.is_open:
            self.is_open = True
            self._parked.unpark_all()

    def fail(self, error: Exception) -> None:
        """A choice has failed. That concerns the others only if it was the first, and had no token."""
        if not self.is_open and self.error is None:
            self.error = error
            self._parked.unpark_all()
        self.admitted.set()

    def leave(self, uid: Uid) -> None:
        """A choice is over, whatever has become of it."""
        del self._line[uid]
        if not self._line:
            self.admitted.set()
        elif not self.is_open:
            self._parked.unpark_all()
