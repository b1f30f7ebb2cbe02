"""A generation: one request as a nursery that owns its choice tasks.

Owns: the tickets, the nursery and the event channel of one request.
Must not know: pages, HTTP.

Leaving the block is the only clean-up path. It cancels the nursery, and every ticket that has not ended is
aborted by a synchronous message, so it works from a cancelled scope, after an error, or when the block was
left before the first event.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs
import trio

from trioserve.engine.choice import Choice, PromptUsage
from trioserve.engine.groups import collapse, raise_alone
from trioserve.engine.messages import Submit
from trioserve.engine.prompts import Prompt, as_prompts, check_ids, encode, resolve_max_tokens
from trioserve.engine.ticket import Ticket
from trioserve.errors import TrioserveError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event
from trioserve.params import SamplingParams
from trioserve.sched.group import ChoiceSpec, Group, Uid
from trioserve.sched.outbox import Outbox
from trioserve.sched.seeds import child_seed, seed_key
from trioserve.text.pipeline import ChoiceText

if TYPE_CHECKING:
    from trioserve.engine.engine import Engine


@attrs.frozen(eq=False)
class _Prepared:
    """One prompt, ready to submit."""

    tokens: array[int]
    max_tokens: int


class Generation(trio.abc.ReceiveChannel[Event]):
    """The running answer to one request: a context manager, and a channel of events.

    Made by ``Engine.generate``. Entering tokenizes, checks and submits; whatever is wrong with the request is
    raised there, before anything runs::

        async with engine.generate("Name a colour.", SamplingParams(n=4)) as generation:
            async for event in generation:
                ...

    Events of the choices interleave as they are made; each choice ends with one ChoiceFinished; after the last
    one the channel ends. Leaving the block early aborts what still runs.

    Raises (on leaving the block):
        EngineClosedError: the engine ended before the answer did.
        ChoiceFailedError: a choice failed; its siblings were aborted.
        Exception: the block's own exception comes out unchanged. Never an exception group.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams,
        request_id: str,
        default_max_tokens: int | None,
    ) -> None:
        self.request_id = request_id
        self.params = params
        self._engine = engine
        self._raw_prompts = as_prompts(prompt)
        self._default_max_tokens = default_max_tokens
        self._usage: list[PromptUsage] = []
        self._tickets: list[Ticket] = []
        self._nursery_manager = trio.open_nursery()
        self._cancel_scope: trio.CancelScope | None = None
        self._events, self._receive = trio.open_memory_channel[Event](2 * params.n * len(self._raw_prompts))

    def __repr__(self) -> str:
        live = sum(not ticket.ended for ticket in self._tickets)
        return f"<Generation {self.request_id}: {live} of {len(self._tickets)} choices running>"

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.params.n

    @property
    def prompts(self) -> tuple[PromptUsage, ...]:
        """Length and cache hits of every prompt."""
        return tuple(self._usage)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once whatever n is."""
        return sum(usage.prompt_tokens for usage in self._usage)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache; final once every prompt has been scheduled."""
        return sum(usage.cached_tokens for usage in self._usage)

    async def receive(self) -> Event:
        """The next event of any choice.

        Raises:
            trio.EndOfChannel: every choice has finished.
        """
        return await self._receive.receive()

    def receive_nowait(self) -> Event:
        """The next event if there is one; else trio.WouldBlock, or trio.EndOfChannel after the last."""
        return self._receive.receive_nowait()

    async def aclose(self) -> None:
        """Take no more events. The choices are aborted when the block is left."""
        self._receive.close()
        await trio.lowlevel.checkpoint()

    def cancel_choice(self, index: int) -> None:
        """End one choice with the finish reason "cancelled"; its siblings go on.

        Raises:
            IndexError: there is no such choice.
        """
        self._tickets[index].cancel()

    def cancel(self) -> None:
        """End every choice that still runs with the finish reason "cancelled"."""
        for ticket in self._tickets:
            ticket.cancel()

    async def __aenter__(self) -> Self:
        self._engine.enter(self)
        try:
            prepared = [await self._prepare(prompt, index) for index, prompt in enumerate(self._raw_prompts)]
            self._usage = [PromptUsage(len(each.tokens)) for each in prepared]
            seeds = self._seeds()
            choices = [] if self.params.max_tokens == 0 else await self._submit(prepared, seeds)
            nursery = await self._nursery_manager.__aenter__()
        except BaseException:
            self._release()
            self._engine.leave(self)
            raise
        self._cancel_scope = nursery.cancel_scope
        with self._events:
            for choice in choices:
                nursery.start_soon(
                    choice.run, self.request_id, self._events.clone(), name=f"choice {choice.ticket.uid}"
                )
            if not choices:
                # nothing to generate: every choice is finished before it starts, and costs no step
                for index, seed in enumerate(seeds):
                    usage = ChoiceUsage(completion_tokens=0, shared_tokens=self._shared_tokens(index))
                    self._events.send_nowait(ChoiceFinished(index, "length", usage, seed))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._cancel_scope is not None
        self._cancel_scope.cancel()
        self._release()
        try:
            # not shielded: the nursery's tasks are cancelled already, and none of them waits in a finally
            await self._nursery_manager.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102
        except BaseExceptionGroup as group:
            error = collapse(group, exc)
            if error is not exc:
                raise_alone(error)
        finally:
            self._engine.leave(self)

    def _release(self) -> None:
        """Give everything back: synchronous, idempotent, never refused."""
        self._events.close()
        self._receive.close()
        for ticket in self._tickets:
            ticket.close()

    async def _prepare(self, prompt: Prompt, index: int) -> _Prepared:
        param = "prompt" if len(self._raw_prompts) == 1 else f"prompt.{index}"
        info = self._engine.info
        if isinstance(prompt, str):
            inline = self._engine.options.inline_characters
            tokens = await encode(prompt, self._engine.tokenizer, info, param, inline=inline)
        else:
            await trio.lowlevel.checkpoint()
            tokens = check_ids(prompt, info, param)
        return _Prepared(
            tokens, resolve_max_tokens(self.params.max_tokens, self._default_max_tokens, len(tokens), info)
        )

    def _seeds(self) -> list[int]:
        """FAN-14: the seed of every choice, in index order; j counts inside its prompt."""
        base = self.params.seed if self.params.seeded else None
        if base is None:
            base = self._engine.options.pick_seed()
        return [child_seed(base, j) for j in range(self.n)] * len(self._raw_prompts)

    def _shared_tokens(self, index: int) -> int:
        """Prompt tokens that choice ``index`` takes over from choice 0 of its prompt."""
        return self._usage[index // self.n].prompt_tokens if index % self.n else 0

    async def _submit(self, prepared: list[_Prepared], seeds: list[int]) -> list[Choice]:
        """Submit a group for each prompt, all or none; returns the choices in index order once they are taken."""
        choices: list[Choice] = []
        groups: list[Group] = []
        for p, prompt in enumerate(prepared):
            specs: list[ChoiceSpec] = []
            for j in range(self.n):
                index = p * self.n + j
                ticket = Ticket(self._uid(p, j), self._engine.mailbox, Outbox(self._engine.options.max_backlog))
                text = ChoiceText(self._engine.tokenizer, self.params.stop)
                choices.append(Choice(index, seeds[index], ticket, text, self._shared_tokens(index), self._usage[p]))
                specs.append(self._spec(ticket.uid, seeds[index], prompt.max_tokens))
            groups.append(Group(id=f"{self.request_id}-{p}", prompt=prompt.tokens, choices=tuple(specs)))
        self._tickets = [choice.ticket for choice in choices]
        send_reply, receive_reply = trio.open_memory_channel[TrioserveError | None](1)
        with send_reply, receive_reply:
            self._engine.mailbox.submit(Submit(tuple(groups), tuple(self._tickets), send_reply))
            refusal = await receive_reply.receive()
        if refusal is not None:
            raise refusal
        return choices

    def _uid(self, prompt: int, j: int) -> Uid:
        """FAN-12."""
        if len(self._raw_prompts) > 1:
            return Uid(f"{j}_{self.request_id}-{prompt}")
        return Uid(self.request_id if self.n == 1 else f"{j}_{self.request_id}")

    def _spec(self, uid: Uid, seed: int, max_tokens: int) -> ChoiceSpec:
        params = self.params
        assert params.temperature is not None  # Engine.generate has resolved it
        return ChoiceSpec(
            uid=uid,
            seed=seed_key(seed),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            max_tokens=max_tokens,
            stop_ids=frozenset() if params.ignore_eos else self._engine.tokenizer.eos_ids,
        )
