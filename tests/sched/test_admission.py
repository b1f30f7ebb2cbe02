"""Which groups start when there are more than can: what the order of the queue does to steps."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.sched.group import Group, Uid

if TYPE_CHECKING:
    from tests.sched.conftest import Simulation

HOT = [5, 5, 5, 5, 5, 5, 5, 5]
COLD = [6, 6, 6]


def warm(sim: Simulation) -> None:
    """Leave the two pages of HOT in the cache."""
    sim.submit([*HOT, 0], max_tokens=1)
    sim.finish()


def admissions(sim: Simulation) -> list[list[str]]:
    """The groups that every step from now on admits, until nothing runs; what admits none is left out."""
    found: list[list[str]] = []
    while (deliveries := sim.step()) is not None:
        names = {str(delivery.uid).split(".")[0]: None for delivery in deliveries if delivery.admitted is not None}
        found += [list(names)] if names else []
    return found


# who goes first


def test_of_those_that_wait_the_best_cached_starts_first(simulate: Callable) -> None:
    sim = simulate(max_running=1)
    warm(sim)
    sim.submit(COLD, name="cold")
    sim.submit([*HOT, 1, 2, 3, 4, 5], name="warm")
    sim.submit([*HOT, 1], name="hot")
    assert admissions(sim) == [["hot"], ["warm"], ["cold"]]


def test_forks_of_a_group_that_overtook_come_before_the_overtaken(simulate: Callable) -> None:
    sim = simulate(max_running=1)
    warm(sim)
    sim.submit(COLD, seed=10)
    sim.submit([*HOT, 1], 3, max_tokens=3, seed=20)
    sim.device.plans.clear()
    sim.finish()
    order = [seed for plan in sim.device.plans for seed in plan.rows.seeds]
    assert order == [20, 21, 22, 20, 20, 21, 21, 22, 22, 10, 10, 10, 10]


def test_what_was_preempted_comes_before_new_groups(simulate: Callable) -> None:
    sim = simulate(page_count=5)
    warm(sim)
    older, younger = (sim.submit([j] * 7, max_tokens=9, name=f"{j}")[0] for j in (1, 2))
    while sim.state.statistics().preemptions == 0:
        sim.step()
    sim.submit([3], name="new")
    ended: list[str] = []
    while (deliveries := sim.step()) is not None:
        if any(delivery.uid == "new.0" and delivery.admitted for delivery in deliveries):
            ended = [uid for uid in (older, younger) if sim[uid].finish is not None]
            assert len(sim[younger].tokens) > 2
    assert older in ended


def test_a_new_group_takes_no_pages_from_those_that_overtook_it(simulate: Callable) -> None:
    sim = simulate(page_count=5)
    warm(sim)
    sim.submit([7] * 16, name="large")
    sim.submit([*HOT, 1], name="hot", max_tokens=7)
    assert admissions(sim) == [["hot"], ["large"]]
    assert sim.state.statistics().preemptions == 0


# who need not wait for one that does not fit


def test_a_small_group_starts_while_the_first_does_not_fit(simulate: Callable) -> None:
    sim = simulate(page_count=4, max_overtaken_s=100)
    (running,) = sim.submit([1] * 5, max_tokens=4)
    sim.steps(2)
    sim.submit([2] * 9, name="large")
    sim.submit([3], name="small")
    assert admissions(sim) == [["small"], ["large"]]
    assert sim[running].finish == "length"


def test_a_large_group_starts_though_small_ones_come_for_ever(simulate: Callable) -> None:
    sim = simulate(page_count=4, max_overtaken_s=6)
    sim.submit([1] * 4, max_tokens=4)
    sim.step()
    (large,) = sim.submit([2] * 13)
    for step in range(20):
        sim.submit([3], name=f"small{step}")
        sim.step()
        if sim[large].admitted is not None:
            break
    assert sim[large].admitted is not None
    assert sim[large].admitted.waited_s <= 6 + 1 + 4 + 1  # overtaken in the next step; then those that run have to end
    assert sim["small0.0"].finish == "length"


# who waits for a page that another computes


def test_groups_that_wait_with_the_same_prompt_compute_it_once(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=8)
    for j in range(4):
        sim.submit([1] * 30, 2, seed=10 * j, name=f"{j}")
    assert admissions(sim) == [["0"], ["1", "2", "3"]]
    statistics = sim.state.statistics()
    assert (statistics.prompt_tokens_computed, statistics.prompt_tokens_cached) == (30 + 3 * 2, 3 * 28)


def test_a_group_waits_no_longer_than_for_what_it_shares(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=8)
    sim.submit([1] * 30, name="long")
    sim.submit([1] * 4 + [2] * 4, name="first page")
    sim.submit([1] * 12 + [3] * 4, name="three pages")
    sim.step()
    assert sim.state.statistics().prefilling == 1
    assert sim.state.statistics().waiting == 2
    # eight tokens of the long prompt are computed: the first page is there, the third is coming
    sim.step()
    assert sim["first page.0"].admitted is None
    sim.finish()
    assert [sim[f"{name}.0"].admitted.cached_tokens for name in ("long", "first page", "three pages")] == [0, 4, 12]


def test_others_start_meanwhile(simulate: Callable) -> None:
    sim = simulate(max_batch_tokens=10)
    sim.submit([1] * 9, name="first")
    sim.submit([1] * 9, name="same")
    sim.submit([2], name="other")
    assert admissions(sim) == [["first", "other"], ["same"]]


@pytest.mark.parametrize(
    "end",
    [
        lambda sim: sim.abort("first.0"),
        lambda sim: sim.pause("first.0"),
        lambda sim: sim.state.flush_cache(),
    ],
    ids=["aborted", "paused", "flushed"],
)
def test_nobody_waits_for_a_page_that_does_not_come(simulate: Callable, end: Callable) -> None:
    sim = simulate(max_batch_tokens=8)
    sim.submit([1] * 14, name="first")
    sim.submit([1] * 14, name="same")
    sim.step()
    assert sim["same.0"].admitted is None
    end(sim)
    sim.step()
    assert sim["same.0"].admitted is not None
    sim.drained("first.0")
    sim.finish()


def test_without_a_prefix_cache_nobody_waits_for_it(simulate: Callable) -> None:
    sim = simulate(prefix_cache=False)
    for name in ("one", "two"):
        sim.submit([1] * 9, name=name)
    assert admissions(sim) == [["one", "two"]]


def test_a_group_does_not_wait_for_a_page_that_it_would_compute_all_the_same(simulate: Callable) -> None:
    # the last token is never taken from the cache, and with it the last of two whole pages
    sim = simulate()
    warm(sim)
    for name in ("one", "two"):
        sim.submit([5, 5, 5, 5, 3, 3, 3, 3], name=name)
    assert admissions(sim) == [["one", "two"]]


@pytest.mark.parametrize(("age", "later"), [(0.0, 2.0), (9.0, 1.0)])
def test_what_was_overtaken_for_too_long_waits_for_no_page(simulate: Callable, age: float, later: float) -> None:
    sim = simulate(max_batch_tokens=8, max_overtaken_s=9)
    for name in ("first", "same"):
        sim.pause(sim.submit([1] * 14, name=name)[0])
    sim.submit([2], name="other", max_tokens=1)
    assert admissions(sim) == [["other"]]
    sim.drained("first.0")
    sim.drained("same.0")
    sim.now += age
    sim.finish()
    # the first is computed in two steps; in the second there is room for another
    assert sim["same.0"].admitted.waited_s - sim["first.0"].admitted.waited_s == later


# nobody starves


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    page_count=st.integers(4, 12),
    max_running=st.integers(1, 4),
    max_batch_tokens=st.sampled_from([2, 5, 16]),
    max_overtaken_s=st.sampled_from([1, 4, 20]),
    unlucky=st.lists(st.integers(6, 7), min_size=1, max_size=14),
    n=st.integers(1, 6),
    hot=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=5),
)
def test_an_unlucky_group_starts_though_better_cached_ones_come_for_ever(
    simulate: Callable,
    unlucky: list[int],
    n: int,
    hot: list[tuple[int, int, int]],
    **options: int,
) -> None:
    sim = simulate(**options)
    warm(sim)

    def keep_busy(step: int) -> None:
        """At least four cached choices wait, always."""
        while sim.state.statistics().waiting < 4 + n:
            tail, choices, max_tokens = hot[step % len(hot)]
            sim.submit([*HOT, *range(tail)] if tail else HOT[:5], choices, max_tokens=max_tokens)

    keep_busy(0)
    uids = sim.submit(unlucky, n, name="unlucky")
    (arrival,) = [arrival for arrival in sim.queue if arrival.uids == uids]
    aged, left = False, 0
    for step in range(1000):
        keep_busy(step)
        sim.step()
        if sim["unlucky.0"].admitted is not None:
            break
        is_aged = arrival.overtaken is not None and sim.now - arrival.overtaken >= options["max_overtaken_s"]
        if is_aged and not aged:
            aged = True
            # nothing is left to come before it but what runs, and the aged before it
            before = [uid for uid in sim.live if sim[uid].admitted is not None]
            before += [uid for older in sim.queue[: sim.queue.index(arrival)] for uid in older.uids]
            left = 2 + 4 * sum(len(sim[uid].prompt) + sim[uid].spec.max_tokens for uid in before)
        left -= aged
        assert left >= 0, "it was overtaken for too long"
    assert sim["unlucky.0"].admitted is not None


@pytest.mark.parametrize("fits", [True, False])
def test_a_plan_costs_the_same_however_long_the_queue_is(simulate: Callable, spec: Callable, fits: bool) -> None:
    def calls(waiting: int) -> int:
        """Functions called to plan a step in which nothing can start."""
        sim = simulate(page_count=20, max_running=100 if not fits else 1, max_queued=10_000)
        sim.submit([1] * 40, max_tokens=30)
        sim.steps(2)
        for j in range(waiting):
            group = Group(id=f"{j}", prompt=array("i", [*range(3), j] * 12), choices=(spec(uid=Uid(f"w{j}")),))
            sim.state.submit(group, 0.0)
        count = 0

        def profile(*_: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        gc.disable()  # or what others do when garbage is collected would be counted too
        sys.setprofile(profile)
        try:
            assert sim.state.plan(sim.now) is not None
        finally:
            sys.setprofile(before)
            gc.enable()
        return count

    assert calls(2000) == calls(200)
