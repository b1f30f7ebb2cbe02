"""What a request may ask of a choice besides tokens: changed logits, structures, scores, a place in the queue.

That it comes out right under anything that can happen is shown by test_scheduler_machine.py; here is each by itself.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import attrs
import pytest

from trioserve.errors import InvariantError, StructureError
from trioserve.step import StepResult


def test_a_step_with_nothing_to_change_has_no_changes(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1, 2, 3], 2, max_tokens=3)
    sim.finish()
    assert all(not plan.rows.changes.rows and not plan.rows.targets for plan in sim.device.plans)


def test_penalties_count_the_tokens_of_the_choice_and_its_draft(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8)
    prediction = sim.almost([1, 2, 3], 0, wrong=0)
    sim.submit([1, 2, 3], 1, max_tokens=6, presence_penalty=1.0, prediction=prediction)
    sim.finish()
    seen = [
        list(changes.generated[changes.generated_starts[c] : changes.generated_starts[c + 1]])
        for changes in (plan.rows.changes for plan in sim.device.plans)
        for c in range(len(changes.rows))
    ]
    assert [] in seen
    assert max(map(len, seen)) >= 5
    assert all(not plan.rows.changes.prompts for plan in sim.device.plans)


def test_only_a_repetition_penalty_needs_the_prompt(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1, 2, 3], 2, max_tokens=2, repetition_penalty=1.5)
    sim.step()
    changes = sim.device.plans[0].rows.changes
    assert list(changes.prompts) == [1, 2, 3] * 2
    assert list(changes.prompt_starts) == [0, 3, 6]


def test_stop_ids_are_forbidden_until_there_are_min_tokens(simulate: Callable, stop_id: int) -> None:
    sim = simulate()
    sim.submit([1], 1, max_tokens=4, min_tokens=2, stop_ids=frozenset({stop_id}), biases=((stop_id, 5.0), (1, 1.0)))
    sim.finish()
    told = [sorted(zip(plan.rows.changes.bias_ids, plan.rows.changes.biases, strict=True)) for plan in sim.device.plans]
    assert told[:2] == [[(1, 1.0), (stop_id, -math.inf)]] * 2
    assert told[2:] in ([[(1, 1.0), (stop_id, 5.0)]] * 2, [[(1, 1.0), (stop_id, 5.0)]])


def test_a_structure_ends_its_choice_where_it_is_complete(simulate: Callable) -> None:
    sim = simulate()
    uids = sim.submit([1, 2], 3, max_tokens=9, structured=4)
    sim.finish()
    assert [(len(sim[uid].tokens), sim[uid].finish) for uid in uids] == [(4, "stop")] * 3


def test_first_tokens_share_a_matcher_and_later_ones_do_not(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1, 2], 3, max_tokens=9, structured=4)
    first, second = (sim.begin().rows.changes.matchers for _ in range(2) if not sim.in_flight or sim.land() or True)
    assert len({id(matcher) for matcher in first}) == 1
    assert len({id(matcher) for matcher in second}) == 3
    assert [matcher.climbed for matcher in first] == [0, 0, 0]


def test_a_choice_with_a_structure_gets_no_drafts(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8)
    sim.submit([1, 2, 1, 2, 1, 2], 1, max_tokens=8, structured=8, prediction=[0, 1, 2, 3, 4, 5, 6])
    sim.finish()
    assert sim.state.statistics().drafts == 0


@attrs.define(eq=False)
class Broken:
    """A Matcher that can't go on after some tokens."""

    left: int

    def fill_mask(self, mask: memoryview) -> None:
        mask[0] = 0xFFFFFFFF

    def advance(self, token_id: int) -> bool:
        if self.left == 0:
            raise RecursionError("too deep")
        self.left -= 1
        return False

    def copy(self) -> Broken:
        return Broken(self.left)


def test_a_matcher_that_fails_ends_its_choice_alone(simulate: Callable, spec: Callable) -> None:
    sim = simulate()
    (bystander,) = sim.submit([1, 2], max_tokens=6)
    sim.submit([3], max_tokens=6, name="broken", matcher=Broken(2))
    endings = []
    while (plan := sim.begin()) is not None:
        result, sim.in_flight = sim.in_flight[1], None
        deliveries = sim.state.commit(plan, result)
        sim.state.check()
        endings += [delivery for delivery in deliveries if delivery.finish is not None]
    by_uid = {delivery.uid: delivery for delivery in endings}
    assert by_uid[bystander].finish == "length"
    assert by_uid["broken.0"].finish == "error"
    assert by_uid["broken.0"].token_ids == ()
    assert isinstance(by_uid["broken.0"].error, RecursionError)


def test_a_choice_for_which_no_token_is_left_fails_alone(simulate: Callable) -> None:
    sim = simulate()
    sim.submit([1], 2, max_tokens=3)
    plan = sim.state.plan(0.0)
    deliveries = sim.state.commit(plan, StepResult(plan.number, array("i", [-1, 2]), array("d", [0.0, 0.0])))
    assert [delivery.finish for delivery in deliveries] == ["error", None]
    assert isinstance(deliveries[0].error, StructureError)
    assert deliveries[0].token_ids == ()
    sim.state.check()


