"""Complaints about other servers, replayed on a real model and a real device. Each test names its case."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from trioserve.engine.engine import Engine
from trioserve.errors import ParamError
from trioserve.events import TextDelta
from trioserve.params import SamplingParams

Tokens = Callable[[int, int], list[int]]
Say = Callable[..., Awaitable[list]]


async def gather(*calls: Callable[[], Awaitable[list]]) -> list[list]:
    """What each of some calls returns, made all at once."""
    results: list[list] = [[] for _ in calls]

    async def call(index: int) -> None:
        results[index] = await calls[index]()

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(call, index)
    return results


def ask(say: Say, engine: Engine, prompt: object, params: SamplingParams) -> Callable[[], Awaitable[list]]:
    return lambda: say(engine, prompt, params)


async def test_n_choices_of_a_seed_are_distinct_and_repeatable(
    tiny_engine: Callable, say_whole: Say, say_alone: Say
) -> None:
    # case n-seed-distinct-and-repeatable
    prompt, params = "name a colour", SamplingParams(n=4, seed=7, temperature=1.5, max_tokens=12)
    async with tiny_engine() as engine:
        first = await say_whole(engine, prompt, params)
        second = await say_whole(engine, prompt, params)
        mates = [
            ask(say_whole, engine, f"name {number}", SamplingParams(n=2, temperature=1.0, max_tokens=20))
            for number in range(8)
        ]
        third = (await gather(*mates, ask(say_whole, engine, prompt, params)))[-1]
        unseeded = [await say_whole(engine, prompt, attrs.evolve(params, seed=None)) for _ in range(2)]
    assert first == second == third == await say_alone(prompt, params)
    assert len({choice.text for choice in first}) == 4
    assert not {choice.text for choice in unseeded[0]} & {choice.text for choice in unseeded[1]}


async def test_a_seed_does_not_depend_on_batch_mates(tiny_engine: Callable, say_whole: Say, say_alone: Say) -> None:
    # case seed-batch-mates
    params = SamplingParams(seed=42, temperature=0.9, max_tokens=24)
    alone = await say_alone("a", params)
    greedy = attrs.evolve(params, temperature=0.0)
    async with tiny_engine(page_size=4) as engine:
        for mates in (
            [attrs.evolve(params, seed=None)] * 7,
            [params] * 7,
            [greedy, attrs.evolve(params, temperature=1e-4)] * 3,
        ):
            said = await gather(*(ask(say_whole, engine, "a", each) for each in [*mates, params]))
            assert said[-1] == alone
            by_params: dict[SamplingParams, list] = {}
            for each, answer in zip([*mates, params], said, strict=True):
                if each.seeded:
                    assert by_params.setdefault(each, answer) == answer
        unseeded = await gather(*(ask(say_whole, engine, "a", attrs.evolve(params, seed=None)) for _ in range(2)))
        assert unseeded[0] != unseeded[1]
        cold = await say_whole(engine, "a", attrs.evolve(params, temperature=1e-4))
        assert cold == await say_alone("a", greedy)
    async with tiny_engine(page_size=1, kv_tokens=40, max_batch_tokens=3) as engine:
        said = await gather(*[ask(say_whole, engine, "a", params)] * 2)
        assert engine.statistics().scheduler.preemptions > 0
    assert said == [alone, alone]


async def transcript(engine: Engine, prompt: object, params: SamplingParams) -> list:
    """All that a client of a stream is told: the text, the tokens, the end with its usage, and the prompt's."""
    text, ids, ends = "", [], []
    async with engine.generate(prompt, params) as generation:  # type: ignore[arg-type]
        async for event in generation:
            if isinstance(event, TextDelta):
                text += event.text
                ids += event.token_ids
            else:
                ends.append(event)
    return [text, ids, ends, generation.prompt_tokens, generation.cached_tokens]


async def test_the_same_output_from_a_small_pool_and_a_large_one(tiny_engine: Callable, some_tokens: Tokens) -> None:
    # case preempt-same-output: 40 pages or 4000
    prompts = [some_tokens(200 + number, 60) for number in range(8)]
    params = [
        SamplingParams(temperature=0.0 if number < 2 else 1.1, seed=number, max_tokens=100, stop=("qu", "xyz"))
        for number in range(8)
    ]
    told = []
    for pages in (40, 4000):
        async with tiny_engine(kv_tokens=16 * pages) as engine:
            requests = zip(prompts, params, strict=True)
            told.append(await gather(*[functools.partial(transcript, engine, *request) for request in requests]))
            statistics = engine.statistics().scheduler
        assert (statistics.preemptions > 0) == (pages == 40)
        # what was computed again is in no count but its own
        assert statistics.prompt_tokens_computed == 8 * 60
    small, large = told
    assert small == large
    assert sum(len(ids) for _, ids, *_ in small) > 400
    for _, ids, ends, *prompt_usage in small:
        assert [end.usage.completion_tokens for end in ends] == [len(ids)]
        assert prompt_usage == [60, 0]
    assert {end.reason for _, _, (end,), *_ in small} == {"stop", "length"}


async def test_a_prompt_that_can_never_fit_is_refused_and_others_run(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_alone: Say
) -> None:
    # case pool-exhaustion: 64 tokens of memory, a context of 256, and 8 tokens a step
    prompt, params = some_tokens(300, 50), SamplingParams(n=2, seed=5, temperature=1.0, max_tokens=100)
    behind = SamplingParams(n=2, seed=9, temperature=1.0, max_tokens=5)
    async with tiny_engine(page_size=4, kv_tokens=64, max_batch_tokens=8) as engine:
        with pytest.raises(ParamError, match="at most 64 fit in memory") as caught:
            await engine.complete(some_tokens(301, 64), params)
        assert caught.value.param == "prompt"
        calls = [ask(say_whole, engine, prompt, params)] * 10
        *many, last = await gather(*calls, ask(say_whole, engine, "behind", behind))
    # until memory ends: 14 of the 100 tokens
    cut = await say_alone(prompt, attrs.evolve(params, max_tokens=64 - 50))
    assert [choice.reason for choice in cut] == ["length", "length"]
    assert many == [cut] * 10
    assert last == await say_alone("behind", behind)


async def test_more_choices_than_slots(
    tiny_engine: Callable, some_tokens: Tokens, say_streamed: Say, say_alone: Say
) -> None:
    # case huge-n
    prompt, params = some_tokens(400, 3), SamplingParams(n=64, seed=1, temperature=1.0, max_tokens=4)
    running: list[int] = []
    async with tiny_engine(max_running=8) as engine:
        said = await say_streamed(
            engine, prompt, params, watch=lambda: running.append(engine.statistics().scheduler.running)
        )
    assert max(running) <= 8
    assert said == await say_alone(prompt, params)
    assert [choice.seed for choice in said] == list(range(1, 65))
