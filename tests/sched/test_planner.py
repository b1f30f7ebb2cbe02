"""What a step holds, and who gives up pages."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from trioserve.sched.group import Group
from trioserve.step import StepPlan

if TYPE_CHECKING:
    from tests.sched.conftest import Simulation


def spans(plan: StepPlan) -> list[int]:
    """Tokens of each span."""
    return [b - a for a, b in pairwise(plan.spans.starts)]


def seeds(plan: StepPlan) -> list[int]:
    """Of each row; tests give every group its own."""
    return list(plan.rows.seeds)


def test_there_is_no_plan_without_work(simulate: Callable) -> None:
    assert simulate().begin() is None


def test_plans_are_numbered_from_0(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1], max_tokens=3)
    sim.finish()
    assert [plan.number for plan in sim.device.plans] == [0, 1, 2]


def test_decodes_come_before_chunks_and_chunks_take_the_rest_of_the_budget(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=8)
    sim.submit([1], 3, max_tokens=9)
    sim.steps(2)
    sim.submit([2] * 12)
    assert [spans(sim.begin()), sim.land()][0] == [1, 1, 1, 5]
    assert [spans(sim.begin()), sim.land()][0] == [1, 1, 1, 5]
    assert [spans(sim.begin()), sim.land()][0] == [1, 1, 1, 2]


def test_a_chunk_under_way_goes_before_a_new_prompt(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=8)
    sim.submit([1] * 12, seed=1)
    sim.submit([2] * 3, seed=2)
    assert [spans(sim.begin()), sim.land()][0] == [8]
    assert [spans(sim.begin()), sim.land()][0] == [4, 3]


def test_only_the_chunk_that_reaches_the_end_draws(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=4)
    sim.submit([1] * 9, 2)
    rows = []
    for _ in range(3):
        rows.append(len(sim.begin().rows.tokens))
        sim.land()
    assert rows == [0, 0, 2]


def test_sampling_parameters_go_with_their_rows(simulate: Callable, spec: Callable) -> None:
    sim = simulate()
    one = spec(uid="a", seed=2**64 - 1, temperature=0.0, top_p=0.5, top_k=-1, min_p=0.25)
    two = spec(uid="b", seed=3, temperature=1.5, top_p=1.0, top_k=20, min_p=0.0)
    sim.state.submit(Group(id="g", prompt=array("i", [1]), choices=(one, two)), 0.0)
    rows = sim.state.plan(0.0).rows
    assert list(rows.seeds) == [2**64 - 1, 3]
    assert list(rows.temperatures) == [0.0, 1.5]
    assert list(rows.top_ps) == [0.5, 1.0]
    assert list(rows.top_ks) == [-1, 20]
    assert list(rows.min_ps) == [0.25, 0.0]


def test_groups_start_in_the_order_they_came(simulate: Callable) -> None:  # case pool-exhaustion: FIFO
    sim = simulate(max_running=1)
    uids = [sim.submit([j + 1])[0] for j in range(4)]
    order = []
    while (deliveries := sim.step()) is not None:
        order += [delivery.uid for delivery in deliveries if delivery.finish is not None]
    assert order == uids


def test_nothing_overtakes_a_prompt_that_waits_for_pages_if_nothing_may(simulate: Callable) -> None:
    sim = simulate(page_count=4, max_overtaken_s=0)
    sim.submit([1] * 5, seed=1, max_tokens=4)
    sim.steps(2)
    sim.submit([2] * 9, seed=2)
    sim.submit([3], seed=3)
    assert seeds(sim.begin()) == [1]
    sim.land()
    while sim.step() is not None:
        pass
    firsts = [min(i for i, plan in enumerate(sim.device.plans) if seed in plan.rows.seeds) for seed in (1, 2, 3)]
    assert firsts == sorted(firsts)


def test_a_start_leaves_a_page_for_each_that_runs(simulate: Callable) -> None:
    sim = simulate(page_count=4)
    sim.submit([1] * 3, seed=1, max_tokens=9)
    sim.step()
    sim.submit([2] * 9, seed=2)  # the three pages are there; but in a moment the first needs its second
    sim.finish()
    assert sim.state.statistics().preemptions == 0


def both_decode(sim: Simulation, older: dict[str, object], younger: dict[str, object]) -> None:
    """Bring two groups to decode though there are not enough slots: the older was paused meanwhile."""
    uids = sim.submit(**older)
    sim.steps(2)
    for uid in uids:
        sim.pause(uid)
    sim.submit(**younger)
    sim.steps(2)
    for uid in uids:
        sim.drained(uid)


@pytest.mark.parametrize("bound", [{"max_running": 2}, {"max_batch_tokens": 3}], ids=str)
def test_more_decodes_than_slots_take_turns_oldest_first(simulate: Callable, bound: dict[str, int]) -> None:
    sim = simulate(**bound)
    both_decode(
        sim,
        {"prompt": [1], "n": 1, "max_tokens": 40, "seed": 10},
        {"prompt": [2], "n": 2, "max_tokens": 40, "seed": 20},
    )
    turns = []
    for _ in range(4):
        turns.append(seeds(sim.begin()))
        sim.land()
    assert turns == [[10, 20], [10, 21], [20, 21], [10, 20]]


def test_if_the_one_whose_turn_it_is_has_to_go_another_takes_the_turn(simulate: Callable) -> None:
    sim = simulate(page_count=4, max_running=1)
    both_decode(
        sim,
        {"prompt": [1] * 3, "max_tokens": 9, "seed": 10},
        {"prompt": [2] * 7, "max_tokens": 9, "seed": 20},
    )
    assert [seeds(sim.begin()), sim.land()][0] == [10]  # takes the last page
    assert sim.state.statistics().preemptions == 0
    assert [seeds(sim.begin()), sim.land()][0] == [10]  # the younger's turn, which needs a page
    assert sim.state.statistics().preemptions == 1
    sim.finish()


def test_the_budget_bounds_the_decodes_too(simulate: Callable) -> None:
    sim = simulate(max_running=10, max_batch_tokens=4)
    sim.submit([1], 5, max_tokens=6)
    sim.finish()
    assert max(len(plan.spans.tokens) for plan in sim.device.plans) == 3


def test_a_prompt_gets_a_quarter_of_each_step_however_many_decode(simulate: Callable) -> None:
    sim = simulate(max_running=100, max_batch_tokens=16)
    sim.submit([1], 11, max_tokens=40)
    sim.steps(3)
    sim.submit([2] * 40, 1, max_tokens=2)
    sim.steps(9)
    assert [len(plan.spans.tokens) for plan in sim.device.plans[3:12]] == [16] * 8 + [12]
    # 5 tokens of the prompt in each step beside the 11 that decode
    assert sim.state.statistics().prompt_tokens_computed == 41


def test_pages_short_of_cached_ones_are_evicted_before_anyone_is_preempted(simulate: Callable) -> None:
    sim = simulate(page_count=4)
    sim.submit([1] * 8, max_tokens=1)
    sim.finish()
    assert sim.state.statistics().pages_cached == 2
    sim.submit([2] * 4, max_tokens=10)
    sim.finish()
    assert sim.state.statistics().preemptions == 0


def test_the_youngest_is_preempted_and_the_oldest_never(simulate: Callable) -> None:
    sim = simulate(page_count=9)
    uids = [sim.submit([j] * 5, max_tokens=20, seed=j)[0] for j in (1, 2, 3)]
    order = []
    while (deliveries := sim.step()) is not None:
        order += [delivery.uid for delivery in deliveries if delivery.finish is not None]
    assert sim.state.statistics().preemptions > 0
    assert order == uids
    # whoever is oldest is in every step until it has ended
    assert all(1 in plan.rows.seeds for plan in sim.device.plans[:20])


def test_a_group_shrinks_from_its_end(simulate: Callable) -> None:
    sim = simulate(page_count=7)
    sim.submit([1] * 4, 3, max_tokens=12)
    rows = []
    while (plan := sim.begin()) is not None:
        rows.append(seeds(plan))
        sim.land()
    assert sim.state.statistics().preemptions > 0
    assert [0, 1] in rows
    assert all(0 in row for row in rows[:12])


def test_a_pinned_prompt_goes_last_of_its_group(simulate: Callable) -> None:
    # three pages: the prompt fills one and a half, so one choice can run beside the pinned prompt, for a while
    sim = simulate(page_count=3)
    first, second = sim.submit([1] * 6, 2, max_tokens=6)
    sim.steps(2)
    statistics = sim.state.statistics()
    assert (statistics.running, statistics.waiting, statistics.preemptions) == (1, 1, 0)
    sim.steps(2)
    assert sim.state.statistics().preemptions == 1  # the prompt's: there was nothing else to take
    assert len(sim[first].tokens) == 4
    sim.finish()
    assert sim[first].finish == sim[second].finish == "length"
    assert sim.state.statistics().prompt_tokens_computed == 6


def test_two_long_prompts_do_not_wait_for_each_other(simulate: Callable) -> None:
    sim = simulate(page_count=5, max_batch_tokens=4)
    for j in (1, 2):
        sim.submit([j] * 15)
    assert sim.finish(bound=40)
    assert not sim.live


@pytest.mark.parametrize("page_count", [10, 13, 20])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption_changes_nothing_but_the_time(
    simulate: Callable, stop_id: int, page_count: int, prefix_cache: bool
) -> None:
    # FAN-15, case preempt-same-output; the simulation compares each choice with what it is alone
    sim = simulate(page_count=page_count, max_batch_tokens=16, prefix_cache=prefix_cache)
    uids = [
        uid
        for j in range(8)
        for uid in sim.submit(
            [j, 1, 2, 3, 4, 5, 6], 2, max_tokens=24, seed=j, stop_ids=frozenset({stop_id} if j % 2 else ())
        )
    ]
    sim.finish()
    statistics = sim.state.statistics()
    assert all(sim[uid].finish is not None for uid in uids)
    assert statistics.preemptions > 0
    assert statistics.tokens_recomputed > 0
    assert statistics.prompt_tokens_computed + statistics.prompt_tokens_cached == 8 * 7
    assert statistics.tokens_generated == sum(len(sim[uid].tokens) for uid in uids)
    assert {sim[uid].admitted.cached_tokens for uid in uids} == {0}


def test_what_one_sibling_computed_again_the_others_find(simulate: Callable) -> None:
    sim = simulate(page_count=8, max_batch_tokens=8)
    uids = sim.submit([1] * 9, 2, max_tokens=9)
    sim.steps(3)
    for uid in uids:
        sim.pause(uid)
    sim.submit([7] * 31)  # takes all pages
    sim.finish()
    for uid in uids:
        sim.drained(uid)
    sim.finish()
    # ten tokens of each had been computed; the two whole pages of the prompt only once more
    assert sim.state.statistics().tokens_recomputed == 10 + 2


def test_recomputed_prompt_tokens_are_counted_apart(simulate: Callable) -> None:  # FAN-8
    sim = simulate(page_count=6, max_batch_tokens=4, prefix_cache=False)
    (old,) = sim.submit([1] * 3, max_tokens=15)
    sim.step()
    (young,) = sim.submit([2] * 13)
    sim.step()
    sim.pause(young)
    sim.submit([3] * 13)
    sim.steps(2)
    sim.drained(young)
    sim.finish()
    statistics = sim.state.statistics()
    assert statistics.preemptions > 0
    assert statistics.tokens_recomputed > 0
    assert statistics.prompt_tokens_computed == 3 + 13 + 13
    assert sim[old].finish == sim[young].finish == "length"