def test_a_prompt_is_scored_once_in_chunks_of_as_many_tokens_as_may_decode(simulate: Callable) -> None:
    sim = simulate(max_running=3)
    prompt = [1, 2, 3, 4, 5, 6, 5, 4]
    sim.submit(prompt, 2, max_tokens=1, prompt_logprobs=1)
    sim.finish()
    targets = [[target for target in plan.rows.targets if target >= 0] for plan in sim.device.plans]
    assert targets == [[2, 3, 4], [5, 6, 5], [4]]


def test_a_prompt_that_is_preempted_is_not_scored_again(simulate: Callable) -> None:  # case preempt-same-output
    sim = simulate(page_size=1, page_count=14, max_running=2, prefix_cache=False)
    sim.submit([1, 2], max_tokens=9)
    sim.submit([3, 4, 5, 6, 5, 4, 3, 2, 1, 0], max_tokens=2, prompt_logprobs=2)
    sim.finish()
    assert sim.state.statistics().tokens_recomputed > 0
    scored = [target for plan in sim.device.plans for target in plan.rows.targets if target >= 0]
    assert scored == [4, 5, 6, 5, 4, 3, 2, 1, 0]


def test_min_tokens_count_the_drafted_ones_before_a_row(simulate: Callable, stop_id: int) -> None:
    sim = simulate(lookup_rows=8)
    stops = frozenset({stop_id})
    sim.submit([1], max_tokens=12, min_tokens=6, stop_ids=stops, prediction=[0, 1, 2, 3, 4, 5] * 3, prompt_lookup=False)
    drafted = 0
    while (plan := sim.begin()) is not None:
        known, first = len(sim["g0.0"].tokens), plan.spans.positions[0]
        banned = {r for r, bias in zip(plan.rows.changes.rows, plan.rows.changes.biases, strict=True) if bias < 0}
        for r, counter in enumerate(plan.rows.counters):
            assert (r in banned) == (counter - 1 < 6), (known, first)
        drafted += len(plan.rows.tokens) - 1
        sim.land()
    assert drafted > 0


def test_a_scored_prompt_is_computed_whole_and_cached_for_the_others(simulate: Callable) -> None:
    # case prompt-logprobs-vs-prefix-cache
    sim = simulate()
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    for wanted, cached in ((0, 0), (1, 0), (0, 8)):
        (uid,) = sim.submit(prompt, max_tokens=1, prompt_logprobs=wanted)
        sim.finish()
        assert sim[uid].admitted.cached_tokens == cached


def test_a_choice_of_no_tokens_ends_with_its_prompt(simulate: Callable) -> None:
    sim = simulate()
    uids = sim.submit([1, 2, 3], 2, max_tokens=0, prompt_logprobs=1)
    assert sim.finish() == 1
    assert [(sim[uid].tokens, sim[uid].finish) for uid in uids] == [([], "length")] * 2
    assert not any(target < 0 for target in sim.device.plans[0].rows.targets)


def test_another_salt_is_another_prompt(simulate: Callable) -> None:
    sim = simulate()
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    found = []
    for salt in (b"", b"a", b"b", b"a", b""):
        (uid,) = sim.submit(prompt, max_tokens=1, cache_salt=salt)
        sim.finish()
        found.append(sim[uid].admitted.cached_tokens)
    assert found == [0, 0, 0, 8, 8]


def test_a_lower_priority_number_starts_first(simulate: Callable) -> None:
    sim = simulate(max_running=1)
    for name, priority in (("first", 0), ("late", 3), ("early", -2), ("second", 0)):
        sim.submit([1, 2], max_tokens=2, name=name, priority=priority)
    order = []
    while (deliveries := sim.step()) is not None:
        order += [delivery.uid for delivery in deliveries if delivery.admitted is not None]
    assert order == ["early.0", "first.0", "second.0", "late.0"]


def test_a_higher_priority_takes_no_pages_from_what_runs(simulate: Callable) -> None:
    sim = simulate(page_size=1, page_count=8)
    sim.submit([1, 2], max_tokens=6, name="running")
    sim.steps(3)
    sim.submit([3, 4, 5, 6], max_tokens=2, name="urgent", priority=-9)
    sim.finish()
    assert sim.state.statistics().preemptions == 0


@pytest.mark.parametrize("more", [0, 2])
def test_a_result_without_the_likeliest_tokens_is_refused(simulate: Callable, more: int) -> None:
    sim = simulate()
    sim.submit([1], max_tokens=1, seed=1)  # asks for one besides its own
    plan = sim.state.plan(0.0)
    result = StepResult(
        plan.number, array("i", [1]), array("d", [-1.0]), array("i", [0] * more), array("d", [0] * more)
    )
    with pytest.raises(InvariantError, match="likeliest"):
        sim.state.commit(plan, result)
