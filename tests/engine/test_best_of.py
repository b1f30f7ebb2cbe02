"""best_of in a whole engine: more candidates than choices, and the likeliest of them (FAN-32)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import attrs
import pytest
import trio

from trioserve.engine.choice import Choice, Place, PromptUsage
from trioserve.engine.ranking import Ranking
from trioserve.engine.ticket import Mailbox, Ticket
from trioserve.engine.verdict import Verdict
from trioserve.engine.watch import RequestWatch
from trioserve.errors import ChoiceFailedError, ParamError, QueueFullError
from trioserve.events import ChoiceFinished, Event, TextDelta, TokenLogprob
from trioserve.params import ChoiceParams, Limits, SamplingParams, StopWhen
from trioserve.sched.group import Uid
from trioserve.sched.outbox import Outbox, Progress
from trioserve.testing.device import Draw, Score
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.tokenizer import EOS, BrokenTokenizer, ByteTokenizer
from trioserve.text.pipeline import ChoiceText

REPLICATE = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))


def score_by_seed(*logprobs: float) -> Score:
    """Every token of the choice with seed s has the log-probability ``logprobs[s]``."""
    return lambda draw, token: logprobs[draw.seed]


async def test_the_likeliest_candidates_are_the_choices_best_first() -> None:
    score = score_by_seed(-3.0, -1.0, -2.0, -4.0)
    block, device = open_fake_engine(say(["zero", "one", "two", "three"]), score=score)
    async with block as engine:
        answer = await engine.complete("p" * 50, SamplingParams(n=2, best_of=4))
    assert [(choice.index, choice.text, choice.seed) for choice in answer.choices] == [(0, "one", 1), (1, "two", 2)]
    assert [choice.mean_logprob for choice in answer.choices] == [-1.0, -2.0]
    # one prefill for all candidates (FAN-8)
    assert sum(plan.spans.positions.count(0) for plan in device.plans) == 1


async def test_of_candidates_that_are_as_likely_the_first_is_better() -> None:
    block, _ = open_fake_engine(say(["a", "b", "c", "d"]), score=score_by_seed(-2.0, -1.0, -1.0, -1.0))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=3, best_of=4))
    assert [choice.seed for choice in answer.choices] == [1, 2, 3]


async def test_a_candidate_is_as_likely_as_its_tokens_in_the_mean_however_many() -> None:
    block, _ = open_fake_engine(say(["short", "a much longer text"]), score=score_by_seed(-1.0, -0.75))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(best_of=2))
    assert [(choice.text, choice.mean_logprob) for choice in answer.choices] == [("a much longer text", -0.75)]


async def test_the_token_that_ends_a_candidate_counts() -> None:
    def score(draw: Draw, token: int) -> float:
        if draw.seed == 0:
            return -16.0 if token == EOS else -1.0
        return -2.0

    block, _ = open_fake_engine(say(["abcd", "efgh"]), score=score)
    async with block as engine:
        ended = await engine.complete("go", SamplingParams(best_of=2))
        cut = await engine.complete("go", SamplingParams(best_of=2, max_tokens=4))
    assert [(choice.text, choice.mean_logprob) for choice in ended.choices] == [("efgh", -2.0)]
    assert [(choice.text, choice.mean_logprob) for choice in cut.choices] == [("abcd", -1.0)]


TOKENS = tuple(b"abc<end>tail")
LOGPROBS = tuple(-math.sqrt(2 + at) for at in range(len(TOKENS)))


def mean_of(count: int) -> float:
    total = 0.0
    for logprob in LOGPROBS[:count]:
        total += logprob
    return total / count


@pytest.mark.parametrize("cuts", [(), (8,), (3, 5), (7, 9), (1, 2, 10)])
@pytest.mark.parametrize(("stop", "counted"), [((), 12), (("<end>",), 8)], ids=["to the end", "to a stop string"])
async def test_the_mean_is_over_the_completion_tokens_however_they_come_together(
    cuts: Sequence[int], stop: tuple[str, ...], counted: int
) -> None:
    ticket = Ticket(Uid("a"), Mailbox(), Outbox(99))
    for begin, end in zip((0, *cuts), (*cuts, len(TOKENS)), strict=True):
        last = end == len(TOKENS)
        scores = tuple(map(TokenLogprob, TOKENS[begin:end], LOGPROBS[begin:end]))
        ticket.send(Progress(None, TOKENS[begin:end], "length" if last else None, None, scores))
    params = SamplingParams(best_of=2, stop=stop)
    choice = Choice(
        "r",
        (Place(0, 7, 0), Place(1, 8, 1)),
        ticket,
        params,
        ChoiceText(ByteTokenizer(), stop),
        PromptUsage(0, array("i", [1])),
        Verdict(params, 2, lambda: None),
        RequestWatch((), "r", params, 2).choice(1, 99),
        Ranking(1, 2, 1),
    )
    send, receive = trio.open_memory_channel[Event](9)
    await choice.run(send)
    delta, end_event = [event async for event in receive]
    assert isinstance(delta, TextDelta)
    assert isinstance(end_event, ChoiceFinished)
    assert len(delta.token_ids) == end_event.usage.completion_tokens == counted
    assert end_event.mean_logprob == mean_of(counted)


async def test_the_tokens_of_all_candidates_are_counted() -> None:  # FAN-21
    score = score_by_seed(-3.0, -1.0, -2.0)
    block, _ = open_fake_engine(say(["a" * 9, "bb", "cccc"]), score=score)
    async with block as engine:
        await engine.complete("p" * 40, SamplingParams(max_tokens=1))
        answer = await engine.complete("p" * 40, SamplingParams(n=2, best_of=3, seed=0))
    best, second = answer.choices
    assert (best.usage.completion_tokens, second.usage.completion_tokens) == (3, 5)
    assert (best.usage.discarded_tokens, second.usage.discarded_tokens) == (10, 0)
    # candidate 0, which was there first, is no choice: what it tells of the prompt, the best one tells
    assert (best.usage.cached_tokens, second.usage.cached_tokens) == (32, 0)
    assert (best.usage.shared_tokens, second.usage.shared_tokens) == (0, 41)
    assert answer.cached_tokens == 32


async def test_every_prompt_has_its_own_best() -> None:  # FAN-4
    def score(draw: Draw, token: int) -> float:
        return -1.0 - (draw.seed if draw.prompt[-1] == ord("a") else 2 - draw.seed)

    block, _ = open_fake_engine(say(["x", "y", "z"]), score=score)
    async with block as engine:
        answer = await engine.complete(["a", "b"], SamplingParams(n=2, best_of=3, seed=0))
    assert [(choice.index, choice.text, choice.seed) for choice in answer.choices] == [
        (0, "x", 0),
        (1, "y", 1),
        (2, "z", 2),
        (3, "y", 1),
    ]


async def test_nothing_is_said_of_a_prompt_before_its_last_candidate_has_finished() -> None:
    def script(draw: Draw) -> int:
        lengths = {ord("a"): (2, 5), ord("b"): (9, 20)}[draw.prompt[-1]]
        return ord("x") if len(draw.generated) < lengths[draw.seed] else EOS

    block, _ = open_fake_engine(script, score=score_by_seed(-1.0, -2.0))
    async with block as engine, engine.generate(["a", "b"], SamplingParams(best_of=2, seed=0)) as generation:
        begin = trio.current_time()
        came = [(event.index, round((trio.current_time() - begin) * 100)) async for event in generation]
    # the text and the end of each
    assert came == [(0, 6), (0, 6), (1, 21), (1, 21)]


async def test_each_choice_can_be_replayed_by_its_seed() -> None:  # FAN-16
    def script(draw: Draw) -> int:
        return EOS if len(draw.generated) == 5 else ord("a") + (draw.seed * 7 + len(draw.generated)) % 26

    block, _ = open_fake_engine(script)
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=3, best_of=8, seed=40))
        assert {choice.seed for choice in answer.choices} < set(range(40, 48))
        for choice in answer.choices:
            (again,) = (await engine.complete("go", SamplingParams(seed=choice.seed))).choices
            assert (again.text, again.token_ids, again.reason) == (choice.text, choice.token_ids, choice.reason)


@pytest.mark.parametrize("best_of", [None, 2])
async def test_without_more_candidates_than_choices_nothing_is_ranked_and_no_log_probability_asked_for(
    best_of: int | None,
) -> None:
    block, device = open_fake_engine(say(["first", "second"]), score=score_by_seed(-2.0, -1.0))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=2, best_of=best_of))
    assert [choice.text for choice in answer.choices] == ["first", "second"]
    assert [choice.mean_logprob for choice in answer.choices] == [None, None]
    assert not any(any(plan.rows.logprobs) for plan in device.plans)


async def test_choices_are_the_same_and_as_likely_however_little_memory_there_is() -> None:  # FAN-15
    params = SamplingParams(n=4, best_of=6, seed=3, max_tokens=60)
    told = []
    for page_count in (1024, 9):
        block, _ = open_fake_engine(count_for_ever, page_count=page_count)
        async with block as engine:
            told.append(await engine.complete("p" * 30, params))
            assert (engine.statistics().scheduler.preemptions > 0) == (page_count == 9)
    assert told[0] == told[1]
    assert len({choice.mean_logprob for choice in told[0].choices}) > 1


# with the other extensions


async def test_choice_params_are_those_of_the_candidates() -> None:  # FAN-33
    own = (ChoiceParams(temperature=0.0), ChoiceParams(seed=99), ChoiceParams(max_tokens=2))
    logprobs = {0: -3.0, 99: -1.0, 2: -2.0}
    block, device = open_fake_engine(count_for_ever, score=lambda draw, token: logprobs[draw.seed])
    async with block as engine:
        params = SamplingParams(n=2, best_of=3, seed=0, max_tokens=5, choice_params=own)
        answer = await engine.complete("go", params)
    assert [(choice.seed, choice.usage.completion_tokens) for choice in answer.choices] == [(99, 5), (2, 2)]
    assert list(device.plans[0].rows.temperatures) == [0.0, 1.0, 1.0]
    with pytest.raises(ParamError, match="one entry for each of the 3 choices, got 2"):
        SamplingParams(n=2, best_of=3, choice_params=own[:2])


async def test_candidates_that_stop_when_cancelled_come_last() -> None:  # FAN-31
    score = score_by_seed(-0.5, -2.0, -1.0, -0.25)
    block, _ = open_fake_engine(say(["x" * 50, "bb", "cccc", "x" * 50]), score=score)
    async with block as engine:
        params = SamplingParams(n=3, best_of=4, stop_when=StopWhen(finished=2))
        answer = await engine.complete("go", params)
        with pytest.raises(ParamError, match="stop_when asks for 5 choices, but the request has 4"):
            engine.generate("go", SamplingParams(n=1, best_of=4, stop_when=StopWhen(finished=5)))
    assert [(choice.seed, choice.reason) for choice in answer.choices] == [(2, "stop"), (1, "stop"), (3, "cancelled")]


async def test_an_isolated_failure_comes_last_and_is_no_choice_if_others_will_do() -> None:  # FAN-24
    score = score_by_seed(-0.5, -2.0, -1.0)
    block, _ = open_fake_engine(say(["ax", "bb", "cccc"]), score=score, tokenizer=BrokenTokenizer())
    async with block as engine:
        two = await engine.complete("go", SamplingParams(n=2, best_of=3, choice_errors="isolate"))
        with pytest.raises(ChoiceFailedError, match="no x please"):
            await engine.complete("go", SamplingParams(n=2, best_of=3))
    assert [choice.text for choice in two.choices] == ["cccc", "bb"]
    assert two.choices[0].usage.discarded_tokens == 1


async def test_copies_of_a_greedy_candidate_are_as_good_as_each_other() -> None:  # FAN-6
    block, device = open_fake_engine(say("abc"), options=REPLICATE)
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=2, best_of=5, temperature=0, seed=7))
    assert [(choice.text, choice.seed) for choice in answer.choices] == [("abc", 7), ("abc", 8)]
    assert answer.choices[0].usage.discarded_tokens == 3 * 4
    assert {len(plan.rows.tokens) for plan in device.plans} == {1}


async def test_one_candidate_can_be_cancelled() -> None:  # FAN-34
    block, _ = open_fake_engine(count_for_ever, score=score_by_seed(-1.0, -0.5, -2.0))
    async with block as engine:
        async with engine.generate("go", SamplingParams(n=2, best_of=3, max_tokens=20)) as generation:
            await trio.sleep(0.05)
            generation.cancel_choice(1)
            ends = [event async for event in generation if isinstance(event, ChoiceFinished)]
            with pytest.raises(IndexError, match="the request has 3"):
                generation.cancel_choice(3)
    assert [(end.seed, end.reason) for end in ends] == [(0, "length"), (2, "length")]


async def test_of_no_tokens_the_first_candidates_are_the_choices() -> None:  # case max-tokens-edges
    block, device = open_fake_engine()
    async with block as engine:
        answer = await engine.complete(["a", "b"], SamplingParams(n=1, best_of=3, max_tokens=0, seed=5))
    assert [(choice.index, choice.seed, choice.reason) for choice in answer.choices] == [
        (0, 5, "length"),
        (1, 5, "length"),
    ]
    assert [choice.mean_logprob for choice in answer.choices] == [None, None]
    assert device.plans == []


# bounds, and what is left behind


async def test_candidates_are_what_fills_the_queue() -> None:  # FAN-10
    block, device = open_fake_engine(options=attrs.evolve(FAKE_OPTIONS, max_running=2, max_queued=4))
    async with block as engine:
        with pytest.raises(QueueFullError):
            await engine.complete("go", SamplingParams(best_of=7, max_tokens=2))
        assert device.plans == []
        await engine.complete("go", SamplingParams(best_of=6, max_tokens=2))


async def test_leaving_early_aborts_every_candidate() -> None:  # FAN-27
    block, _ = open_fake_engine(count_for_ever)
    async with block as engine:
        async with engine.generate("go", SamplingParams(best_of=5)) as generation:
            await trio.sleep(0.05)
            snapshot = generation.snapshot()
        assert (snapshot.n, snapshot.best_of, snapshot.choices) == (1, 5, 5)
        await trio.sleep(0.011)
        scheduler = engine.statistics().scheduler
        assert (scheduler.running, scheduler.waiting, scheduler.pages_held) == (0, 0, 0)
        engine.check()


async def test_a_reader_that_takes_nothing_delays_no_candidate() -> None:
    options = attrs.evolve(FAKE_OPTIONS, max_backlog=4)
    block, _ = open_fake_engine(count_for_ever, options=options)
    async with block as engine:
        async with engine.generate("go", SamplingParams(best_of=3, max_tokens=200)) as generation:
            await trio.sleep(3)
            assert engine.statistics().scheduler.running == engine.statistics().scheduler.paused == 0
            assert [type(event) async for event in generation] == [TextDelta, ChoiceFinished]
