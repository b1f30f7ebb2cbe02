"""Drafts in steps: what they save, what bounds them, and that nobody notices the wrong ones.

The simulation compares every token with the oracle, and every slot that is read with what belongs there (FAN-15); so
these tests only have to bring about what they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from trioserve.errors import ParamError
from trioserve.sched.group import ChoiceSpec
from trioserve.sched.state import SchedulerOptions

PROMPT = [1, 2, 3, 4, 5]
SIZES = {"page_size": 1, "page_count": 1, "max_running": 1, "max_queued": 1, "max_batch_tokens": 8}


def widths(sim: object) -> list[list[int]]:
    """Of each plan, the tokens of its spans."""
    starts = [plan.spans.starts for plan in sim.device.plans]  # type: ignore[attr-defined]
    return [[b - a for a, b in pairwise(each)] for each in starts]


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_a_right_draft_saves_a_step_for_each_of_its_tokens(simulate: Callable, page_size: int) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4, page_size=page_size)
    (uid,) = sim.submit(PROMPT, max_tokens=16, prediction=sim.almost(PROMPT, 0, wrong=0))
    # the first token, one after the fork, twice five, and four, since no draft goes past the end
    assert sim.finish() == 5
    assert widths(sim) == [[5], [1], [5], [5], [4]]
    statistics = sim.state.statistics()
    assert (statistics.drafts, statistics.draft_tokens, statistics.draft_tokens_accepted) == (3, 11, 11)
    assert statistics.tokens_generated == 16
    assert statistics.prompt_tokens_computed == 5
    assert statistics.tokens_recomputed == 0
    assert (sim[uid].accepted, sim[uid].rejected) == (11, 0)


def test_the_rows_of_a_draft_have_the_seed_and_the_positions_of_one_at_a_time(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=3)
    sim.submit(PROMPT, max_tokens=9, seed=77, prediction=sim.almost(PROMPT, 77, wrong=0))
    sim.steps(3)
    plan = sim.device.plans[-1]
    assert list(plan.spans.positions) == [6, 7, 8, 9]
    assert list(plan.rows.tokens) == [0, 1, 2, 3]
    assert list(plan.rows.counters) == [7, 8, 9, 10]
    assert list(plan.rows.seeds) == [77] * 4


def test_of_a_wrong_draft_what_was_right_is_kept(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4)
    prediction = sim.almost(PROMPT, 0, wrong=0)
    prediction[4] = (prediction[4] + 1) % 6
    (uid,) = sim.submit(PROMPT, max_tokens=16, prompt_lookup=False, prediction=prediction)
    sim.steps(3)
    assert len(sim[uid].tokens) == 5  # two without a draft, two drafted, and the one instead of the third
    assert (sim[uid].accepted, sim[uid].rejected) == (2, 2)
    sim.finish()
    statistics = sim.state.statistics()
    assert statistics.tokens_generated == 16
    assert statistics.draft_tokens_accepted == sim[uid].accepted
    assert statistics.draft_tokens == sim[uid].accepted + sim[uid].rejected


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_what_was_written_for_a_wrong_draft_is_never_found_in_the_cache(simulate: Callable, page_size: int) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4, page_size=page_size)
    for turn in range(3):
        (uid,) = sim.submit(PROMPT, max_tokens=10, prompt_lookup=False, prediction=sim.almost(PROMPT, 0, wrong=turn))
        sim.finish()
        # all that the answer and the wrong guesses begin with; the simulated device knows which slot is whose
        guessed = sim.almost(PROMPT, 0, wrong=turn)
        sim.submit([*PROMPT, *sim[uid].tokens, 0], max_tokens=1)
        sim.submit([*PROMPT, *guessed, 0], max_tokens=1)
        sim.finish()
    assert sim.state.statistics().prompt_tokens_cached > 0
    assert sim.state.statistics().draft_tokens > sim.state.statistics().draft_tokens_accepted > 0


def test_the_pages_of_a_draft_are_given_back(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4, page_size=1)
    answer = sim.almost(PROMPT, 0, wrong=0)
    wrong = [(token + 1) % 6 for token in answer[2:6]]
    sim.submit(PROMPT, max_tokens=9, prompt_lookup=False, prediction=answer[:2] + wrong)
    sim.steps(2)
    assert sim.begin() is not None
    assert len(sim.device.plans[-1].spans.tokens) == 5
    assert sim.state.statistics().pages_held == 5 + 2 + 4
    sim.land()
    # that of the token instead of the draft's first one is kept, as the next step needs it
    assert sim.state.statistics().pages_held == 5 + 3


@pytest.mark.parametrize("place", range(1, 11))
@pytest.mark.parametrize("ends", ["stop", "length"])
def test_an_end_in_the_middle_of_a_draft_is_the_end(
    simulate: Callable, spec: Callable[..., ChoiceSpec], place: int, ends: str
) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4, page_size=2)
    prediction = sim.almost(PROMPT, 3, wrong=0)
    first = prediction.index(prediction[place])
    stop_ids = frozenset({prediction[place]} if ends == "stop" else ())
    limit = 16 if ends == "stop" else place + 1
    (uid,) = sim.submit(PROMPT, max_tokens=limit, seed=3, stop_ids=stop_ids, prediction=prediction)
    sim.finish()
    assert sim[uid].finish == ends
    assert len(sim[uid].tokens) == (first if ends == "stop" else place) + 1
    assert sim.state.statistics().pages_held == 0


def test_no_draft_goes_past_the_end_of_the_pool(simulate: Callable) -> None:
    sim = simulate(page_size=4, page_count=3, lookup_rows=8)
    (uid,) = sim.submit(PROMPT, max_tokens=99, prediction=sim.almost(PROMPT, 0, wrong=0))
    sim.finish()
    assert len(sim[uid].tokens) == 3 * 4 - 5
    assert max(max(plan.spans.positions) for plan in sim.device.plans) < 12


def test_drafts_share_the_rows_that_decodes_leave(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=4)
    for n, expected in ((1, [5]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (8, [1] * 8), (9, [1] * 9)):
        uids = []
        for each in range(n):
            prompt = [*PROMPT, each % 6, n % 6]
            uids += sim.submit(prompt, max_tokens=16, prompt_lookup=False, prediction=sim.almost(prompt, 0, wrong=0))
        sim.steps(3)
        assert widths(sim)[-1] == expected
        for uid in uids:
            sim.abort(uid)


def test_rows_that_one_leaves_go_to_the_next(simulate: Callable) -> None:
    sim = simulate(lookup_rows=6, lookup_tokens=4)
    sim.submit([0, *PROMPT], max_tokens=16, prompt_lookup=False)
    prompt = [1, *PROMPT]
    sim.submit(prompt, max_tokens=16, prompt_lookup=False, prediction=sim.almost(prompt, 0, wrong=0))
    sim.steps(3)
    assert widths(sim)[-1] == [1, 5]


def test_drafts_leave_prompts_a_quarter_of_each_step(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8, lookup_tokens=8, max_batch_tokens=8, page_size=16)
    sim.submit(PROMPT, max_tokens=16, prompt_lookup=False, prediction=sim.almost(PROMPT, 0, wrong=0))
    sim.steps(2)
    sim.submit([5, 4, 3, 2, 1, 0])
    sim.steps(1)
    assert widths(sim)[-1] == [6, 2]


@pytest.mark.parametrize("options", [{}, {"lookup_rows": 1}, {"lookup_rows": 0}], ids=str)
def test_without_rows_for_them_there_are_no_drafts(simulate: Callable, options: dict[str, int]) -> None:
    sim = simulate(**options)
    sim.submit(PROMPT, max_tokens=6, prediction=sim.almost(PROMPT, 0, wrong=0))
    assert sim.finish() == 6
    assert sim.state.statistics().drafts == 0


def test_a_group_that_wants_none_gets_none(simulate: Callable) -> None:
    sim = simulate(lookup_rows=8)
    sim.submit([1, 2] * 9, max_tokens=9, prompt_lookup=False)
    sim.finish()
    assert sim.state.statistics().drafts == 0
    sim.submit([1, 2] * 9, max_tokens=9, prompt_lookup=True)
    sim.finish()
    assert sim.state.statistics().drafts > 0


def test_a_draft_takes_cached_pages_and_never_those_of_others(simulate: Callable) -> None:
    sim = simulate(page_size=1, page_count=14, lookup_rows=8, lookup_tokens=4)
    sim.submit([6] * 6, max_tokens=1)
    sim.finish()
    assert sim.state.statistics().pages_cached == 6
    prediction = sim.almost(PROMPT, 0, wrong=0)
    sim.submit(PROMPT, max_tokens=9, prompt_lookup=False, prediction=prediction)
    sim.steps(3)
    assert widths(sim)[-1] == [5]
    assert sim.state.statistics().pages_cached < 6
    assert sim.state.statistics().preemptions == 0


def test_a_draft_is_cut_to_the_pages_that_the_decodes_leave(simulate: Callable) -> None:
    # two choices of one prompt: 5 shared pages, and one for each token of their own
    sim = simulate(page_size=1, page_count=5 + 2 * 2 + 1, lookup_rows=8, lookup_tokens=4, prefix_cache=False)
    sim.submit(PROMPT, 2, max_tokens=8, prompt_lookup=False, prediction=sim.almost(PROMPT, 0, wrong=0))
    sim.steps(3)
    assert sim.state.statistics().preemptions == 0
    assert widths(sim)[2] == [2, 1]


def test_while_somebody_waits_drafts_use_only_the_pages_that_are_there(simulate: Callable) -> None:
    sim = simulate(page_size=4, max_running=1, lookup_rows=8, lookup_tokens=4)
    sim.submit(PROMPT, max_tokens=16, prompt_lookup=False, prediction=sim.almost(PROMPT, 0, wrong=0))
    sim.submit([1])
    sim.steps(3)
    # positions 6 and 7 are in the second page
    assert widths(sim)[-1] == [2]


def test_an_abort_in_flight_leaves_nothing_of_a_draft(simulate: Callable) -> None:  # FAN-27
    sim = simulate(page_size=2, lookup_rows=8)
    prediction = sim.almost(PROMPT, 0, wrong=0)
    prediction[4] = (prediction[4] + 1) % 6
    (uid,) = sim.submit(PROMPT, max_tokens=16, prompt_lookup=False, prediction=prediction)
    sim.steps(2)
    sim.begin()
    assert len(sim.device.plans[-1].spans.tokens) > 1
    sim.abort(uid)
    assert sim.land() == []
    assert sim.state.idle
    assert sim.state.statistics().pages_held == 0
    sim.submit([*PROMPT, *prediction], max_tokens=1)
    sim.finish()


def test_a_span_with_a_draft_is_not_among_those_that_share_a_prefix(simulate: Callable) -> None:  # FAN-30
    sim = simulate(page_size=1, lookup_rows=4, lookup_tokens=4)
    sim.submit(PROMPT, 3, max_tokens=16, prompt_lookup=False, prediction=sim.almost(PROMPT, 0, wrong=0))
    sim.steps(3)
    assert widths(sim)[-1] == [2, 1, 1]
    assert list(sim.device.plans[-1].shared) == [1, 2, 5]


@pytest.mark.parametrize(("name", "least"), [("lookup_tokens", 1), ("lookup_rows", 0)])
def test_options_that_are_too_small_are_refused_by_name(name: str, least: int) -> None:
    SchedulerOptions(**SIZES, **{name: least})
    with pytest.raises(ParamError, match=f"{name} must be at least {least}, got {least - 1}") as caught:
        SchedulerOptions(**SIZES, **{name: least - 1})
    assert caught.value.param == name


def test_drafts_come_back_after_a_preemption(simulate: Callable) -> None:
    sim = simulate(page_size=1, page_count=24, lookup_rows=8, prefix_cache=False)
    prompts = [[1, 2, 3], [3, 2, 1]]
    for prompt in prompts:
        sim.submit(prompt, max_tokens=16, prompt_lookup=False, prediction=sim.almost(prompt, 0, wrong=5))
    sim.finish()
    statistics = sim.state.statistics()
    assert statistics.preemptions > 0
    assert statistics.tokens_recomputed > 0
    assert statistics.draft_tokens_accepted > 0
    assert statistics.tokens_generated == 32
