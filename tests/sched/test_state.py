"""The contract of SchedulerState: refusals, aborts, pauses, and books that are checked."""

from __future__ import annotations

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
    assert caught.value.param == "prompt"
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
        (attrs.evolve(plan), result),
    ):
        with pytest.raises(InvariantError):
            sim.state.commit(wrong_plan, wrong_result)
    sim.land()
    with pytest.raises(InvariantError):
        sim.state.commit(plan, result)


# aborts


def test_aborting_an_unknown_or_ended_choice_says_so(simulate: Callable) -> None:
    sim = simulate()
    assert not sim.abort("nobody")
    (uid,) = sim.submit(PROMPT)
    assert sim.abort(uid)
    assert not sim.abort(uid)
    (uid,) = sim.submit(PROMPT)
    sim.finish()
    assert not sim.abort(uid)


def waiting(sim) -> str:
    sim.submit([9] * 9, max_tokens=50)
    sim.step()
    return sim.submit(PROMPT)[0]


def prefilling(sim) -> str:
    (uid,) = sim.submit(PROMPT * 4)
    sim.step()
    assert sim.state.statistics().prefilling == 1
    return uid


def prefilling_in_flight(sim) -> str:
    (uid,) = sim.submit(PROMPT * 4)
    sim.step()
    sim.begin()
    return uid


def first_token_in_flight(sim) -> str:
    (uid,) = sim.submit(PROMPT)
    sim.begin()
    return uid


def to_be_forked(sim) -> str:
    uids = sim.submit(PROMPT, 3, max_tokens=50)
    sim.steps(2)
    assert sim.state.statistics().waiting == 2
    return uids[2]


def only_one_to_be_forked(sim) -> str:
    uids = sim.submit(PROMPT, 2, max_tokens=50)
    sim.steps(2)
    return uids[1]


def copied_from_in_flight(sim) -> str:
    uids = sim.submit(PROMPT, 2, max_tokens=50)
    sim.step()
    assert sim.begin().copies
    return uids[1]


def running(sim) -> str:
    (uid,) = sim.submit(PROMPT, max_tokens=50)
    sim.steps(3)
    assert sim.state.statistics().running == 1
    return uid


def running_in_flight(sim) -> str:
    uid = running(sim)
    sim.begin()
    return uid


def paused(sim) -> str:
    uid = running(sim)
    sim.pause(uid)
    assert sim.state.statistics().paused == 1
    return uid


def preempted(sim) -> str:
    uid = paused(sim)
    sim.submit([9] * 50)
    sim.step()
    assert sim.state.statistics().preemptions == 1
    assert sim.state.statistics().waiting == 1
    return uid


PHASES = [
    waiting,
    prefilling,
    prefilling_in_flight,
    first_token_in_flight,
    to_be_forked,
    only_one_to_be_forked,
    copied_from_in_flight,
    running,
    running_in_flight,
    paused,
    preempted,
]


@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_in_any_phase_leaves_nothing(simulate: Callable, phase: Callable) -> None:  # FAN-25, FAN-27
    sim = simulate(page_count=13, max_running=1, max_batch_tokens=8)
    uid = phase(sim)
    assert sim.abort(uid)
    assert not sim.abort(uid)
    if sim.in_flight is not None:
        assert uid not in {delivery.uid for delivery in sim.land()}
    for other in sim.live:
        sim.abort(other)
    # within the step that was in flight, if one was
    statistics = sim.state.statistics()
    assert statistics.pages_held == statistics.waiting == statistics.running == 0
    assert statistics.prefilling == statistics.paused == 0
    assert sim.state.idle
    assert sim.begin() is None


@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_in_any_phase_disturbs_nobody(simulate: Callable, phase: Callable) -> None:
    sim = simulate(page_count=13, max_running=1, max_batch_tokens=8)
    uid = phase(sim)
    bystanders = sim.submit(PROMPT, 2)
    sim.abort(uid)
    if sim.in_flight is not None:
        sim.land()
    sim.finish()
    assert not sim.live
    assert {sim[each].finish for each in bystanders} == {"length"}


def test_pages_of_a_step_in_flight_are_kept_until_its_commit(simulate: Callable) -> None:
    sim = simulate(prefix_cache=False)
    (uid,) = sim.submit(PROMPT)
    sim.begin()
    sim.abort(uid)
    assert sim.state.statistics().pages_held == 2
    assert not sim.state.idle
    assert sim.land() == []
    assert sim.state.statistics().pages_free == 64
    assert sim.state.idle


