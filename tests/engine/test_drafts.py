"""Drafts through a whole engine: who gets them, what they do to steps and usage, and that answers stay the same."""

from __future__ import annotations

import attrs
import pytest
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import Answer
from trioserve.engine.options import EngineOptions
from trioserve.errors import ParamError
from trioserve.params import Limits, SamplingParams, StopWhen
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say

TEXT = "the cat, the dog, the cat, the dog"
LONG = SamplingParams(max_tokens=60)


def usages(answer: Answer) -> list[tuple[int, int, int]]:
    """Completion, accepted and rejected tokens of each choice."""
    return [
        (
            choice.usage.completion_tokens,
            choice.usage.accepted_prediction_tokens,
            choice.usage.rejected_prediction_tokens,
        )
        for choice in answer.choices
    ]


@pytest.mark.parametrize(
    ("free_rows", "options", "asked", "drafts"),
    [
        (0, {}, None, False),
        (0, {}, True, True),
        (8, {}, None, True),
        (8, {}, False, False),
        (0, {"prompt_lookup": True}, None, True),
        (0, {"prompt_lookup": True}, False, False),
        (8, {"prompt_lookup": False}, None, False),
        (8, {"prompt_lookup": False}, True, True),
        (8, {"lookup_rows": 0}, True, False),
        (0, {"prompt_lookup": True, "lookup_rows": 1}, None, False),
    ],
    ids=str,
)
async def test_the_request_decides_then_the_engine_then_the_device(
    free_rows: int, options: dict[str, object], asked: bool | None, drafts: bool
) -> None:
    block, device = open_fake_engine(say(TEXT), options=attrs.evolve(FAKE_OPTIONS, **options), free_rows=free_rows)  # type: ignore[arg-type]
    async with block as engine:
        answer = await engine.complete("go", attrs.evolve(LONG, prompt_lookup=asked))
        statistics = engine.statistics().scheduler
    assert answer.choices[0].text == TEXT
    ((tokens, accepted, rejected),) = usages(answer)
    assert tokens == len(TEXT) + 1
    assert (accepted > 0) == drafts
    assert (statistics.draft_tokens_accepted, statistics.draft_tokens) == (accepted, accepted + rejected)
    assert len(device.plans) == tokens - accepted


async def test_a_prediction_is_followed_even_without_prompt_lookup() -> None:
    block, device = open_fake_engine(say("a very long answer indeed"))
    prediction = "a very big answer indeed"
    async with block as engine:
        answer = await engine.complete("go", attrs.evolve(LONG, prompt_lookup=False, prediction=prediction))
    assert answer.choices[0].text == "a very long answer indeed"
    ((tokens, accepted, rejected),) = usages(answer)
    assert tokens == 26
    assert accepted >= 14
    assert rejected > 0
    assert len(device.plans) == tokens - accepted


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 5), ({"lookup_tokens": 2}, 3), ({"lookup_rows": 3}, 3), ({"lookup_tokens": 20}, 8)],
    ids=str,
)
async def test_the_options_bound_the_drafts(options: dict[str, object], most: int) -> None:
    block, device = open_fake_engine(say("x" * 40), options=attrs.evolve(FAKE_OPTIONS, **options), free_rows=8)  # type: ignore[arg-type]
    async with block as engine:
        await engine.complete("go", LONG)
    assert max(len(plan.rows.tokens) for plan in device.plans) == most


async def test_an_empty_prediction_predicts_nothing() -> None:
    block, device = open_fake_engine(say("ok"))
    async with block as engine:
        answer = await engine.complete("go", attrs.evolve(LONG, prediction=""))
    assert usages(answer) == [(3, 0, 0)]
    assert len(device.plans) == 3


@pytest.mark.parametrize(
    ("prediction", "words"), [("x" * 100, "maximum context length is 64 tokens"), ("\ud800", "not valid Unicode")]
)
async def test_a_prediction_that_can_not_be_is_refused_before_anything_runs(prediction: str, words: str) -> None:
    block, device = open_fake_engine(say("ok"), context_length=64)
    async with block as engine:
        with pytest.raises(ParamError, match=words) as caught:
            await engine.complete("go", SamplingParams(prediction=prediction))
        assert caught.value.param == "prediction"
        assert engine.statistics().requests == 0
    assert device.plans == []


