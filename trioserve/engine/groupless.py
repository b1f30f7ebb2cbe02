"""An engine without groups in place of our own scheduler: the seam, and what connects it.

Owns: ChoiceEngine, which such an engine has to offer, and the actor that serves the mailbox with it.
Must not know: how requests are made, what the engine is.

The seam lies behind the mailbox and not in the fan-out. So a request submits groups, holds tickets and is cancelled as
ever, by the same code, and what our scheduler guarantees about endings holds here for the same reasons. What differs is
in here: each choice is a task, which waits at its group's gate (gate.py) before it is submitted.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Literal, Protocol, runtime_checkable

import attrs
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.gate import Gate
from trioserve.engine.groups import collapse, raise_alone
from trioserve.engine.messages import Abort, Cancel, Drained, Mail, Submit
from trioserve.engine.ticket import Mailbox, Ticket
from trioserve.errors import ParamError, QueueFullError, TrioserveError
from trioserve.sched.commit import Drafted
from trioserve.sched.group import Group, Uid
from trioserve.sched.outbox import Progress
from trioserve.sched.state import SchedulerStatistics


class ChoiceStream(Protocol):
    """One choice, while an engine answers it."""

    async def receive(self) -> Progress:
        """What there is since the last time; the last one has the ``finish``. Not called again before it is wanted.

        ``admitted`` is for the first, if the engine knows it; ``logprobs`` have to be there if they are asked for;
        ``drafted`` is for engines that draft.

        Raises:
            Exception: the choice has failed.
        """
        ...

    def close(self) -> None:
        """Nobody wants more: end it if it still runs. Synchronous, and called once, whatever has happened."""
        ...


@runtime_checkable
class ChoiceEngine(Protocol):
    """An engine that takes one choice at a time: in another process, on another machine, by another author.

    A choice that is submitted when another with the same prompt has its first token should find the prompt in a cache.
    """

    @property
    def info(self) -> DeviceInfo:
        """What it can hold; it answers for the pages itself."""
        ...

    @property
    def has_logprobs(self) -> bool:
        """Whether it gives log-probabilities to a choice that asks for them. Without, best_of is refused."""
        ...

    async def submit(self, group: Group) -> ChoiceStream:
        """Take a group of exactly one choice; return when it is admitted. If this is cancelled, it was not.

        What the group says of drafts is a permission, and not an order.

        Raises:
            TrioserveError: it is refused.
            Exception: it has failed.
        """
        ...


@attrs.define(eq=False)
class _Member:
    """A choice with a task."""

    group: Group
    """Of it alone."""
    ticket: Ticket
    gate: Gate
    stage: Literal["waiting", "prefilling", "running"] = attrs.field(default="waiting", init=False)
    aborted: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Cancelled when nobody wants it any more."""
    cancelled: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Cancelled to end it with the finish reason "cancelled"."""
    _parked: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def tell(self, progress: Progress) -> None:
        """Send, and wait until the ticket's channel has taken it: backpressure reaches the engine's stream (FAN-29).

        Nothing that was sent before may be waiting any more.
        """
        self.ticket.send(progress)
        await self.wait_taken()

    async def wait_taken(self) -> None:
        """Wait until nothing that was sent is left over."""
        await trio.lowlevel.checkpoint()
        while self.ticket.blocked is not None:
            await self._parked.park()

    def drained(self) -> None:
        """The ticket's channel has room."""
        progress, self.ticket.blocked = self.ticket.blocked, None
        if progress is not None:
            self.ticket.send(progress)
            self._parked.unpark_all()


