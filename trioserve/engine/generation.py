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

import trio

from trioserve.engine.choice import Choice, PromptUsage
from trioserve.engine.fan_out import FanOut
from trioserve.engine.groups import collapse, raise_alone
from trioserve.engine.messages import Submit
from trioserve.engine.observer import RequestUsage
from trioserve.engine.prompts import Prompt, as_prompts, encode_prediction
from trioserve.engine.snapshot import RequestSnapshot
from trioserve.engine.verdict import Verdict
from trioserve.engine.watch import RequestWatch
from trioserve.errors import ParamError, TrioserveError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event
from trioserve.params import Pooling, SamplingParams
from trioserve.text.parser import OutputFormat

if TYPE_CHECKING:
    from trioserve.engine.engine import Engine


class Generation(trio.abc.ReceiveChannel[Event]):
    """The running answer to one request: a context manager, and a channel of events.

    Made by ``Engine.generate``. Entering tokenizes, checks and submits; whatever is wrong with the request is
    raised there, before anything runs::

        async with engine.generate("Name a colour.", SamplingParams(n=4)) as generation:
            async for event in generation:
                ...

    Events of the choices interleave as they are made; each choice ends with one ChoiceFinished; after the last
    one the channel ends. Leaving the block early aborts what still runs.

    With ``best_of`` above n, nothing is said of a prompt before all its candidates have finished; then come its n best,
    whole, the best with the lowest index.

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
        alias: str | None,
        default_max_tokens: int | None,
        output: OutputFormat | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.request_id = request_id
        self.alias = alias
        self.params = params
        self._engine = engine
        self._raw_prompts = as_prompts(prompt)
        self._default_max_tokens = default_max_tokens
        self._output = output
        self._pooling = pooling
        self._total = params.candidates * len(self._raw_prompts)
        self._verdict = Verdict(params, self._total, self.cancel)
        self._watch: RequestWatch
        self._usage: list[PromptUsage] = []
        self._choices: list[Choice] = []
        self._cancelled_early: list[int] = []
        self._nursery_manager = trio.open_nursery()
        self._cancel_scope: trio.CancelScope | None = None
        self._events, self._receive = trio.open_memory_channel[Event](2 * self._total)

    def __repr__(self) -> str:
        live = sum(not choice.ticket.ended for choice in self._choices)
        return f"<Generation {self.request_id}: {live} of {len(self._choices)} choices running>"

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

    @property
    def _is_free(self) -> bool:
        """Whether there is nothing to compute."""
        return self.params.max_tokens == 0 and self.params.prompt_logprobs is None and self._pooling is None

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
        """End one choice with the finish reason "cancelled"; its siblings go on, but for copies of it.

        With ``best_of`` above n, ``index`` is that of a candidate: p * best_of + c.

        Raises:
            IndexError: there is no such choice.
        """
        if not 0 <= index < self._total:
            raise IndexError(f"There is no choice {index}; the request has {self._total}.")
        if self._choices:
            self._choices[index * len(self._choices) // self._total].ticket.cancel()
        else:
            self._cancelled_early.append(index)

    def cancel(self) -> None:
        """End every choice that still runs with the finish reason "cancelled"."""
        for choice in self._choices:
            choice.ticket.cancel()
        if not self._choices:
            self._cancelled_early += range(self._total)

    def snapshot(self) -> RequestSnapshot:
        """What there is of it now. Only once it has been entered."""
        return RequestSnapshot(
            id=self.request_id,
            alias=self.alias,
            age_s=trio.current_time() - self._watch.began,
            n=self.n,
            best_of=self.params.candidates,
            prompts=len(self._raw_prompts),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            choices=self._total,
            choices_finished=self._total if self._is_free else self._count(finished=True),
            completion_tokens=self._completion_tokens(),
        )

    async def __aenter__(self) -> Self:
        watch = RequestWatch(self._engine.observers, self.request_id, self.params, self._total)
        try:
            self._engine.enter(self)
        except TrioserveError as error:
            watch.not_entered(error, self._engine.leaving)
            raise
        self._watch = watch
        try:
            prompts = [await self._tokenize(prompt, index) for index, prompt in enumerate(self._raw_prompts)]
            self._usage = [PromptUsage(index, tokens) for index, tokens in enumerate(prompts)]
            prediction = await self._tokenize_prediction()
            structure = self.params.structure
            matcher = None if structure is None else await self._engine.structures.compile(structure)
            fan_out = FanOut(
                self.request_id,
                self.params,
                self._engine.options,
                prompts,
                self._usage,
                prediction,
                matcher,
                output=self._output,
                pooling=self._pooling,
            )
            if not self._is_free:
                await self._submit(fan_out)
            nursery = await self._nursery_manager.__aenter__()
        except BaseException as error:
            self._release()
            self._engine.leave(self)
            self._watch.not_entered(error, self._engine.leaving)
            raise
        self._cancel_scope = nursery.cancel_scope
        with self._events:
            for choice in fan_out.choices:
                nursery.start_soon(choice.run, self._events.clone(), name=f"choice {choice.ticket.uid}")
            if self._is_free:
                self._finish_all(fan_out)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._cancel_scope is not None
        self._cancel_scope.cancel()
        self._release()
        failure: BaseException | None = None
        try:
            # not shielded: the nursery's tasks are cancelled already, and none of them waits in a finally
            await self._nursery_manager.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102
        except BaseExceptionGroup as group:
            error = collapse(group, exc)
            if error is not exc:
                failure = error
                raise_alone(error)
        finally:
            self._engine.leave(self)
            longest = max((choice.completion_tokens for choice in self._choices), default=0)
            usage = RequestUsage(
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                completion_tokens=self._completion_tokens(),
            )
            self._watch.ended(usage, longest, self._count(finished=False), failure, self._engine.leaving)

    def _finish_all(self, fan_out: FanOut) -> None:
        """Of no tokens every choice is finished before it starts, and costs no step."""
        endings: list[Event] = []
        for place in fan_out.places():
            prompt_tokens = self._usage[place.index // self.params.candidates].prompt_tokens
            self._watch.choice(prompt_tokens, 0).finished("length", 0)
            usage = ChoiceUsage(completion_tokens=0, shared_tokens=place.shared_tokens)
            endings.append(ChoiceFinished(place.index, "length", usage, place.seed))
        for event in endings if fan_out.ranking is None else fan_out.ranking.feed(endings):
            self._events.send_nowait(event)

    def _release(self) -> None:
        """Give everything back: synchronous, idempotent, never refused."""
        self._events.close()
        self._receive.close()
        for choice in self._choices:
            choice.ticket.close()

    def _completion_tokens(self) -> int:
        return sum(choice.completion_tokens * len(choice.places) for choice in self._choices)

    def _count(self, *, finished: bool) -> int:
        return sum(len(choice.places) for choice in self._choices if choice.finished == finished)

    async def _tokenize(self, prompt: Prompt, index: int) -> array[int]:
        param = "prompt" if len(self._raw_prompts) == 1 else f"prompt.{index}"
        return await self._engine.encode_prompt(prompt, param)

    async def _tokenize_prediction(self) -> array[int] | None:
        text, engine = self.params.prediction, self._engine
        if text is None:
            return None
        return await encode_prediction(text, engine.tokenizer, engine.info, inline=engine.options.inline_characters)

    async def _submit(self, fan_out: FanOut) -> None:
        """Submit all groups or none, and wait for the answer to that (FAN-10)."""
        engine = self._engine
        fan_out.build(
            engine.tokenizer, engine.info, self._default_max_tokens, engine.mailbox, self._verdict, self._watch
        )
        self._choices = fan_out.choices
        send_reply, receive_reply = trio.open_memory_channel[TrioserveError | None](1)
        with send_reply, receive_reply:
            tickets = tuple(choice.ticket for choice in fan_out.choices)
            engine.mailbox.submit(Submit(tuple(fan_out.groups), tickets, send_reply))
            # while it was tokenized there was no choice to tell
            for index in self._cancelled_early:
                self.cancel_choice(index)
            refusal = await receive_reply.receive()
        if refusal is not None:
            if isinstance(refusal, ParamError) and self.params.structure is not None:
                refusal.rename({"structure": self.params.structure.param})
            raise refusal
