"""One prefill for n choices: forking, sharing pages, and ending apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from trioserve.sched.commit import Admitted
from trioserve.step import StepPlan

PROMPT = [1, 2, 3, 4, 5, 6]


def spans(plan: StepPlan) -> list[int]:
    """Tokens of each span."""
    return [b - a for a, b in pairwise(plan.spans.starts)]


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_is_computed_once_whatever_n_is(simulate: Callable, n: int, budget: int, prefix_cache: bool) -> None:
    # FAN-8
    sim = simulate(max_batch_tokens=budget, prefix_cache=prefix_cache)
    sim.submit(PROMPT, n)
    sim.finish()
    statistics = sim.state.statistics()
    assert statistics.prompt_tokens_computed == len(PROMPT)
    assert statistics.prompt_tokens_cached == 0
    assert statistics.tokens_recomputed == 0
    computed = sum(len(plan.spans.tokens) for plan in sim.device.plans)
    assert computed == len(PROMPT) + n * 3  # of the four tokens drawn for a choice, the last is not computed


def test_the_second_prompt_finds_the_first_in_the_cache(simulate: Callable) -> None:  # FAN-8, FAN-21
    sim = simulate()
    sim.submit(PROMPT, 2)
    sim.finish()
    uids = sim.submit([*PROMPT, 7, 8, 9], 3)
    sim.finish()
    statistics = sim.state.statistics()
    assert [sim[uid].admitted.cached_tokens for uid in uids] == [4, 4, 4]
    assert statistics.prompt_tokens_cached == 4
    assert statistics.prompt_tokens_computed == len(PROMPT) + 5


@pytest.mark.parametrize("budget", [7, 8, 64])
def test_a_prompt_is_found_while_its_choices_still_run(simulate: Callable, budget: int) -> None:
    sim = simulate(max_batch_tokens=budget)  # with 7, the second page is filled by a chunk of one token
    sim.submit([1] * 8, max_tokens=20)
    sim.steps(3)
    (uid,) = sim.submit([1] * 9)
    sim.step()
    assert sim[uid].admitted.cached_tokens == 8


def test_an_answer_is_found_by_the_next_turn_of_the_conversation(simulate: Callable) -> None:
    sim = simulate()
    (first,) = sim.submit(PROMPT, max_tokens=5)
    sim.finish()
    # 11 tokens, of which the last was drawn but not computed: two whole pages
    (second,) = sim.submit([*PROMPT, *sim[first].tokens, 1, 2])
    sim.finish()
    assert sim[second].admitted.cached_tokens == 8


def test_without_a_prefix_cache_nothing_is_found_or_kept(simulate: Callable) -> None:
    sim = simulate(prefix_cache=False)
    for _ in range(2):
        (uid,) = sim.submit(PROMPT)
        sim.finish()
        assert sim[uid].admitted.cached_tokens == 0
    assert sim.state.statistics().pages_cached == 0


def test_the_first_tokens_are_drawn_from_one_row_of_logits(simulate: Callable) -> None:  # FAN-11
    sim = simulate()
    sim.submit(PROMPT, 5, seed=40)
    rows = sim.begin().rows
    assert list(rows.tokens) == [len(PROMPT) - 1] * 5
    assert list(rows.seeds) == [40, 41, 42, 43, 44]
    assert list(rows.counters) == [len(PROMPT)] * 5


def test_choices_share_whole_pages_and_copy_the_last_one_but_for_the_last_of_them(simulate: Callable) -> None:
    # FAN-11
    sim = simulate()
    sim.submit(PROMPT, 3)
    sim.step()
    plan = sim.begin()
    tables = [plan.spans.pages[i * 2 : i * 2 + 2] for i in range(3)]
    assert len({table[0] for table in tables}) == 1
    assert len({table[1] for table in tables}) == 3
    sources, targets = set(plan.copies[::2]), set(plan.copies[1::2])
    assert sources == {tables[2][1]}
    assert targets == {tables[0][1], tables[1][1]}
    assert sim.state.statistics().pages_held == 4


def test_a_prompt_of_whole_pages_is_never_copied(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1, 2, 3, 4], 3)
    sim.finish()
    assert all(not plan.copies for plan in sim.device.plans)


def test_a_single_choice_takes_the_pages_of_its_prompt_over(simulate: Callable) -> None:  # FAN-5
    sim = simulate(page_count=2)
    sim.submit(PROMPT, max_tokens=2)
    sim.finish()
    assert not sim.device.plans[1].copies
    assert sim.state.statistics().preemptions == 0


def test_decodes_of_a_group_say_which_pages_they_share(simulate: Callable) -> None:  # FAN-30
    sim = simulate()
    sim.submit([*PROMPT, 7, 8, 9], 3)
    sim.submit([5, 5], 2)  # no whole page
    sim.submit([6] * 4, 2)
    sim.steps(2)
    plan = sim.begin()
    assert spans(plan) == [1] * 7
    assert list(plan.shared) == [0, 3, 2, 5, 2, 1]


def test_groups_that_found_the_same_pages_share_them_too(simulate: Callable) -> None:  # FAN-30
    sim = simulate()
    for _ in range(2):
        sim.submit(PROMPT, 2, max_tokens=9)
        sim.steps(2)
    assert list(sim.begin().shared) == [0, 4, 1]


def test_a_chunk_between_them_does_not_join_the_decodes(simulate: Callable) -> None:  # FAN-30
    sim = simulate()
    sim.submit(PROMPT, 2, max_tokens=9)
    sim.steps(2)
    sim.submit(PROMPT * 2)
    plan = sim.begin()
    assert spans(plan) == [1, 1, 8]
    assert list(plan.shared) == [0, 2, 1]


def test_choices_end_apart_and_each_is_told_once(simulate: Callable) -> None:  # case n-finish-independently
    sim = simulate()
    uids = sim.submit(PROMPT, 4, max_tokens=[2, 9, 1, 50])
    ends: dict[str, int] = {}
    while (deliveries := sim.step()) is not None:
        for delivery in deliveries:
            if delivery.finish is not None:
                assert delivery.uid not in ends
                ends[delivery.uid] = sim.state.statistics().steps
    assert [ends[uid] for uid in uids] == [2, 9, 1, 50]
    assert sim.state.idle
    assert sim.state.statistics().pages_held == 0


def test_choices_that_end_at_their_first_token_are_never_forked(simulate: Callable) -> None:
    sim = simulate()
    sim.submit(PROMPT, 3, max_tokens=1)
    assert len(sim.step()) == 3
    assert sim.state.idle
    assert sim.step() is None


def test_a_stop_id_ends_a_choice_and_is_its_last_token(simulate: Callable, stop_id: int) -> None:
    sim = simulate()
    uids = sim.submit(PROMPT, 8, max_tokens=30, stop_ids=frozenset({stop_id}))
    sim.finish()
    stopped = [sim[uid] for uid in uids if sim[uid].finish == "stop"]
    assert stopped
    assert all(told.tokens.index(stop_id) == len(told.tokens) - 1 for told in stopped)


def test_a_stop_id_at_the_last_allowed_token_is_a_stop(simulate: Callable, stop_id: int) -> None:
    sim = simulate()
    (free,) = sim.submit(PROMPT, max_tokens=30, stop_ids=frozenset({stop_id}))
    sim.finish()
    (tight,) = sim.submit(PROMPT, max_tokens=len(sim[free].tokens), stop_ids=frozenset({stop_id}))
    sim.finish()
    assert sim[tight].finish == "stop"


def test_more_choices_than_slots_wait_for_the_pinned_prompt_to_be_forked(simulate: Callable) -> None:  # case huge-n
    sim = simulate(max_running=8)
    uids = sim.submit(PROMPT, 64)
    sim.step()
    # the first tokens of all were drawn together; the prompt stays
    assert all(len(sim[uid].tokens) == 1 for uid in uids)
    assert sim.state.statistics().waiting == 64
    while sim.begin() is not None:
        assert len(sim.in_flight[0].rows.tokens) <= 8
        sim.land()
    assert all(sim[uid].finish == "length" for uid in uids)
    statistics = sim.state.statistics()
    assert statistics.prompt_tokens_computed == len(PROMPT)
    assert statistics.tokens_recomputed == statistics.preemptions == 0
    assert statistics.pages_held == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_that_pages_do_not_suffice_for_are_forked_later_from_the_same_prompt(
    simulate: Callable, prefix_cache: bool
) -> None:
    # FAN-11, case huge-n: KV for all n does not fit
    sim = simulate(page_count=8, prefix_cache=prefix_cache)
    uids = sim.submit(PROMPT, 12, max_tokens=5)
    sim.finish()
    assert all(sim[uid].finish == "length" for uid in uids)
    assert sim.state.statistics().tokens_recomputed == 0
    assert max(len(plan.spans.starts) - 1 for plan in sim.device.plans) < 12


def test_everyone_is_told_the_admission_at_once_though_the_prompt_takes_several_steps(simulate: Callable) -> None:
    # FAN-21
    sim = simulate(max_batch_tokens=4)
    uids = sim.submit(PROMPT, 3)
    deliveries = sim.step()
    assert [delivery.uid for delivery in deliveries] == uids
    assert {(delivery.admitted, delivery.token_ids) for delivery in deliveries} == {(Admitted(0, 1.0), ())}
    assert [delivery.admitted for delivery in sim.step()] == [None] * 3


def test_admission_says_how_long_the_group_waited(simulate: Callable) -> None:
    sim = simulate(max_running=1)
    sim.submit(PROMPT, max_tokens=5)
    sim.steps(3)
    (uid,) = sim.submit(PROMPT)
    sim.finish()
    assert sim[uid].admitted.waited_s == 3.0