async def test_each_choice_and_each_prompt_follows_the_prediction_by_itself() -> None:
    texts = ["one two three four", "one two 3 four", "something else", "one two three"]
    block, _ = open_fake_engine(say(texts))
    async with block as engine:
        params = SamplingParams(n=2, seed=0, max_tokens=40, prediction=texts[0])
        first = await engine.complete(["go", "no"], params)
        second = await engine.complete("go", attrs.evolve(params, seed=2))
    assert [choice.text for choice in first.choices] == texts[:2] * 2
    assert [choice.text for choice in second.choices] == texts[2:]
    for _, accepted, _ in usages(first):
        assert accepted > 0


@pytest.mark.parametrize("stop", range(1, 16))
async def test_a_stop_string_in_the_middle_of_a_draft_ends_the_count_there(stop: int) -> None:  # FAN-21
    text = "0123456789abcdefghij"
    block, _ = open_fake_engine(say(text))
    async with block as engine:
        answer = await engine.complete("go", attrs.evolve(LONG, stop=text[stop], prediction=text))
        statistics = engine.statistics().scheduler
    assert answer.choices[0].text == text[:stop]
    ((tokens, accepted, rejected),) = usages(answer)
    assert tokens == stop + 1
    assert 0 <= accepted < tokens
    assert accepted + rejected <= statistics.draft_tokens


async def test_copies_of_a_choice_have_its_usage() -> None:  # FAN-6
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))
    block, _ = open_fake_engine(say(TEXT), options=options, free_rows=8)
    async with block as engine:
        answer = await engine.complete("go", attrs.evolve(LONG, n=3, temperature=0.0))
    assert len(set(usages(answer))) == 1
    assert usages(answer)[0][1] > 0


async def test_a_slow_consumer_gets_everything_in_order() -> None:  # FAN-29
    options = attrs.evolve(FAKE_OPTIONS, max_backlog=3)
    block, _ = open_fake_engine(count_for_ever, options=options, free_rows=8)
    ids: list[int] = []
    async with block as engine, engine.generate("go", SamplingParams(max_tokens=300, seed=0)) as generation:
        async for event in generation:
            if hasattr(event, "token_ids"):
                ids += event.token_ids
            while engine.statistics().scheduler.running:  # noqa: ASYNC110  # nobody is told when it is paused
                await trio.sleep(0.01)
        assert engine.statistics().scheduler.draft_tokens_accepted > 0
    assert ids == [ord("0") + i % 10 for i in range(300)]


async def test_the_end_of_a_request_ends_its_drafts() -> None:  # FAN-27, FAN-31
    block, _ = open_fake_engine(say(["ok", "x" * 200]), free_rows=8)
    async with block as engine:
        params = SamplingParams(n=2, seed=0, max_tokens=200, stop_when=StopWhen(finished=1))
        answer = await engine.complete("go", params)
        assert [choice.reason for choice in answer.choices] == ["stop", "cancelled"]
        # the step in flight still uses the pages
        await trio.sleep(0.02)
        assert engine.statistics().scheduler.pages_held == 0
        engine.check()


def test_rows_are_the_devices_or_the_options() -> None:
    info = DeviceInfo(name="d", vocab_size=9, context_length=9, page_size=1, page_count=9, free_rows=6)
    assert EngineOptions().scheduler_options(info).lookup_rows == 6
    assert EngineOptions(lookup_rows=3).scheduler_options(info).lookup_rows == 3
    assert EngineOptions().scheduler_options(attrs.evolve(info, free_rows=0)).lookup_rows == 8


@pytest.mark.parametrize(("name", "least"), [("lookup_tokens", 1), ("lookup_rows", 0)])
def test_options_that_are_too_small_are_refused(name: str, least: int) -> None:
    EngineOptions(**{name: least})  # type: ignore[arg-type]
    with pytest.raises(ParamError, match=f"{name} must be at least {least}"):
        EngineOptions(**{name: least - 1})  # type: ignore[arg-type]
