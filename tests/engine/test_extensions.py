"""What no other server has: per-choice parameters, early ends, isolated failures, copies of greedy choices."""

from __future__ import annotations

import attrs
import pytest

from trioserve.errors import ChoiceFailedError, ParamError
from trioserve.events import ChoiceFinished, Event
from trioserve.params import ChoiceParams, Limits, SamplingParams, StopWhen
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.tokenizer import BrokenTokenizer

REPLICATE = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))


async def test_each_choice_can_have_its_own_parameters_over_one_prefill() -> None:  # FAN-33
    own = (
        ChoiceParams(temperature=0.0, max_tokens=2),
        ChoiceParams(top_p=0.5, seed=99),
        ChoiceParams(top_k=7, min_p=0.1),
        ChoiceParams(seed=-1),
    )
    options = attrs.evolve(FAKE_OPTIONS, pick_seed=lambda: 1000)
    block, device = open_fake_engine(count_for_ever, options=options)
    async with block as engine:
        params = SamplingParams(n=4, seed=5, temperature=1.5, max_tokens=3, choice_params=own)
        answer = await engine.complete("p" * 50, params)
    assert [choice.seed for choice in answer.choices] == [5, 99, 7, 1000]
    assert [choice.usage.completion_tokens for choice in answer.choices] == [2, 3, 3, 3]
    first = next(plan.rows for plan in device.plans if len(plan.rows.tokens) == 4)
    assert list(first.seeds) == [5, 99, 7, 1000]
    assert list(first.temperatures) == [0.0, 1.5, 1.5, 1.5]
    assert list(first.top_ps) == [1.0, 0.5, 1.0, 1.0]
    assert list(first.top_ks) == [-1, -1, 7, -1]
    assert list(first.min_ps) == [0.0, 0.0, 0.1, 0.0]
    assert sum(len(plan.spans.tokens) for plan in device.plans) == 51 + 1 + 2 + 2 + 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2, "choice_params": (ChoiceParams(),)}, "choice_params"),
        ({"n": 1, "max_tokens": 0, "choice_params": (ChoiceParams(),)}, "max_tokens"),
        ({"choice_errors": "maybe"}, "choice_errors"),
    ],
)
def test_extensions_that_contradict_the_request_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ParamError) as caught:
        SamplingParams(**fields)  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize(
    "rule", [{}, {"finished": 1, "agree": 1, "pattern": "x"}, {"agree": 1}, {"finished": 1, "pattern": "x"}]
)
def test_stop_when_takes_exactly_one_rule(rule: dict[str, object]) -> None:  # FAN-31
    with pytest.raises(ParamError, match="stop_when"):
        StopWhen(**rule)  # type: ignore[arg-type]


async def test_stop_when_cannot_wait_for_more_choices_than_there_are() -> None:
    block, _ = open_fake_engine()
    async with block as engine:
        with pytest.raises(ParamError, match="stop_when asks for 5 choices, but the request has 4"):
            engine.generate(["a", "b"], SamplingParams(n=2, stop_when=StopWhen(finished=5)))
        with pytest.raises(ParamError, match="not valid"):
            engine.generate("a", SamplingParams(n=2, stop_when=StopWhen(agree=2, pattern="(")))


async def test_a_request_ends_when_enough_choices_have_finished() -> None:  # FAN-31
    block, _ = open_fake_engine(say(["a" * 30, "bb", "cc", "d" * 40, "ee"]))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=5, stop_when=StopWhen(finished=2)))
        assert engine.statistics().scheduler.running == 0
    # all that finished in the same step is kept; the rest keeps what it had, and it is counted
    assert [choice.reason for choice in answer.choices] == ["cancelled", "stop", "stop", "cancelled", "stop"]
    assert [choice.text for choice in answer.choices][1:3] == ["bb", "cc"]
    assert answer.choices[0].text in ("aaa", "aaaa")
    assert answer.choices[0].usage.completion_tokens == len(answer.choices[0].text)


