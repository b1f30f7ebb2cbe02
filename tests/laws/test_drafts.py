"""FAN-15 with drafts: an answer is the same, bit for bit, however much of it was guessed and how well.

Right guesses are made on purpose: the oracle says what a choice is going to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest

from trioserve.params import SamplingParams

PARAMS = SamplingParams(n=1, seed=7, temperature=1.3, top_p=0.97, top_k=700, min_p=0.002, max_tokens=24)
Tokens = Callable[[int, int], list[int]]
Say = Callable[..., Awaitable[list]]


@pytest.mark.parametrize("mistakes", [0, 3, 4, 5])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_prediction_changes_nothing_but_the_steps(
    open_server: Callable, some_tokens: Tokens, page_size: int, mistakes: int
) -> None:
    server = open_server(page_size=page_size, lookup_rows=8)
    prompt = some_tokens(1, 21)
    server.submit(prompt, PARAMS, prediction=server.predict(prompt, PARAMS, mistakes=mistakes))
    statistics = server.finish()
    # the first two tokens come before there can be a draft
    best = 2 + -(-22 // 5)
    assert statistics.steps == 24 - statistics.draft_tokens_accepted
    assert (statistics.steps == best) == (mistakes == 0)
    assert (statistics.draft_tokens > statistics.draft_tokens_accepted) == (mistakes > 0)


@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_a_text_that_repeats_itself_needs_no_prediction(
    open_server: Callable, some_tokens: Tokens, temperature: float
) -> None:
    # a model with random weights soon goes round in circles if it always takes the likeliest token
    server = open_server(lookup_rows=5)
    server.submit(some_tokens(2, 30), attrs.evolve(PARAMS, temperature=temperature, max_tokens=160))
    statistics = server.finish()
    assert statistics.draft_tokens > statistics.draft_tokens_accepted > 10
    assert statistics.steps == 160 - statistics.draft_tokens_accepted


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_choices_that_draft_in_one_step_do_not_disturb_each_other(
    open_server: Callable, some_tokens: Tokens, page_size: int
) -> None:
    server = open_server(page_size=page_size, lookup_rows=8, lookup_tokens=3)
    prompt, params = some_tokens(3, 18), attrs.evolve(PARAMS, n=2)
    # choice 0 says what is predicted for both
    server.submit(prompt, params, prediction=server.predict(prompt, params, mistakes=5))
    server.submit(some_tokens(4, 9), PARAMS, prediction=server.predict(some_tokens(4, 9), PARAMS, mistakes=0))
    statistics = server.finish()
    assert statistics.draft_tokens > statistics.draft_tokens_accepted > 10
    assert server.most_rows == 8


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_preemption_between_drafts_changes_nothing(
    open_server: Callable, some_tokens: Tokens, page_size: int, prefix_cache: bool
) -> None:
    # case preempt-same-output; the pool holds one of the three, and a little more
    pages = -(-(21 + 24) // page_size) + -(-24 // page_size)
    server = open_server(
        page_size=page_size, page_count=pages, max_batch_tokens=20, prefix_cache=prefix_cache, lookup_rows=8
    )
    for group in range(3):
        prompt = some_tokens(group, 17)
        server.submit(prompt, PARAMS, prediction=server.predict(prompt, PARAMS, mistakes=6))
    statistics = server.finish()
    assert statistics.preemptions > 0
    assert statistics.draft_tokens > statistics.draft_tokens_accepted > 10


@pytest.mark.parametrize("page_size", [1, 4])
def test_nothing_of_a_wrong_draft_is_in_the_cache(open_server: Callable, some_tokens: Tokens, page_size: int) -> None:
    server = open_server(page_size=page_size, lookup_rows=8)
    prompt = some_tokens(5, 14)
    wrong = server.predict(prompt, PARAMS, mistakes=4)
    (uid,) = server.submit(prompt, PARAMS, prediction=wrong)
    assert server.finish().draft_tokens_accepted > 0
    # the next turns: after the answer, and after what was guessed instead
    for turn in ([*prompt, *server.told[uid].tokens, 9], [*prompt, *wrong, 9], [*prompt, *wrong[:5], 9]):
        server.submit(turn, attrs.evolve(PARAMS, max_tokens=3))
    server.finish()
    assert server.state.statistics().prompt_tokens_cached > 0


@pytest.mark.parametrize("place", range(2, 14))
def test_an_end_inside_a_draft_is_the_end(open_server: Callable, some_tokens: Tokens, place: int) -> None:
    prompt = some_tokens(6, 11)
    server = open_server(page_size=4, lookup_rows=8)
    prediction = server.predict(prompt, PARAMS, mistakes=0)
    (by_stop,) = server.submit(prompt, PARAMS, stop_ids=frozenset({prediction[place]}), prediction=prediction)
    (by_length,) = server.submit(prompt, attrs.evolve(PARAMS, max_tokens=place), prediction=prediction)
    server.finish()
    assert (server.told[by_stop].finish, server.told[by_length].finish) == ("stop", "length")


def test_an_end_of_the_pool_inside_a_draft_is_the_end(open_server: Callable, some_tokens: Tokens) -> None:
    server = open_server(page_size=4, page_count=6, lookup_rows=8)
    prompt = some_tokens(7, 12)
    (uid,) = server.submit(prompt, PARAMS, prediction=server.predict(prompt, PARAMS, mistakes=0))
    server.finish()
    assert len(server.told[uid].tokens) == 6 * 4 - 12


async def test_drafts_in_a_whole_engine(
    tiny_engine: Callable, some_tokens: Tokens, say_whole: Say, say_streamed: Say, say_alone: Say
) -> None:
    prompt = some_tokens(8, 20)
    params = SamplingParams(n=2, seed=11, temperature=0.3, max_tokens=40)
    alone = await say_alone(prompt, params)
    predicting = attrs.evolve(params, prediction=alone[0].text)
    async with tiny_engine(prompt_lookup=True, page_size=4) as engine:
        for asked in (params, predicting):
            before = engine.statistics().scheduler.draft_tokens_accepted
            assert await say_whole(engine, prompt, asked) == alone
            assert await say_streamed(engine, prompt, asked) == alone
            assert engine.statistics().scheduler.draft_tokens > before
