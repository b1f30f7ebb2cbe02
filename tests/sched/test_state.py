"""The contract of SchedulerState: refusals, aborts, pauses, and books that are checked."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import attrs
import pytest

from trioserve.errors import InvariantError, ParamError, QueueFullError
from trioserve.sched.group import Uid
from trioserve.sched.state import SchedulerOptions
from trioserve.step import StepResult

PROMPT = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["page_size", "page_count", "max_running", "max_queued", "max_batch_tokens"])
def test_options_below_1_are_refused_by_name(name: str) -> None:
    good = {"page_size": 1, "page_count": 1, "max_running": 1, "max_queued": 1, "max_batch_tokens": 1}
    SchedulerOptions(**good)
    with pytest.raises(ParamError, match=f"{name} must be at least 1, got 0") as caught:
        SchedulerOptions(**(good | {name: 0}))
    assert caught.value.param == name


@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_the_time_that_a_group_may_be_overtaken_is_finite(value: float) -> None:
    with pytest.raises(ParamError, match="max_overtaken_s must be a finite number, 0 or more") as caught:
        SchedulerOptions(
            page_size=1, page_count=1, max_running=1, max_queued=1, max_batch_tokens=1, max_overtaken_s=value
        )
    assert caught.value.param == "max_overtaken_s"


# refusals


def test_a_group_is_queued_whole_or_refused_whole(simulate: Callable) -> None:  # FAN-10, case huge-n
    sim = simulate(max_running=2, max_queued=8)
    sim.submit(PROMPT, 4)
    sim.submit(PROMPT, 4)
    before = sim.state.statistics()
    with pytest.raises(QueueFullError, match="8 choices run or wait; with 4 more it would be over 10"):
        sim.submit(PROMPT, 4, name="refused")
    assert sim.state.statistics() == before
    assert not sim.state.abort(Uid("refused.0"))
    sim.submit(PROMPT, 2)


def test_the_bound_of_the_queue_is_the_same_in_every_phase_of_those_before(simulate: Callable) -> None:
    sim = simulate(max_running=2, max_queued=4, max_batch_tokens=4)
    sim.submit(PROMPT, 4, max_tokens=9)
    for _ in range(6):  # queued, in prefill, about to be forked, two of them running
        with pytest.raises(QueueFullError):
            sim.submit(PROMPT, 3)
        sim.abort(sim.submit(PROMPT)[0])
        sim.step()


def test_paused_choices_take_no_place_in_the_queue(simulate: Callable) -> None:  # FAN-29
    sim = simulate(max_running=1, max_queued=1)
    slow = sim.submit(PROMPT, 2, max_tokens=9)
    sim.steps(2)
    for uid in slow:
        sim.pause(uid)
    others = sim.submit([8], 2)
    sim.finish()
    assert {sim[uid].finish for uid in others} == {"length"}


def test_a_refusal_says_to_come_back_after_the_time_that_the_queue_takes(simulate: Callable) -> None:
    sim = simulate(max_queued=1, max_running=1)
    with pytest.raises(QueueFullError) as caught:
        sim.submit(PROMPT, 3)
    assert caught.value.retry_after == 1
    sim.submit(PROMPT, max_tokens=200)
    sim.step()
    sim.submit(PROMPT)
    sim.step()
    for waited, retry_after in ((0.0, 1), (0.5, 1), (6.5, 7), (1000.0, 60)):
        sim.now = 1.0 + waited
        with pytest.raises(QueueFullError) as caught:
            sim.submit(PROMPT)
        assert caught.value.retry_after == retry_after


def test_a_prompt_that_never_fits_the_pages_is_refused_and_one_that_just_fits_runs(simulate: Callable) -> None:
    # case pool-exhaustion
    sim = simulate(page_count=3)
    with pytest.raises(ParamError, match=r"12 tokens.* at most 12 fit") as caught:
        sim.submit([1] * 12)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert sim.state.idle
    (uid,) = sim.submit([1] * 11)
    sim.finish()
    assert sim[uid].finish == "length"
    assert len(sim[uid].tokens) == 1


def test_choices_that_outgrow_the_pool_end_there_and_those_behind_them_still_run(simulate: Callable) -> None:
    # case pool-exhaustion
    sim = simulate(page_count=4, max_batch_tokens=5)
    uids = [sim.submit([j % 3] * 7, max_tokens=100, seed=j)[0] for j in range(50)]
    (last,) = sim.submit([9])
    sim.finish()
    assert {sim[uid].finish for uid in uids} == {"length"}
    assert {len(sim[uid].tokens) for uid in uids} == {16 - 7}
    assert len(sim[last].tokens) == 4


def test_a_uid_that_is_live_is_refused_and_one_that_has_ended_is_not(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, name="a")
    with pytest.raises(InvariantError, match=r"a\.0 is live"):
        sim.submit(PROMPT, name="a")
    sim.finish()
    sim.submit(PROMPT, name="a")


# one step at a time


def test_a_second_plan_in_flight_is_a_bug(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT)
    sim.begin()
    with pytest.raises(InvariantError, match="in flight"):
        sim.state.plan(0.0)


def test_a_result_that_is_not_that_of_the_step_in_flight_is_a_bug_and_changes_nothing(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT)
    sim.step()
    old = sim.device.plans[0]
    plan = sim.begin()
    _, result = sim.in_flight
    for wrong_plan, wrong_result in (
        (old, StepResult(old.number, array("i", [0]))),
        (plan, attrs.evolve(result, number=7)),
        (plan, attrs.evolve(result, token_ids=array("i", [0, 0]))),
        (plan, attrs.evolve(result, logprobs=array("d", [-1.0, -1.0]))),
        (attrs.evolve(plan), result),
    ):
        with pytest.raises(InvariantError):
            sim.state.commit(wrong_plan, wrong_result)
    sim.land()
    with pytest.raises(InvariantError):
        sim.state.commit(plan, result)


def test_a_result_without_the_log_probabilities_that_were_asked_for_is_a_bug(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, seed=1)  # odd ones ask
    plan = sim.begin()
    _, result = sim.in_flight
    with pytest.raises(InvariantError, match="got 0 log-probabilities"):
        sim.state.commit(plan, attrs.evolve(result, logprobs=array("d")))
    sim.land()


# the cache


def test_a_flush_leaves_live_choices_their_pages_and_everyone_else_nothing(simulate: Callable) -> None:
    # case radix-accounting
    sim = simulate()
    sim.submit([9] * 9)
    sim.finish()
    (uid,) = sim.submit([*PROMPT, 7, 8, 9], max_tokens=9)
    sim.steps(2)
    held = sim.state.statistics().pages_held
    sim.state.flush_cache()
    sim.state.check()
    statistics = sim.state.statistics()
    assert (statistics.pages_held, statistics.pages_cached) == (held, 0)
    later = sim.submit([*PROMPT, 7, 8, 9], 2)
    sim.finish()
    assert sim[uid].finish == "length"
    assert {sim[each].admitted.cached_tokens for each in later} == {0}


def test_what_was_computed_before_a_flush_is_not_cached_after_it(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, 2, max_tokens=9)
    sim.step()
    sim.state.flush_cache()  # before the choices are forked from what was computed
    sim.finish()
    assert sim.state.statistics().pages_cached == 0
    (again,) = sim.submit(PROMPT)
    sim.finish()
    assert sim[again].admitted.cached_tokens == 0
    assert sim.state.statistics().pages_cached == 2


# the books


def test_statistics_count_every_live_choice_once(simulate: Callable) -> None:
    sim = simulate(max_running=4, max_batch_tokens=8)
    uids = sim.submit([1], 6, max_tokens=50)
    sim.steps(2)
    sim.pause(uids[0])
    sim.steps(1)
    sim.pause(uids[1])
    sim.submit(PROMPT * 3, 2)
    sim.abort(uids[5])
    sim.steps(1)
    statistics = sim.state.statistics()
    assert (statistics.running, statistics.paused, statistics.prefilling, statistics.waiting) == (3, 2, 2, 0)
    assert statistics.groups == 2
    assert statistics.steps == 4


def test_states_say_what_they_are(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, 2)
    sim.step()
    sim.begin()
    text = repr(sim.state)
    assert "2 choices" in text
    assert "Flight 1: 2 spans, 2 rows" in text
    assert "<Sequence (0, 1): 6 of 7 tokens in 2 pages>" in text


@pytest.mark.parametrize(
    "damage",
    [
        lambda roster: roster.residents.pop(),
        lambda roster: roster.residents.reverse(),
        lambda roster: roster.residents[0].pages.append(63),
        lambda roster: setattr(roster.residents[0], "computed", 99),
        lambda roster: setattr(roster.residents[0], "in_flight", True),
        lambda roster: roster.residents[0].choices.clear(),
        lambda roster: roster.choices.popitem(),
        lambda roster: setattr(next(iter(roster.waiting)), "computed", 1),
        lambda roster: roster.waiting.remove(next(iter(roster.waiting))),
        lambda roster: roster.memory.pool.share(roster.residents[0].pages),
        lambda roster: roster.memory.pool.alloc(1),
        lambda roster: setattr(roster, "paused_choices", 1),
        lambda roster: roster.memory.tree.flush() or roster.memory.pool.keep(roster.residents[-1].pages[-1]),
    ],
)
def test_check_finds_damage(simulate: Callable, damage: Callable) -> None:
    sim = simulate(max_running=2)
    sim.submit(PROMPT, 3, max_tokens=9)
    sim.steps(3)
    damage(sim.state._roster)
    with pytest.raises(InvariantError):
        sim.state.check()
