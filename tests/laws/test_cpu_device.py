"""FAN-15 on the CPU device: what test_schedules.py and test_engine.py show, where this device does it differently.

Its pages are of 16 tokens, its contexts go over several stretches, and a group's shared pages are read once for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
from trioserve_kernels.cpu.library import library_path

from trioserve.params import SamplingParams

pytestmark = pytest.mark.skipif(library_path() is None, reason="there are no native kernels")

Tokens = Callable[[int, int], list[int]]
Say = Callable[..., Awaitable[list]]
PARAMS = SamplingParams(n=4, seed=7, temperature=1.3, top_p=0.97, top_k=700, min_p=0.002, max_tokens=9)
CONDITIONS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "chunks of 1": {"max_batch_tokens": 1},
    "chunks of 17": {"max_batch_tokens": 17},
    "no cache": {"prefix_cache": False},
    "forked late": {"max_running": 3},
    "two threads": {"threads": 2},
    "a tiny pool": {"kv_tokens": 256},
}


def test_no_two_choices_agree_by_chance(open_native_server: Callable, some_tokens: Tokens) -> None:
    server = open_native_server()
    server.submit(some_tokens(0, 30), attrs.evolve(PARAMS, n=16))
    server.finish()
    assert len({tuple(told.tokens)[:2] for told in server.told.values()}) == 16


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 128, 129, 200])
def test_a_group_of_any_prompt(open_native_server: Callable, some_tokens: Tokens, length: int) -> None:
    # FAN-30: 24 choices are more than a block holds
    server = open_native_server()
    server.submit(some_tokens(1, length), attrs.evolve(PARAMS, n=24, max_tokens=20))
    assert server.finish().prompt_tokens_computed == length  # FAN-8
    assert server.most_rows == 24


@pytest.mark.parametrize("max_batch_tokens", [1, 5, 17, 4096])
def test_the_chunks_of_a_prompt_change_nothing(
    open_native_server: Callable, some_tokens: Tokens, max_batch_tokens: int
) -> None:
    server = open_native_server(max_batch_tokens=max_batch_tokens)
    server.submit(some_tokens(1, 137), PARAMS)
    server.finish()
    assert (len(server.device.witnessed), server.most_rows) == (4 * 9, 4)


def test_a_preemption_changes_nothing(open_native_server: Callable, some_tokens: Tokens) -> None:
    # case preempt-same-output
    server = open_native_server(page_count=14, max_batch_tokens=40)
    for group in range(2):
        server.submit(some_tokens(group, 61), attrs.evolve(PARAMS, seed=40 + group, max_tokens=24))
    assert server.finish().preemptions > 0


@pytest.mark.parametrize("mistakes", [0, 4, 5])
def test_drafts_change_nothing_but_the_steps(open_native_server: Callable, some_tokens: Tokens, mistakes: int) -> None:
    server = open_native_server(lookup_rows=8)
    prompt, params = some_tokens(3, 121), attrs.evolve(PARAMS, n=2, max_tokens=24)
    server.submit(prompt, params, prediction=server.predict(prompt, params, mistakes=mistakes))
    server.submit(some_tokens(4, 9), attrs.evolve(PARAMS, n=1))
    statistics = server.finish()
    assert statistics.draft_tokens_accepted > 0


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_request_in_an_engine(
    tiny_engine: Callable, some_tokens: Tokens, say_streamed: Say, say_alone: Say, condition: str
) -> None:
    prompt = some_tokens(list(CONDITIONS).index(condition), 70)
    async with tiny_engine(device="cpu", **CONDITIONS[condition]) as engine:
        said = await say_streamed(engine, prompt, PARAMS)
    assert said == await say_alone(prompt, PARAMS, device="cpu")
    assert len({choice.token_ids for choice in said}) == PARAMS.n
