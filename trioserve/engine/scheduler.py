"""The scheduler actor: the one task that owns the SchedulerState, and so the pages and the prefix cache.

Owns: the state, the tickets of live choices, and the step in flight.
Must not know: text, sampling, tensors, HTTP.

It reads one mailbox, into which requests post commands and the device posts results. So a submit is answered
and an abort is obeyed while a step runs, and nothing here ever waits for anything but mail. All decisions are
the state's (pure, synchronous); the actor only carries messages.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from trioserve.engine.messages import Abort, Cancel, Drained, Mail, Submit
from trioserve.engine.ticket import Mailbox, Ticket
from trioserve.errors import ParamError, TrioserveError
from trioserve.sched.commit import Delivery
from trioserve.sched.group import Uid
from trioserve.sched.state import SchedulerState, SchedulerStatistics
from trioserve.step import StepPlan, StepResult


class Scheduler:
    """The actor. ``run`` is its task; everything else talks to it through the mailbox."""

    def __init__(self, state: SchedulerState, mailbox: Mailbox, dispatch: Callable[[StepPlan], None]) -> None:
        self._state = state
        self._mailbox = mailbox
        self._dispatch = dispatch
        self._tickets: dict[Uid, Ticket] = {}
        self._in_flight: StepPlan | None = None

    def __repr__(self) -> str:
        step = "idle" if self._in_flight is None else f"in step {self._in_flight.number}"
        return f"<Scheduler {step}, {len(self._tickets)} tickets>"

    def statistics(self) -> SchedulerStatistics:
        return self._state.statistics()

    def check(self) -> None:
        """Raise InvariantError if the books of the state are wrong."""
        self._state.check()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Whatever ends it, every ticket is ended and the mailbox closed."""
        try:
            task_status.started()
            while True:
                self._handle(await self._mailbox.receive())
                self._handle_waiting()
                self._start_step()
        except Exception as error:
            self._mailbox.fail(error)
            raise
        finally:
            self._mailbox.close()
            for ticket in self._tickets.values():
                ticket.end()
            self._tickets.clear()

    def _handle_waiting(self) -> None:
        while True:
            try:
                mail = self._mailbox.receive_nowait()
            except trio.WouldBlock:
                return
            self._handle(mail)

    def _start_step(self) -> None:
        if self._in_flight is None:
            self._in_flight = self._state.plan(trio.current_time())
            if self._in_flight is not None:
                self._dispatch(self._in_flight)

    def _handle(self, mail: Mail) -> None:
        if isinstance(mail, StepResult):
            self._finish_step(mail)
        elif isinstance(mail, Submit):
            self._submit(mail)
        elif isinstance(mail, Abort):
            self._state.abort(mail.uid)
            self._tickets.pop(mail.uid, None)
        elif isinstance(mail, Cancel):
            self._cancel(mail.uid)
        elif isinstance(mail, Drained):
            self._drained(mail.uid)

    def _finish_step(self, result: StepResult) -> None:
        plan, self._in_flight = self._in_flight, None
        assert plan is not None
        for delivery in self._state.commit(plan, result):
            self._deliver(delivery)

    def _submit(self, submit: Submit) -> None:
        """All groups or none: a request is never half admitted."""
        now = trio.current_time()
        taken: list[Uid] = []
        for p, group in enumerate(submit.groups):
            try:
                self._state.submit(group, now)
            except TrioserveError as error:
                if isinstance(error, ParamError) and len(submit.groups) > 1:
                    error.rename({"prompt": f"prompt.{p}"})
                for uid in taken:
                    self._state.abort(uid)
                for ticket in submit.tickets:
                    ticket.end()
                submit.answer(error)
                return
            taken += [choice.uid for choice in group.choices]
        self._tickets.update((ticket.uid, ticket) for ticket in submit.tickets)
        submit.answer(None)

    def _deliver(self, delivery: Delivery) -> None:
        ticket = self._tickets.get(delivery.uid)
        if ticket is not None:
            ticket.outbox.put(delivery)
            self._flush(ticket)

    def _flush(self, ticket: Ticket) -> None:
        """Send what the ticket's channel can take; never wait for it."""
        if ticket.blocked is not None:
            if ticket.outbox.over_bound:
                self._state.pause(ticket.uid)
            return
        progress = ticket.outbox.take()
        if progress is None:
            return
        if ticket.send(progress) and progress.finish is not None:
            ticket.end()
            del self._tickets[ticket.uid]

    def _drained(self, uid: Uid) -> None:
        ticket = self._tickets.get(uid)
        if ticket is None or ticket.blocked is None:
            return
        progress, ticket.blocked = ticket.blocked, None
        if not ticket.send(progress):
            return
        if progress.finish is not None:
            ticket.end()
            del self._tickets[uid]
            return
        self._state.drained(uid)
        self._flush(ticket)

    def _cancel(self, uid: Uid) -> None:
        if self._state.abort(uid):
            self._deliver(Delivery(uid=uid, finish="cancelled"))
