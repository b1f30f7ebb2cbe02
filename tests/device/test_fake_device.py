"""The device that the tests of everything above are made with: what its rows can ask for."""

from __future__ import annotations

import math
from array import array

import attrs
import pytest
from trio.testing import MockClock

from trioserve.abc import DeviceInfo
from trioserve.step import StepPlan, StepResult
from trioserve.testing.device import Draw, FakeDevice, fake_hidden, varied_score
from trioserve.testing.driver import Row, SetMatcher, Span, make_plan

INFO = DeviceInfo(name="fake", vocab_size=50, context_length=64, page_size=4, page_count=16, embedding_dim=5)


def say_20(draw: Draw) -> int:
    return 20


async def run(plan: StepPlan) -> StepResult:
    return await FakeDevice(say_20, INFO).run_async(plan)


async def run_rows(*rows: Row) -> StepResult:
    return await run(make_plan([Span(tokens=[1, 2, 3], pages=[0], rows=rows)]))


async def test_changes_make_the_next_likeliest_ids_be_drawn(autojump_clock: MockClock) -> None:
    result = await run_rows(
        Row(),
        Row(generated=[20, 20], presence_penalty=1.5),
        Row(generated=[20, 20, 21], frequency_penalty=1.5),
        Row(bias={20: -math.inf, 21: -math.inf}),
        Row(bias={22: 2.5}),
        Row(prompt=[21], repetition_penalty=0.1, bias={20: -0.5}),
        Row(matcher=SetMatcher({19, 30, 40})),
        Row(matcher=SetMatcher({3, 19})),
        Row(matcher=SetMatcher({20}), bias={20: -math.inf}),
    )
    assert list(result.token_ids) == [20, 21, 22, 22, 22, 21, 30, 3, -1]
    assert not result.logprobs


async def test_log_probabilities_fall_from_the_scripts_token_on(autojump_clock: MockClock) -> None:
    result = await run_rows(
        Row(logprobs=4),
        Row(),
        Row(seed=5, logprobs=1, matcher=SetMatcher({25})),
        Row(logprobs=1, matcher=SetMatcher(())),
    )
    score = varied_score(Draw((1, 2, 3), (), 0), 20)
    assert list(result.top_ids) == [20, 21, 22]
    assert list(result.top_logprobs) == [score, score - 1, score - 2]
    assert result.logprobs[0] == score
    assert math.isnan(result.logprobs[1])
    assert result.logprobs[2] == varied_score(Draw((1, 2, 3), (), 5), 20) - 5
    assert result.logprobs[3] == -math.inf


async def test_a_scored_row_does_not_ask_the_script_and_is_no_beginning_of_a_choice(autojump_clock: MockClock) -> None:
    asked: list[Draw] = []

    def script(draw: Draw) -> int:
        asked.append(draw)
        return 20

    device = FakeDevice(script, INFO)
    scored = [Row(target=token, logprobs=2) for token in (2, 3)]
    plan = make_plan([Span(tokens=[1, 2, 3], pages=[0], rows=[*scored, Row()])])
    plan.rows.tokens[:] = array("i", [0, 1, 2])
    result = await device.run_async(plan)
    assert list(result.token_ids) == [2, 3, 20]
    assert list(result.logprobs[:2]) == [varied_score(Draw((1,), (), 0), token) for token in (2, 3)]
    assert list(result.top_ids) == [2, 3]
    await device.run_async(make_plan([Span(tokens=[20], start=3, pages=[0], rows=[Row()])]))
    assert asked == [Draw((1, 2, 3), (), 0), Draw((1, 2, 3), (20,), 0)]


async def test_hidden_states_follow_from_all_tokens_before(autojump_clock: MockClock) -> None:
    device = FakeDevice(say_20, INFO)
    await device.run_async(make_plan([Span(tokens=[1, 2, 3], pages=[0])]))
    spans = [Span(tokens=[7], pages=[2], hidden=[0]), Span(tokens=[4, 5], start=3, pages=[0, 1], hidden=[1])]
    states = (await device.run_async(make_plan(spans))).hidden
    expected = [fake_hidden(sequence, 5) for sequence in ([7], [1, 2, 3, 4, 5])]
    assert [state.tolist() for state in states] == [state.tolist() for state in expected]
    assert states[0].format == "f"
    assert fake_hidden([1, 2], 5) != fake_hidden([2, 1], 5)


@pytest.mark.parametrize("row", [Row(generated=[50]), Row(prompt=[-1]), Row(bias={50: 1.0}), Row(target=50)], ids=str)
async def test_an_id_that_is_not_in_the_vocabulary_is_noticed(autojump_clock: MockClock, row: Row) -> None:
    with pytest.raises(IndexError, match="not in the vocabulary"):
        await run_rows(row)


async def test_temperature_and_filters_change_nothing(autojump_clock: MockClock) -> None:
    rows = [attrs.evolve(Row(seed=seed), temperature=2.0, top_k=3) for seed in range(20)]
    assert set((await run_rows(*rows)).token_ids) == {20}
