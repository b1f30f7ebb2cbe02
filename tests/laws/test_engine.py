"""FAN-15 in a whole engine: choice j of a request is the answer to a request for one choice with seed + j.

What is compared: text, token ids, finish reason, the seed that is told, and the number of tokens that is charged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import trio

from trioserve.device.reference import ReferenceDevice
from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.params import INT64_MAX, ChoiceParams, Limits, SamplingParams

Tokens = Callable[[int, int], list[int]]
Say = Callable[..., Awaitable[list]]

PARAMS = SamplingParams(n=4, seed=11, temperature=1.2, top_p=0.95, max_tokens=14)
CONDITIONS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "chunks of 1": {"max_batch_tokens": 1},
    "chunks of 2": {"max_batch_tokens": 2},
    "chunks of 16": {"max_batch_tokens": 16},
    "chunks of 17": {"max_batch_tokens": 17},
    "whole prompts": {"max_batch_tokens": 4096},
    "pages of 1": {"page_size": 1},
    "pages of 4": {"page_size": 4},
    "no cache": {"prefix_cache": False},
    "forked late": {"max_running": 3},
    "one at a time": {"max_running": 1, "max_batch_tokens": 3},
}


def any_request(number: int, some_tokens: Tokens) -> tuple[list[int], SamplingParams]:
    """The prompt and the parameters that follow from a number."""
    random = np.random.default_rng(number)
    params = SamplingParams(
        n=int(random.integers(2, 7)),
        seed=int(random.integers(-(2**63), 2**63 - 10)),
        temperature=float(random.uniform(0.3, 2.0)),
        top_p=float(random.choice([1.0, 0.9])),
        top_k=int(random.choice([-1, 400])),
        min_p=float(random.choice([0.0, 0.01])),
        max_tokens=int(random.integers(3, 16)),
    )
    return some_tokens(number, int(random.integers(1, 50))), params


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_any_request_in_any_engine(
    tiny_engine: Callable,
    some_tokens: Tokens,
    say_whole: Say,
    say_streamed: Say,
    say_alone: Say,
    condition: str,
    streamed: bool,
) -> None:
    prompt, params = any_request(list(CONDITIONS).index(condition), some_tokens)
    async with tiny_engine(**CONDITIONS[condition]) as engine:
        said = await (say_streamed if streamed else say_whole)(engine, prompt, params)
    assert said == await say_alone(prompt, params)
    assert len({choice.token_ids for choice in said}) == params.n


async def test_an_engine_draws_what_the_device_draws_without_an_engine(
    oracle: object, some_tokens: Tokens, say_alone: Say
) -> None:
    # or the engine could agree with itself about something else
    prompt = some_tokens(100, 21)
    for j, choice in enumerate(await say_alone(prompt, PARAMS)):
        lone = oracle.answer(prompt, PARAMS, j, stop_ids=frozenset({2}))  # type: ignore[attr-defined]
        assert (choice.token_ids, choice.reason) == (lone.tokens, lone.finish)


async def be_a_stranger(
    engine: Engine, number: int, prompt: list[int], may_leave: trio.Event, *, task_status: trio.TaskStatus
) -> None:
    """Ask for something else, which begins the same or not, without end; every third one leaves when it may."""
    params = SamplingParams(
        n=1 + number % 4, seed=None if number % 2 else 11, temperature=0.5 * (1 + number % 3), ignore_eos=True
    )
    async with engine.generate(prompt[: 7 * (number % 4)] + [number + 3] * (number + 1), params) as generation:
        task_status.started()
        async for _ in generation:
            if number % 3 == 0 and may_leave.is_set():
                return


async def test_more_than_32_strangers_in_the_batch(
    tiny_engine: Callable, some_tokens: Tokens, say_streamed: Say, say_alone: Say
) -> None:
    # case seed-batch-mates
    prompt = some_tokens(101, 26)
    running: list[int] = []
    may_leave = trio.Event()

    def watch() -> None:
        running.append(engine.statistics().scheduler.running)
        if len(running) > PARAMS.n * 4:
            may_leave.set()

    async with tiny_engine(page_size=4) as engine, trio.open_nursery() as strangers:
        for number in range(16):
            await strangers.start(be_a_stranger, engine, number, prompt, may_leave)
        said = await say_streamed(engine, prompt, PARAMS, watch=watch)
        strangers.cancel_scope.cancel()
    assert max(running) >= 4 + 32
    assert min(running[:-4]) < 4 + 32, "nobody left before this was over"
    assert said == await say_alone(prompt, PARAMS)


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_preemptions(
    tiny_engine: Callable, some_tokens: Tokens, say_streamed: Say, say_alone: Say, page_size: int
) -> None:
    params = attrs.evolve(PARAMS, n=6, max_tokens=40)
    prompt = some_tokens(102, 17)
    # of six choices with 57 tokens in the end, two fit
    async with tiny_engine(page_size=page_size, kv_tokens=128) as engine:
        said = await say_streamed(engine, prompt, params)
        assert engine.statistics().scheduler.preemptions > 0
    assert said == await say_alone(prompt, params)


async def test_a_cold_and_a_warm_cache(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say
) -> None:
    prompt = some_tokens(103, 33)
    async with tiny_engine(page_size=4) as engine:
        await engine.complete([*prompt[:18], 7, 7, 7], SamplingParams(max_tokens=2))
        cached = []
        for _ in range(2):
            before = engine.statistics().scheduler.prompt_tokens_cached
            assert await say_whole(engine, prompt, PARAMS) == await say_alone(prompt, PARAMS)
            cached.append(engine.statistics().scheduler.prompt_tokens_cached - before)
        answer = await engine.complete(prompt, PARAMS)
    assert cached == [16, 32]
    assert answer.cached_tokens == 32
    # FAN-21: the sums agree, whatever was found
    assert [choice.usage.cached_tokens for choice in answer.choices] == [32, 0, 0, 0]
    assert [choice.usage.shared_tokens for choice in answer.choices] == [0, 33, 33, 33]


@pytest.mark.parametrize("form", ["text", "ids"])
async def test_every_prompt_of_a_list_is_answered_as_if_it_came_alone(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say, form: str
) -> None:
    # FAN-4, FAN-14: j counts inside its prompt
    texts = ["the rain", "the rain in spain", "a", "the rain"]
    prompts = texts if form == "text" else [some_tokens(104, length) for length in (16, 17, 1, 16)]
    async with tiny_engine(max_batch_tokens=9) as engine:
        said = await say_whole(engine, prompts, PARAMS)
    assert len(said) == 16
    for p, prompt in enumerate(prompts):
        assert said[4 * p : 4 * p + 4] == await say_alone(prompt, PARAMS)


async def test_stop_strings(tiny_engine: Callable, say_streamed: Say, say_alone: Say) -> None:
    # FAN-9; cases preempt-same-output, n-finish-independently
    params = attrs.evolve(PARAMS, n=12, max_tokens=24, stop=("e", "th", "a"))
    async with tiny_engine(page_size=4, kv_tokens=48) as engine:
        said = await say_streamed(engine, "once upon a time", params)
        assert engine.statistics().scheduler.preemptions > 0
    assert said == await say_alone("once upon a time", params)
    assert {choice.reason for choice in said} == {"stop", "length"}
    assert len({choice.completion_tokens for choice in said}) > 3


async def test_a_choice_that_is_cancelled_and_its_siblings(
    tiny_engine: Callable, some_tokens: Tokens, say_alone: Say
) -> None:
    prompt, params = some_tokens(105, 12), attrs.evolve(PARAMS, max_tokens=40)
    alone = await say_alone(prompt, params)
    ids: list[list[int]] = [[], [], [], []]
    async with tiny_engine() as engine, engine.generate(prompt, params) as generation:
        async for event in generation:
            if hasattr(event, "token_ids"):
                ids[event.index] += event.token_ids
            if len(ids[2]) >= 5:
                generation.cancel_choice(2)
    whole = [list(choice.token_ids) for choice in alone]
    assert [ids[j] for j in (0, 1, 3)] == [whole[j] for j in (0, 1, 3)]
    assert 5 <= len(ids[2]) < 40
    assert ids[2] == whole[2][: len(ids[2])]


async def test_a_reader_that_is_slow(tiny_engine: Callable, some_tokens: Tokens, say_alone: Say) -> None:  # FAN-29
    prompt, params = some_tokens(106, 12), attrs.evolve(PARAMS, n=2, max_tokens=60)
    ids: list[list[int]] = [[], []]
    async with tiny_engine(max_backlog=1) as engine, engine.generate(prompt, params) as generation:
        while engine.statistics().scheduler.paused < 2:  # noqa: ASYNC110  # nobody is told when that is
            await trio.sleep(0.001)
        async for event in generation:
            if hasattr(event, "token_ids"):
                ids[event.index] += event.token_ids
    assert ids == [list(choice.token_ids) for choice in await say_alone(prompt, params)]


async def test_choices_with_parameters_of_their_own(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say
) -> None:
    # FAN-33
    prompt = some_tokens(107, 20)
    own = [
        ChoiceParams(temperature=0.0),
        ChoiceParams(temperature=2.0, seed=INT64_MAX, max_tokens=9),
        ChoiceParams(top_k=3),
        ChoiceParams(),
    ]
    async with tiny_engine(page_size=4) as engine:
        said = await say_whole(engine, prompt, attrs.evolve(PARAMS, choice_params=own))
        assert engine.statistics().scheduler.prompt_tokens_computed == 20
    assert said == [
        *await say_alone(prompt, attrs.evolve(PARAMS, n=1, temperature=0.0)),
        *await say_alone(prompt, attrs.evolve(PARAMS, n=1, temperature=2.0, seed=INT64_MAX, max_tokens=9)),
        *await say_alone(prompt, attrs.evolve(PARAMS, n=1, seed=11 + 2, top_k=3)),
        *await say_alone(prompt, attrs.evolve(PARAMS, n=1, seed=11 + 3)),
    ]


async def test_copies_of_a_greedy_choice(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say
) -> None:
    # FAN-6
    prompt, params = some_tokens(108, 20), attrs.evolve(PARAMS, temperature=0.0, n=3)
    async with tiny_engine(limits=Limits(greedy_n="replicate")) as engine:
        said = await say_whole(engine, prompt, params)
    assert said == await say_alone(prompt, params)


@pytest.mark.parametrize("condition", ["as it comes", "chunks of 2", "pages of 1", "forked late", "a tiny pool"])
async def test_the_best_candidates_and_how_likely_they_are(
    tiny_engine: Callable, oracle: object, some_tokens: Tokens, condition: str
) -> None:
    # FAN-32
    prompt, params = some_tokens(110, 17), attrs.evolve(PARAMS, n=3, best_of=6, max_tokens=40)
    settings = {**CONDITIONS, "a tiny pool": {"page_size": 4, "kv_tokens": 128}}[condition]
    async with tiny_engine(**settings) as engine:
        answer = await engine.complete(prompt, params)
        assert (engine.statistics().scheduler.preemptions > 0) == (condition == "a tiny pool")
    lone = [oracle.answer(prompt, params, j, stop_ids=frozenset({2})) for j in range(6)]  # type: ignore[attr-defined]
    ranked = sorted(range(6), key=lambda j: -lone[j].mean_logprob)
    assert [(choice.seed, choice.token_ids, choice.mean_logprob) for choice in answer.choices] == [
        (params.seed + j, lone[j].tokens, lone[j].mean_logprob) for j in ranked[:3]
    ]
    counts = [len(lone[j].tokens) for j in ranked]
    assert [choice.usage.completion_tokens for choice in answer.choices] == counts[:3]
    assert answer.choices[0].usage.discarded_tokens == sum(counts[3:])


async def test_any_choice_of_a_request_without_a_seed_can_be_replayed(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say
) -> None:
    # FAN-16
    prompt = some_tokens(109, 18)
    async with tiny_engine() as engine:
        first, second = [await say_whole(engine, prompt, attrs.evolve(PARAMS, seed=None)) for _ in range(2)]
    assert len({choice.token_ids for choice in first + second}) == 8
    for choice in first + second:
        assert await say_alone(prompt, attrs.evolve(PARAMS, n=1, seed=choice.seed)) == [choice]


@pytest.mark.parametrize(("threads", "given"), [(None, 3), (1, 1)])
async def test_an_engine_takes_the_threads_that_the_machine_has_unless_told(
    threads: int | None, given: int, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    load = ReferenceDevice.load

    def watched(*args: Any, **settings: Any) -> ReferenceDevice:
        loaded.append(settings["threads"])
        return load(*args, **settings)

    monkeypatch.setattr("trioserve.engine.open.default_threads", lambda: 3)
    monkeypatch.setattr(ReferenceDevice, "load", watched)
    async with open_engine(tiny_folder, EngineOptions(threads=threads)):
        pass
    assert loaded == [given]
