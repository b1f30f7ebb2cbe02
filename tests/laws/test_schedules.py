"""FAN-15 in the scheduler and the device: choice j of a group is the lone answer to seed + j, whatever else goes on.

Each test first makes sure that what it is about has happened. ``finish`` then compares every choice with the oracle:
tokens, reason, and the bits of the logits behind each token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import attrs
import pytest

from trioserve.params import INT64_MAX, SamplingParams

PARAMS = SamplingParams(n=4, seed=7, temperature=1.3, top_p=0.97, top_k=700, min_p=0.002, max_tokens=9)
Tokens = Callable[[int, int], list[int]]


def test_no_two_choices_agree_by_chance(open_server: Callable, some_tokens: Tokens) -> None:
    # case n-seed-distinct-and-repeatable; what the other tests compare would be worth nothing otherwise
    server = open_server()
    server.submit(some_tokens(0, 30), attrs.evolve(PARAMS, n=16))
    server.finish()
    answers = [tuple(told.tokens) for told in server.told.values()]
    assert len(set(answers)) == 16
    assert len({answer[:2] for answer in answers}) == 16


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 5, 16, 17, 4096])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_chunks_of_a_prompt_change_nothing(
    open_server: Callable, some_tokens: Tokens, page_size: int, max_batch_tokens: int
) -> None:
    server = open_server(page_size=page_size, max_batch_tokens=max_batch_tokens)
    server.submit(some_tokens(1, 37), PARAMS)
    assert server.finish().prompt_tokens_computed == 37  # FAN-8
    # the shortest way: all of the prompt at once, and a step for each further token
    assert (len(server.device.witnessed), server.most_rows) == (4 * 9, 4)
    assert (server.state.statistics().steps == 9) == (max_batch_tokens >= 37)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_the_place_where_a_prompt_ends_in_its_page_changes_nothing(
    open_server: Callable, some_tokens: Tokens, page_size: int, offset: int
) -> None:
    # FAN-11: shared whole, copied on write, or taken over
    server = open_server(page_size=page_size)
    for n in (1, 2, 4):
        server.submit(some_tokens(0, 2 * page_size + offset), attrs.evolve(PARAMS, n=n, max_tokens=5))
    server.finish()


def test_strangers_in_the_batch_change_nothing(open_server: Callable, some_tokens: Tokens) -> None:
    # case seed-batch-mates
    server = open_server(page_size=4, page_count=512)
    prompt = some_tokens(2, 22)
    server.submit(some_tokens(3, 9), SamplingParams(n=1, seed=7, temperature=0.0, max_tokens=12))
    server.submit(prompt[:20] + some_tokens(4, 5), SamplingParams(n=7, seed=7, temperature=2.0, max_tokens=3))
    server.submit(prompt, PARAMS)
    leavers = []
    for stranger in range(8):
        params = SamplingParams(n=3, seed=stranger, temperature=1e-4 if stranger % 2 else 0.8, max_tokens=9)
        leavers += server.submit(some_tokens(stranger, 1 + 5 * stranger), params)[:2]
    server.steps(4)
    assert server.most_rows == 1 + 7 + 4 + 8 * 3
    server.step(leaving=leavers)
    server.finish()
    assert all(server.told[uid].has_left for uid in leavers)
    # those whose prompts begin like another's have let that one begin
    assert {len(server.told[uid].tokens) for uid in leavers} == {3, 4}


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_preemption_changes_nothing(
    open_server: Callable, some_tokens: Tokens, page_size: int, prefix_cache: bool
) -> None:
    # case preempt-same-output; the pool holds three of the eight choices when they are done
    pages = 3 * -(-(21 + 24) // page_size)
    server = open_server(page_size=page_size, page_count=pages, max_batch_tokens=20, prefix_cache=prefix_cache)
    for group in range(2):
        server.submit(some_tokens(group, 21), attrs.evolve(PARAMS, seed=40 + group, max_tokens=24))
    statistics = server.finish()
    assert statistics.preemptions > 0
    # a choice that is the first to be forked again finds all that it computed, if its pages are still cached
    assert prefix_cache or statistics.tokens_recomputed > 0


def test_choices_that_are_forked_late_change_nothing(open_server: Callable, some_tokens: Tokens) -> None:
    # FAN-11, case huge-n
    server = open_server(max_running=3)
    server.submit(some_tokens(5, 18), attrs.evolve(PARAMS, n=16))
    server.steps(2)
    assert server.state.statistics().waiting == 13
    assert server.finish().prompt_tokens_computed == 18  # FAN-8


def test_a_pinned_prompt_that_is_given_up_changes_nothing(open_server: Callable, some_tokens: Tokens) -> None:
    # one choice fills the pool; its siblings lose the prompt they wait for, and start from its tokens and their first
    server = open_server(page_size=4, page_count=8, max_running=1)
    server.submit(some_tokens(6, 14), attrs.evolve(PARAMS, n=3, max_tokens=30))
    assert server.finish().preemptions > 0
    assert {told.finish for told in server.told.values()} == {"length"}
    assert {len(told.tokens) for told in server.told.values()} == {8 * 4 - 14}


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_warm_cache_changes_nothing(open_server: Callable, some_tokens: Tokens, page_size: int) -> None:
    server = open_server(page_size=page_size)
    prompt = some_tokens(8, 34)
    (stranger,) = server.submit([*prompt[:25], 5, 6, 7], SamplingParams(seed=1, temperature=1.0, max_tokens=9))
    server.finish()
    cold = server.submit(prompt, PARAMS)
    server.finish()
    warm = server.submit(prompt, PARAMS)
    # the next turn of a conversation: the prompt, an answer, and something new
    next_turn = server.submit([*prompt, *server.told[cold[2]].tokens, 8, 9], PARAMS)
    server.finish()
    whole_pages = [uid_tokens // page_size * page_size for uid_tokens in (25, 33, 34 + 8)]
    found = [server.told[uids[0]].cached_tokens for uids in (cold, warm, next_turn)]
    assert server.told[stranger].cached_tokens == 0
    assert found == whole_pages
    assert [server.told[uid].tokens for uid in cold] == [server.told[uid].tokens for uid in warm]


def test_an_answer_goes_on_the_same_when_its_beginning_is_part_of_the_prompt(
    open_server: Callable, some_tokens: Tokens
) -> None:
    # the random numbers belong to a seed and a position, not to a count of what was drawn
    server = open_server()
    prompt, one = some_tokens(9, 13), attrs.evolve(PARAMS, n=1)
    (whole,) = server.submit(prompt, one)
    server.finish()
    answer = server.told[whole].tokens
    for known in range(1, 9):
        (uid,) = server.submit(prompt + answer[:known], attrs.evolve(one, max_tokens=9 - known))
        server.finish()
        assert server.told[uid].tokens == answer[known:]


@pytest.mark.parametrize("seed", [0, -2, INT64_MAX - 1, -(2**63), 2**32 - 2])
def test_any_seed_and_its_successors(open_server: Callable, some_tokens: Tokens, seed: int) -> None:  # FAN-14
    server = open_server()
    server.submit(some_tokens(10, 7), attrs.evolve(PARAMS, seed=seed))
    server.finish()
    assert len({tuple(told.tokens) for told in server.told.values()}) == 4


@pytest.mark.parametrize(
    "filters",
    [{"top_p": 0.5}, {"top_k": 5}, {"min_p": 0.3}, {"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}],
    ids=str,
)
def test_any_filters(open_server: Callable, some_tokens: Tokens, filters: dict[str, float]) -> None:
    server = open_server(page_size=4, page_count=24, max_batch_tokens=7)
    params = SamplingParams(n=4, seed=3, temperature=2.0, max_tokens=12, **filters)  # type: ignore[arg-type]
    server.submit(some_tokens(11, 19), params)
    server.submit(some_tokens(11, 19), SamplingParams(n=8, seed=3, temperature=2.0, max_tokens=12))
    assert server.finish().preemptions > 0


def test_a_temperature_near_zero_is_greedy(open_server: Callable, some_tokens: Tokens) -> None:
    # case seed-batch-mates
    server = open_server()
    prompt = some_tokens(12, 10)
    (greedy,) = server.submit(prompt, SamplingParams(seed=1, temperature=0.0, max_tokens=9))
    cold = server.submit(prompt, SamplingParams(n=3, seed=1, temperature=1e-6, max_tokens=9))
    server.finish()
    assert [server.told[uid].tokens for uid in cold] == [server.told[greedy].tokens] * 3


def stop_ids_of(answers: Sequence[Sequence[int]]) -> frozenset[int]:
    """For answer j, its token number j."""
    return frozenset(answer[j] for j, answer in zip(count(), answers, strict=False))


def test_choices_that_end_apart_change_nothing_for_those_that_go_on(open_server: Callable, some_tokens: Tokens) -> None:
    # case n-finish-independently
    prompt, params = some_tokens(13, 14), attrs.evolve(PARAMS, n=6)
    first = open_server()
    first.submit(prompt, params)
    first.finish()
    server = open_server(max_running=4)
    server.submit(prompt, params, stop_ids=stop_ids_of([told.tokens for told in first.told.values()]))
    server.finish()
    assert [len(told.tokens) for told in server.told.values()] == [1, 2, 3, 4, 5, 6]
    for told, whole in zip(server.told.values(), first.told.values(), strict=True):
        assert (told.tokens, told.finish) == (whole.tokens[: len(told.tokens)], "stop")