class GrouplessScheduler:
    """The actor that serves ``mailbox`` with ``engine``, at most ``max_choices`` at once. ``run`` is its task."""

    def __init__(self, engine: ChoiceEngine, mailbox: Mailbox, max_choices: int) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._max_choices = max_choices
        self._members: dict[Uid, _Member] = {}
        self._groups = 0
        self._computed = self._cached = self._generated = 0
        self._drafted = Drafted(0, 0)

    def __repr__(self) -> str:
        return f"<GrouplessScheduler {len(self._members)} choices>"

    def statistics(self) -> SchedulerStatistics:
        """What is known on this side; pages, steps and how many drafts there were are the engine's own, and 0 here."""
        stages = Counter(member.stage for member in self._members.values())
        return SchedulerStatistics(
            running=stages["running"],
            prefilling=stages["prefilling"],
            paused=0,
            waiting=stages["waiting"],
            pages_free=0,
            pages_cached=0,
            pages_held=0,
            groups=self._groups,
            steps=0,
            preemptions=0,
            prompt_tokens_computed=self._computed,
            prompt_tokens_cached=self._cached,
            tokens_recomputed=0,
            tokens_generated=self._generated,
            drafts=0,
            draft_tokens=self._drafted.accepted + self._drafted.rejected,
            draft_tokens_accepted=self._drafted.accepted,
        )

    def check(self) -> None:
        """There are no books here that could be wrong."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Whatever ends it, every ticket is ended and the mailbox closed."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    self._handle(await self._mailbox.receive(), nursery)
                    # all that is there, or a choice might be submitted whose abort has come already
                    self._handle_waiting(nursery)
        except BaseExceptionGroup as group:
            error = collapse(group, None)
            if isinstance(error, Exception):
                self._mailbox.fail(error)
            raise_alone(error)
        finally:
            self._mailbox.close()
            for member in list(self._members.values()):
                self._forget(member)

    def _handle_waiting(self, nursery: trio.Nursery) -> None:
        while True:
            try:
                mail = self._mailbox.receive_nowait()
            except trio.WouldBlock:
                return
            self._handle(mail, nursery)

    def _handle(self, mail: Mail, nursery: trio.Nursery) -> None:
        if isinstance(mail, Submit):
            self._submit(mail, nursery)
        elif isinstance(mail, (Abort, Cancel, Drained)) and (member := self._members.get(mail.uid)) is not None:
            if isinstance(mail, Abort):
                member.aborted.cancel()
                del self._members[mail.uid]
            elif isinstance(mail, Cancel):
                member.cancelled.cancel()
            else:
                member.drained()

    def _submit(self, submit: Submit, nursery: trio.Nursery) -> None:
        refusal = self._refusal(submit)
        if refusal is not None:
            for ticket in submit.tickets:
                ticket.end()
            submit.answer(refusal)
            return
        tickets = {ticket.uid: ticket for ticket in submit.tickets}
        self._groups += len(submit.groups)
        members: list[_Member] = []
        for group in submit.groups:
            gate = Gate(choice.uid for choice in group.choices)
            members += [
                _Member(attrs.evolve(group, choices=(choice,)), tickets[choice.uid], gate) for choice in group.choices
            ]
        self._members.update((member.ticket.uid, member) for member in members)
        nursery.start_soon(self._serve, submit, members)

    def _refusal(self, submit: Submit) -> TrioserveError | None:
        """Why a request can't be taken, as far as that is known without the engine."""
        if any(choice.matcher is not None for group in submit.groups for choice in group.choices):
            return ParamError("This engine can't enforce a structure.", "structure")
        if any(group.prompt_logprobs for group in submit.groups):
            return ParamError("This engine gives no log-probabilities of prompts.", "prompt_logprobs")
        if any(group.pooling for group in submit.groups):
            return ParamError("This engine gives no hidden states to make embeddings of.", "model")
        is_scored = any(choice.logprobs for group in submit.groups for choice in group.choices)
        if is_scored and not self._engine.has_logprobs:
            if submit.groups[0].ranked:
                return ParamError(
                    "This engine gives no log-probabilities, and can't tell which choices are best.", "best_of"
                )
            return ParamError("This engine gives no log-probabilities.", "logprobs")
        present, more, bound = len(self._members), len(submit.tickets), self._max_choices
        if present + more > bound:
            return QueueFullError(f"{present} choices run or wait; with {more} more it would be over {bound}.")
        return None

    async def _serve(self, submit: Submit, members: list[_Member]) -> None:
        """One request. It is answered when the engine has taken the first choice of every group, or refused one."""
        gates = list(dict.fromkeys(member.gate for member in members))
        refusal: TrioserveError | None = self._mailbox.closed_error()  # if it is cancelled before it knows better
        try:
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(self._run, member, name=f"choice {member.ticket.uid} elsewhere")
                for gate in gates:
                    await gate.admitted.wait()
                # errors that are not ours refuse nothing: the choice tells them
                p, refusal = next(
                    ((p, gate.error) for p, gate in enumerate(gates) if isinstance(gate.error, TrioserveError)),
                    (0, None),
                )
                if refusal is None:
                    submit.answer(None)
                else:
                    if isinstance(refusal, ParamError) and len(gates) > 1:
                        refusal.rename({"prompt": f"prompt.{p}"})
                    nursery.cancel_scope.cancel()
        finally:
            if refusal is not None:
                submit.answer(refusal)

    async def _run(self, member: _Member) -> None:
        try:
            with member.aborted:
                with member.cancelled:
                    await self._answer(member)
                if member.cancelled.cancelled_caught:
                    await member.wait_taken()
                    await member.tell(Progress(finish="cancelled"))
        finally:
            member.gate.leave(member.ticket.uid)
            self._forget(member)

    async def _answer(self, member: _Member) -> None:
        gate = member.gate
        try:
            await gate.wait(member.ticket.uid)
            member.stage = "prefilling"
            stream = await self._engine.submit(member.group)
            with closing(stream):
                gate.admitted.set()
                progress = Progress()
                while progress.finish is None:
                    progress = await stream.receive()
                    self._take(member, progress)
                    if progress.token_ids or progress.finish is not None:
                        member.stage = "running"
                        gate.open()
                    await member.tell(progress)
        except Exception as error:
            gate.fail(error)
            await member.tell(Progress(finish="error", error=error))

    def _take(self, member: _Member, progress: Progress) -> None:
        """Check what the engine says of a choice, and count it."""
        (spec,) = member.group.choices
        if spec.logprobs and len(progress.logprobs) != len(progress.token_ids):
            raise ValueError(f"{len(progress.logprobs)} log-probabilities came for {len(progress.token_ids)} tokens")
        self._generated += len(progress.token_ids)
        if progress.drafted is not None:
            self._drafted += progress.drafted
        if progress.admitted is not None and not member.gate.is_open:
            # once for each prompt, as everywhere (FAN-8)
            self._cached += progress.admitted.cached_tokens
            self._computed += len(member.group.prompt) - progress.admitted.cached_tokens

    def _forget(self, member: _Member) -> None:
        member.ticket.end()
        # by identity: another choice may have the uid by now
        if self._members.get(member.ticket.uid) is member:
            del self._members[member.ticket.uid]
