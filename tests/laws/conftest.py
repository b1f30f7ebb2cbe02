"""A tiny model, what it answers to a choice that is all alone, and ways to disturb that.

What it answers alone is known from ``trioserve.testing.lone``. What is compared with that is more than the tokens and
their log-probabilities: a witness device also remembers the bits of the logits from which each token was drawn.
"""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import numpy as np
import pytest
import torch
import trio
from trioserve_kernels.cpu.library import PAGE_TOKENS, library_path

from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.engine.prompts import Prompt
from trioserve.events import ChoiceFinished, FinishReason, PromptScored, TextDelta, TokenLogprob
from trioserve.model.load import load_model
from trioserve.model.loaded import LoadedModel
from trioserve.params import SamplingParams
from trioserve.sched.group import ChoiceSpec, Group, Uid
from trioserve.sched.seeds import child_seed, seed_key
from trioserve.sched.state import SchedulerOptions, SchedulerState, SchedulerStatistics
from trioserve.testing.checkpoints import TinyLlama, write_tiny_llama
from trioserve.testing.lone import LoneGenerator
from trioserve.testing.witness import Witnessed, open_witness

# So many tokens, and so flat a distribution over them, that no two choices agree by chance.
TINY = TinyLlama(vocab_size=961, context_length=256)
# The same for the CPU device, whose heads are multiples of 16.
NATIVE_TINY = attrs.evolve(TINY, head_dim=16)
# No limit of a step that is ever reached.
WHOLE = 4096


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A tiny model gains nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers, 4 heads that share 2 KV heads, width 32, 961 tokens and 256 tokens of context."""
    return write_tiny_llama(tmp_path_factory.mktemp("laws") / "tiny", TINY)


@pytest.fixture(scope="session")
def native_tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("laws") / "native", NATIVE_TINY)


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> Iterator[LoadedModel]:
    model = load_model(tiny_folder)
    yield model
    model.weights.close()


@attrs.define(eq=False)
class Told:
    """A choice in a Server, and what it was told so far."""

    prompt: tuple[int, ...]
    params: SamplingParams
    j: int
    stop_ids: frozenset[int]
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprob] = attrs.field(factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    """None: it was not admitted yet."""
    has_left: bool = False


class Server:
    """A scheduler and a device in one loop: an engine without its tasks and threads."""

    def __init__(
        self,
        model: LoadedModel,
        oracle: LoneGenerator,
        device: Literal["reference", "cpu"],
        *,
        page_size: int = 4,
        page_count: int = 256,
        max_running: int = 256,
        max_batch_tokens: int = WHOLE,
        prefix_cache: bool = True,
        lookup_rows: int = 0,
        lookup_tokens: int = 4,
    ) -> None:
        options = SchedulerOptions(
            page_size=page_size,
            page_count=page_count,
            max_running=max_running,
            max_queued=1000,
            max_batch_tokens=max_batch_tokens,
            prefix_cache=prefix_cache,
            lookup_rows=lookup_rows,
            lookup_tokens=lookup_tokens,
        )
        self.state = SchedulerState(options)
        self.device = open_witness(model, device, page_size=page_size, page_count=page_count)
        self.told: dict[Uid, Told] = {}
        self.most_rows = 0
        self._oracle = oracle
        self._groups = 0

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        stop_ids: frozenset[int] = frozenset(),
        prediction: Sequence[int] | None = None,
    ) -> list[Uid]:
        """The uids of the choices, in index order."""
        assert params.seed is not None
        assert params.temperature is not None
        assert params.max_tokens is not None
        matcher = self._oracle.matcher(params.structure)
        specs = tuple(
            ChoiceSpec(
                uid=Uid(f"{j}_{self._groups}"),
                seed=seed_key(child_seed(params.seed, j)),
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                max_tokens=params.max_tokens,
                stop_ids=stop_ids,
                min_tokens=params.min_tokens,
                presence_penalty=params.presence_penalty,
                frequency_penalty=params.frequency_penalty,
                repetition_penalty=params.repetition_penalty,
                biases=params.logit_bias,
                matcher=matcher,
                logprobs=wanted(params.logprobs),
            )
            for j in range(params.n)
        )
        group = Group(
            id=str(self._groups),
            prompt=array("i", prompt),
            choices=specs,
            prompt_lookup=True,
            prediction=None if prediction is None else array("i", prediction),
            prompt_logprobs=wanted(params.prompt_logprobs),
            priority=params.priority,
            cache_salt=(params.cache_salt or "").encode(),
        )
        self.state.submit(group, 0.0)
        self._groups += 1
        for j, spec in enumerate(specs):
            self.told[spec.uid] = Told(tuple(prompt), params, j, stop_ids)
        return [spec.uid for spec in specs]

    def predict(self, prompt: Sequence[int], params: SamplingParams, *, mistakes: int) -> list[int]:
        """What choice 0 is going to say; every so many tokens are wrong, unless that is 0."""
        tokens = self._oracle.answer(prompt, params).tokens
        return [token ^ 1 if mistakes and t % mistakes == 0 else token for t, token in enumerate(tokens, start=1)]

    def pause(self, uids: Iterable[Uid]) -> None:
        """Let choices rest until ``resume``. Those that are gone by then are no matter."""
        for uid in uids:
            self.state.pause(uid)

    def resume(self, uids: Iterable[Uid]) -> None:
        for uid in uids:
            self.state.drained(uid)

    def step(self, *, leaving: Iterable[Uid] = ()) -> bool:
        """One step, during which some choices are aborted. False: nothing can run."""
        plan = self.state.plan(0.0)
        for uid in leaving:
            self.told[uid].has_left |= self.state.abort(uid)
        if plan is None:
            return False
        self.most_rows = max(self.most_rows, len(plan.rows.tokens))
        for delivery in self.state.commit(plan, self.device.run(plan)):
            told = self.told[delivery.uid]
            assert not told.has_left
            assert told.finish is None
            told.tokens += delivery.token_ids
            told.logprobs += delivery.logprobs
            told.finish = delivery.finish
            if delivery.prompt_logprobs is not None:
                assert told.prompt_logprobs is None
                told.prompt_logprobs = delivery.prompt_logprobs
            if delivery.admitted is not None:
                told.cached_tokens = delivery.admitted.cached_tokens
        self.state.check()
        return True

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.step()

    def finish(self) -> SchedulerStatistics:
        """Run to the end, and compare every choice with what it is alone (FAN-15)."""
        while self.step():
            pass
        assert self.state.idle
        options = self.state.options
        capacity = min(options.page_size * options.page_count, TINY.context_length)
        expected: set[Witnessed] = set()
        for uid, told in self.told.items():
            ask = functools.partial(
                self._oracle.answer, told.prompt, told.params, told.j, stop_ids=told.stop_ids, capacity=capacity
            )
            lone = ask()
            expected.update(lone.witnessed)
            if options.lookup_rows:
                # a right draft may reach past a stop id, where the choice alone draws nothing
                expected.update(ask(passes_stops=True).witnessed)
            logprobs = [cut(score, told.params.logprobs) for score in lone.logprobs]
            if told.has_left:
                assert told.finish is None
                assert tuple(told.tokens) == lone.tokens[: len(told.tokens)], uid
                logprobs = logprobs[: len(told.tokens)]
            else:
                assert (uid, tuple(told.tokens), told.finish) == (uid, lone.tokens, lone.finish)
            assert told.logprobs == ([] if told.params.logprobs is None else logprobs), uid
            if told.params.prompt_logprobs is not None:
                scores = self._oracle.scores(told.prompt)
                expected.update(scores.witnessed)
                self._check_prompt(told, [cut(score, told.params.prompt_logprobs) for score in scores.logprobs])
        assert set(self.device.witnessed) <= expected, "a token was drawn from other logits than it is alone"
        return self.state.statistics()

    @staticmethod
    def _check_prompt(told: Told, scores: list[TokenLogprob | None]) -> None:
        if told.prompt_logprobs is None:
            assert told.has_left
            assert not told.tokens
            return
        assert list(told.prompt_logprobs) == scores
        assert told.cached_tokens == 0


def wanted(likeliest: int | None) -> int:
    """As RowArrays.logprobs has it."""
    return 0 if likeliest is None else 1 + likeliest


def cut(score: TokenLogprob | None, likeliest: int | None) -> TokenLogprob | None:
    """With so many of the likeliest tokens, at most as many as there are."""
    return None if score is None else attrs.evolve(score, top=score.top[: likeliest or 0])


@pytest.fixture(scope="session")
def oracle(tiny_model: LoadedModel) -> LoneGenerator:
    return LoneGenerator(tiny_model, "reference")


OpenServer = Callable[..., Server]


@pytest.fixture(scope="session")
def open_server(tiny_model: LoadedModel, oracle: LoneGenerator) -> OpenServer:
    """Makes a Server of the tiny model on the reference device; arguments are those of SchedulerOptions."""

    def open_(**options: int) -> Server:
        return Server(tiny_model, oracle, "reference", **options)  # type: ignore[arg-type]  # bools are ints

    return open_


@pytest.fixture(scope="session")
def open_native_server(native_tiny_folder: Path) -> Iterator[OpenServer]:
    """Makes a Server of a tiny model on the CPU device, which is closed when the next one is made."""
    if library_path() is None:
        pytest.skip("there are no native kernels")
    model = load_model(native_tiny_folder)
    oracle = LoneGenerator(model, "cpu")
    opened: list[Server] = []

    def open_(**options: int) -> Server:
        while opened:
            opened.pop().device.close()
        options.setdefault("page_size", PAGE_TOKENS)
        opened.append(Server(model, oracle, "cpu", **options))  # type: ignore[arg-type]  # bools are ints
        return opened[0]

    yield open_
    while opened:
        opened.pop().device.close()
    oracle.close()
    model.weights.close()


@pytest.fixture(scope="session")
def some_tokens() -> Callable[[int, int], list[int]]:
    """``count`` ordinary token ids that follow from a seed."""

    def make(seed: int, count: int) -> list[int]:
        return [int(token) for token in np.random.default_rng(seed).integers(3, TINY.vocab_size, count)]

    return make


@attrs.frozen
class Said:
    """What one choice of an engine said: all of it that may not depend on circumstances."""

    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason
    seed: int
    completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    """Told in events only, not in an Answer."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder: Path, native_tiny_folder: Path) -> OpenEngine:
    """Opens an engine of a tiny model, on the reference device if nothing else is said.

    Arguments are those of EngineOptions. A test that hangs in it fails.
    """

    @asynccontextmanager
    async def open_(**options: object) -> AsyncIterator[Engine]:
        chosen = EngineOptions(**({"device": "reference", "threads": 1} | options))  # type: ignore[arg-type]
        with trio.fail_after(60):
            async with open_engine(native_tiny_folder if chosen.device == "cpu" else tiny_folder, chosen) as engine:
                yield engine
                engine.check()

    return open_


