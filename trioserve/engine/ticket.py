"""The two ends between a choice and the scheduler actor: its ticket, and the actor's mailbox.

Owns: Mailbox (everything the actor is told, in order) and Ticket (one choice as the engine sees it).
Must not know: planning, text.

The mailbox is unbounded, so that no message can be refused: an abort must get through from a cancelled task,
where nothing can be awaited. It stays small all the same: submits are bounded by the queue they fill, and a
ticket sends at most one abort, one cancel, and one drained for each message it was sent.
"""

from __future__ import annotations

import math

import attrs
import trio

from trioserve.engine.messages import Abort, Cancel, Drained, Mail, Submit
from trioserve.errors import EngineClosedError, EngineFailedError
from trioserve.sched.group import Uid
from trioserve.sched.outbox import Outbox, Progress

# Room for a few steps between a choice and the actor: enough that a choice which is only late is never blocked.
TICKET_MESSAGES = 4


class Mailbox:
    """The inbox of the scheduler actor. Posting is synchronous and never refused while the engine is open."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Mail](math.inf)
        self._open = True
        self.fault: BaseException | None = None
        """What ended the engine, if an error did."""

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Mailbox {state}, {self._receive.statistics().current_buffer_used} waiting>"

    def post(self, mail: Mail) -> None:
        """Hand ``mail`` to the actor. After the engine has ended it goes nowhere: there is nothing left to end."""
        if self._open:
            self._send.send_nowait(mail)

    def submit(self, submit: Submit) -> None:
        """Hand over a submit.

        Raises:
            EngineClosedError: the engine has ended; an EngineFailedError if an error ended it.
        """
        if not self._open:
            raise self.closed_error()
        self._send.send_nowait(submit)

    async def receive(self) -> Mail:
        """The next message; for the actor only."""
        return await self._receive.receive()

    def receive_nowait(self) -> Mail:
        """The next message, or trio.WouldBlock; for the actor only."""
        return self._receive.receive_nowait()

    def fail(self, fault: BaseException) -> None:
        """Remember the first error that ended the engine."""
        if self.fault is None:
            self.fault = fault

    def closed_error(self) -> EngineClosedError:
        """The error for whoever still wants something of an engine that has ended."""
        return EngineClosedError() if self.fault is None else EngineFailedError(self.fault)

    def close(self) -> None:
        """Take nothing more, and refuse the submits that were not looked at. Idempotent."""
        if not self._open:
            return
        self._open = False
        while True:
            try:
                mail = self._receive.receive_nowait()
            except trio.WouldBlock:
                break
            if isinstance(mail, Submit):
                mail.answer(self.closed_error())
                for ticket in mail.tickets:
                    ticket.end()
        self._send.close()
        self._receive.close()


@attrs.define(eq=False)
class Ticket:
    """One choice, as the engine sees it.

    The actor sends with ``send`` and keeps what can't be sent in ``outbox``. The choice task receives and, when
    it wants no more, closes: synchronously, idempotently, whatever state it is in.
    """

    uid: Uid
    mailbox: Mailbox = attrs.field(repr=False)
    outbox: Outbox = attrs.field(repr=False)
    blocked: Progress | None = attrs.field(default=None, init=False)
    """What did not fit in the channel. Written by the actor only."""
    ended: bool = attrs.field(default=False, init=False)
    """The actor has said its last word. Written by the actor only."""
    _send: trio.MemorySendChannel[Progress] = attrs.field(init=False, repr=False)
    _receive: trio.MemoryReceiveChannel[Progress] = attrs.field(init=False, repr=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Progress](TICKET_MESSAGES)

    def send(self, progress: Progress) -> bool:
        """Send. False: the channel is full, and it is remembered as ``blocked``. For the actor."""
        try:
            self._send.send_nowait(progress)
        except trio.WouldBlock:
            self.blocked = progress
            return False
        except trio.BrokenResourceError:
            pass  # the choice has left; its abort is in the mailbox
        return True

    def end(self) -> None:
        """No more messages will come. For the actor; idempotent."""
        self.ended = True
        self._send.close()

    async def receive(self) -> Progress:
        """The next message for the choice task.

        Raises:
            EngineClosedError: the engine ended before the choice did; an EngineFailedError if an error ended it.
        """
        try:
            progress = await self._receive.receive()
        except trio.EndOfChannel:
            raise self.mailbox.closed_error() from self.mailbox.fault
        if self.blocked is not None:
            self.mailbox.post(Drained(self.uid))
        return progress

    def cancel(self) -> None:
        """End the choice with the finish reason "cancelled"; it still gets what it has made so far."""
        if not self._closed and not self.ended:
            self.mailbox.post(Cancel(self.uid))

    def close(self) -> None:
        """Want no more of this choice: it is aborted if it still runs. Idempotent, and safe in a cancelled scope."""
        if self._closed:
            return
        self._closed = True
        self._receive.close()
        if not self.ended:
            self.mailbox.post(Abort(self.uid))