def test_the_prompt_that_a_copy_in_flight_reads_is_kept_until_its_commit(simulate: Callable) -> None:
    sim = simulate(prefix_cache=False, max_running=1)
    first, second = sim.submit(PROMPT, 2)
    sim.step()
    source = sim.begin().copies[0]
    sim.abort(second)
    assert source not in sim.state._roster.memory.pool._free
    sim.land()
    assert source in sim.state._roster.memory.pool._free
    sim.finish()
    assert sim[first].finish == "length"


def test_what_an_aborted_choice_computed_is_found_by_later_prompts(simulate: Callable) -> None:
    # a stop string ends a choice by abort, and its conversation goes on
    sim = simulate()
    (uid,) = sim.submit(PROMPT, max_tokens=20)
    sim.steps(5)
    sim.abort(uid)
    (next_turn,) = sim.submit([*PROMPT, *sim[uid].tokens])
    sim.step()
    assert sim[next_turn].admitted.cached_tokens == 8


def test_a_result_never_reaches_a_new_choice_with_the_uid_of_an_aborted_one(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, name="a", seed=1)
    sim.step()
    sim.begin()
    sim.abort("a.0")
    sim.submit([5, 5], name="a", seed=2)
    assert sim.land() == []
    sim.finish()
    assert sim["a.0"].finish == "length"


# pauses


def test_a_paused_choice_gets_no_rows_and_its_siblings_go_on(simulate: Callable) -> None:  # FAN-29
    sim = simulate()
    first, second = sim.submit(PROMPT, 2, max_tokens=9)
    sim.steps(2)
    sim.pause(first)
    sim.steps(3)
    assert (len(sim[first].tokens), len(sim[second].tokens)) == (2, 5)
    sim.drained(first)
    sim.finish()
    assert len(sim[first].tokens) == len(sim[second].tokens) == 9
    assert sim.state.statistics().tokens_recomputed == 0


def test_there_is_no_plan_while_everyone_is_paused(simulate: Callable) -> None:
    sim = simulate()
    (uid,) = sim.submit(PROMPT)
    sim.steps(2)
    sim.pause(uid)
    assert sim.step() is None
    assert not sim.state.idle
    sim.drained(uid)
    assert sim.step() is not None


def test_a_prompt_waits_or_rests_only_if_all_its_choices_do(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=4)
    first, second = sim.submit(PROMPT, 2)
    sim.pause(second)
    sim.steps(1)
    sim.abort(first)
    assert sim.step() is None
    assert sim.state.statistics().paused == 1
    sim.drained(second)
    assert sim.step() is not None


def test_a_choice_paused_before_its_first_token_gets_no_second(simulate: Callable) -> None:
    sim = simulate()
    first, second = sim.submit(PROMPT, 2)
    sim.pause(second)
    sim.finish()
    assert (len(sim[first].tokens), len(sim[second].tokens)) == (4, 1)


def test_a_prompt_pinned_for_paused_choices_alone_gives_its_pages_up(simulate: Callable) -> None:  # FAN-29
    sim = simulate(page_count=4, max_running=1)
    first, second = sim.submit(PROMPT, 2)
    sim.step()
    sim.pause(second)
    sim.finish()
    assert sim[first].finish == "length"
    (other,) = sim.submit([7] * 15)
    sim.finish()
    assert sim[other].finish == "length"
    sim.drained(second)
    sim.finish()
    assert sim[second].finish == "length"


def test_pausing_in_flight_lets_the_result_through(simulate: Callable) -> None:
    sim = simulate()
    (uid,) = sim.submit(PROMPT)
    sim.step()
    sim.begin()
    sim.pause(uid)
    assert len(sim.land()) == 1
    assert sim.step() is None


def test_pausing_and_draining_strangers_does_nothing(simulate: Callable) -> None:
    sim = simulate()
    sim.state.pause(Uid("nobody"))
    sim.state.drained(Uid("nobody"))
    assert sim.state.idle


def test_a_paused_choice_takes_no_slot(simulate: Callable) -> None:  # FAN-29
    sim = simulate(max_running=1)
    (slow,) = sim.submit(PROMPT, max_tokens=9)
    sim.steps(2)
    sim.pause(slow)
    (other,) = sim.submit([8, 9])
    sim.finish()
    assert sim[other].finish == "length"
    assert len(sim[slow].tokens) == 2


def test_a_paused_choice_gives_its_pages_to_whoever_needs_them_however_old_it_is(simulate: Callable) -> None:
    # FAN-29: memory does not notice
    sim = simulate(page_count=4)
    (slow,) = sim.submit(PROMPT, max_tokens=9)
    sim.steps(2)
    sim.pause(slow)
    (other,) = sim.submit([7] * 12)
    sim.finish()
    assert sim[other].finish == "length"
    sim.drained(slow)
    sim.finish()
    assert sim[slow].finish == "length"


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
    sim.state.flush_cache()  # one to be forked, then the other that runs
    sim.steps(2)
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