@pytest.fixture(scope="session")
def say_whole() -> Callable[..., Awaitable[list[Said]]]:
    """Waits for the whole answer: what each choice says, in index order."""

    async def complete(engine: Engine, prompt: Prompt | Sequence[Prompt], params: SamplingParams) -> list[Said]:
        return [
            Said(choice.text, choice.token_ids, choice.reason, choice.seed, choice.usage.completion_tokens)
            for choice in (await engine.complete(prompt, params)).choices
        ]

    return complete


@pytest.fixture(scope="session")
def say_streamed() -> Callable[..., Awaitable[list[Said]]]:
    """Reads the events as they come: what each choice says, in index order. ``watch`` is called after each event."""

    async def stream(
        engine: Engine,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams,
        *,
        watch: Callable[[], object] = lambda: None,
    ) -> list[Said]:
        deltas: dict[int, list[TextDelta]] = defaultdict(list)
        finished: dict[int, ChoiceFinished] = {}
        scored: dict[int, PromptScored] = {}
        async with engine.generate(prompt, params) as generation:
            async for event in generation:
                if isinstance(event, PromptScored):
                    assert event.prompt not in scored
                    scored[event.prompt] = event
                    watch()
                    continue
                assert event.index not in finished
                if isinstance(event, TextDelta):
                    # what was told is never taken back: there is nothing but more
                    deltas[event.index].append(event)
                else:
                    finished[event.index] = event
                watch()
        return [
            Said(
                "".join(delta.text for delta in deltas[index]),
                tuple(token_id for delta in deltas[index] for token_id in delta.token_ids),
                end.reason,
                end.seed,
                end.usage.completion_tokens,
                tuple(score for delta in deltas[index] for score in delta.logprobs),
                scored[index // params.n].logprobs if scored else None,
            )
            for index, end in sorted(finished.items())
        ]

    return stream


@pytest.fixture(scope="session")
def say_alone(
    tiny_engine: OpenEngine, say_whole: Callable, say_streamed: Callable
) -> Callable[..., Awaitable[list[Said]]]:
    """Asks for each choice in a request of its own, one after the other, in an engine that finds nothing cached."""

    known: dict[tuple[Prompt, SamplingParams, str], list[Said]] = {}

    async def ask(prompt: Prompt, params: SamplingParams, *, device: str = "reference") -> list[Said]:
        key = (prompt if isinstance(prompt, str) else tuple(prompt), params, device)
        if key not in known:
            known[key] = await ask_anew(prompt, params, device)
        return known[key]

    async def ask_anew(prompt: Prompt, params: SamplingParams, device: str) -> list[Said]:
        assert params.seed is not None
        said: list[Said] = []
        # an Answer has no log-probabilities
        say = say_whole if params.logprobs is None and params.prompt_logprobs is None else say_streamed
        async with tiny_engine(prefix_cache=False, device=device) as engine:
            for j in range(params.n):
                seed = (params.seed + j + 2**63) % 2**64 - 2**63
                said += await say(engine, prompt, attrs.evolve(params, n=1, seed=seed))
        return said

    return ask