async def test_a_request_ends_when_enough_choices_agree() -> None:  # FAN-31
    block, _ = open_fake_engine(say(["= 1", "=> 2", "so = 1", "x" * 99, "nothing"]))
    params = SamplingParams(n=5, stop_when=StopWhen(agree=2, pattern=r"= (\d)"))
    async with block as engine:
        answer = await engine.complete("go", params)
    assert [choice.reason for choice in answer.choices] == ["stop", "stop", "stop", "cancelled", "cancelled"]


async def test_an_isolated_failure_leaves_the_siblings_alone() -> None:  # FAN-24
    block, _ = open_fake_engine(say(["aaaa", "bx", "cccc"]), tokenizer=BrokenTokenizer())
    errors: list[Event] = []
    async with block as engine:
        params = SamplingParams(n=3, choice_errors="isolate")
        answer = await engine.complete("go", params)
        async with engine.generate("go", params) as generation:
            errors = [event async for event in generation if isinstance(event, ChoiceFinished) and event.error]
    assert [(choice.text, choice.reason) for choice in answer.choices] == [
        ("aaaa", "stop"),
        ("b", "error"),
        ("cccc", "stop"),
    ]
    (error,) = errors
    assert isinstance(error, ChoiceFinished)
    assert (error.index, error.error) == (1, "Choice 1 failed: ValueError: no x please")


async def test_a_request_fails_when_every_choice_has() -> None:  # FAN-24
    block, _ = open_fake_engine(say(["x", "ax"]), tokenizer=BrokenTokenizer())
    async with block as engine:
        with pytest.raises(ChoiceFailedError, match="no x please"):
            await engine.complete("go", SamplingParams(n=2, choice_errors="isolate"))


async def test_greedy_choices_are_decoded_once_and_delivered_n_times() -> None:  # FAN-6
    block, device = open_fake_engine(say("abc"), options=REPLICATE)
    async with block as engine:
        answer = await engine.complete(["p" * 30, "q"], SamplingParams(n=3, temperature=0, seed=7))
    assert [choice.text for choice in answer.choices] == ["abc"] * 6
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.seed for choice in answer.choices] == [7, 8, 9] * 2
    assert [choice.usage.completion_tokens for choice in answer.choices] == [4] * 6
    assert [choice.usage.shared_tokens for choice in answer.choices] == [0, 31, 31, 0, 2, 2]
    assert max(len(plan.rows.tokens) for plan in device.plans) == 2


async def test_copies_are_cancelled_together() -> None:
    block, _ = open_fake_engine(count_for_ever, options=REPLICATE)
    async with block as engine:
        async with engine.generate("go", SamplingParams(n=3, temperature=0, max_tokens=50)) as generation:
            await generation.receive()
            generation.cancel_choice(2)
            reasons = [event.reason async for event in generation if isinstance(event, ChoiceFinished)]
        assert reasons == ["cancelled"] * 3


async def test_a_running_request_is_found_by_its_id_and_by_its_alias() -> None:  # FAN-34
    block, _ = open_fake_engine(count_for_ever)
    async with block as engine:
        async with engine.generate("a", request_id="r1", alias="mine"), engine.generate("b", alias="mine"):
            assert len(engine.find("mine")) == 2
            assert [generation.request_id for generation in engine.find("r1")] == ["r1"]
            assert engine.find("other") == []
        assert engine.find("mine") == []


@pytest.mark.parametrize("index", [-1, 2])
async def test_a_choice_that_is_not_there_cannot_be_cancelled(index: int) -> None:
    block, _ = open_fake_engine(count_for_ever)
    async with block as engine, engine.generate("a", SamplingParams(n=2)) as generation:
        with pytest.raises(IndexError, match="the request has 2"):
            generation.cancel_choice(index)


async def test_a_cancel_in_the_middle_of_a_character_is_no_stop_string() -> None:
    # the U+FFFD is no part of the text, which no stop string is, but it has ended nothing
    block, _ = open_fake_engine(say(["😀" * 9, "c"]))
    params = SamplingParams(n=2, stop="\ufffd", stop_when=StopWhen(finished=1))
    async with block as engine:
        answer = await engine.complete("go", params)
    first, second = answer.choices
    assert (second.reason, second.text) == ("stop", "c")
    assert (first.reason, first.text) == ("cancelled", "")
