"""A choice can be aborted whatever it does, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sched.conftest import Simulation

PROMPT = [1, 2, 3, 4, 5, 6]


def test_aborting_an_unknown_or_ended_choice_says_so(simulate: Callable) -> None:
    sim = simulate()
    assert not sim.abort("nobody")
    (uid,) = sim.submit(PROMPT)
    assert sim.abort(uid)
    assert not sim.abort(uid)
    (uid,) = sim.submit(PROMPT)
    sim.finish()
    assert not sim.abort(uid)


def waiting(sim: Simulation) -> str:
    sim.submit([9] * 9, max_tokens=50)
    sim.step()
    return sim.submit(PROMPT)[0]


def prefilling(sim: Simulation) -> str:
    (uid,) = sim.submit(PROMPT * 4)
    sim.step()
    assert sim.state.statistics().prefilling == 1
    return uid


def prefilling_in_flight(sim: Simulation) -> str:
    (uid,) = sim.submit(PROMPT * 4)
    sim.step()
    sim.begin()
    return uid


def first_token_in_flight(sim: Simulation) -> str:
    (uid,) = sim.submit(PROMPT)
    sim.begin()
    return uid


def to_be_forked(sim: Simulation) -> str:
    uids = sim.submit(PROMPT, 3, max_tokens=50)
    sim.steps(2)
    assert sim.state.statistics().waiting == 2
    return uids[2]


def only_one_to_be_forked(sim: Simulation) -> str:
    uids = sim.submit(PROMPT, 2, max_tokens=50)
    sim.steps(2)
    return uids[1]


def copied_from_in_flight(sim: Simulation) -> str:
    uids = sim.submit(PROMPT, 2, max_tokens=50)
    sim.step()
    assert sim.begin().copies
    return uids[1]


def running(sim: Simulation) -> str:
    (uid,) = sim.submit(PROMPT, max_tokens=50)
    sim.steps(3)
    assert sim.state.statistics().running == 1
    return uid


def running_in_flight(sim: Simulation) -> str:
    uid = running(sim)
    sim.begin()
    return uid


def paused(sim: Simulation) -> str:
    uid = running(sim)
    sim.pause(uid)
    assert sim.state.statistics().paused == 1
    return uid


def preempted(sim: Simulation) -> str:
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
