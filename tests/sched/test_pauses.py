"""A choice whose tokens nobody takes rests, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

from trioserve.sched.group import Uid

PROMPT = [1, 2, 3, 4, 5, 6]


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
