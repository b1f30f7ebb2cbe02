"""FAN-15 in a whole engine, with all that a request can ask of its choices besides tokens.

Penalties, biases, a number of tokens at least, token ids that end it, log-probabilities of the answer and of the
prompt, a structure: in company of others that ask for other things, each choice is told what it would be told alone.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trioserve_kernels.cpu.library import library_path

from trioserve.params import SamplingParams
from trioserve.structure import Structure

Tokens = Callable[[int, int], list[int]]
Say = Callable[..., Awaitable[list]]

EVERYTHING = SamplingParams(
    n=4,
    seed=-300,
    temperature=1.3,
    top_p=0.98,
    max_tokens=40,
    min_tokens=6,
    stop=("e", "zz", "\ufffd\ufffd"),
    stop_token_ids=tuple(range(20, 961, 31)),
    include_stop=True,
    presence_penalty=0.7,
    frequency_penalty=-0.9,
    repetition_penalty=1.4,
    logit_bias={50: 5.0, 51: 4.0, 60: -100.0},
    logprobs=3,
    prompt_logprobs=2,
    priority=3,
)
STRUCTURED = attrs.evolve(
    EVERYTHING,
    seed=9,
    min_tokens=0,
    stop=(),
    stop_token_ids=(),
    include_stop=False,
    structure=Structure(kind="regex", text="([a-z]{2}[0-9] ){6,9}"),
    prompt_logprobs=None,
    logprobs=0,
    priority=-1,
)
# it says the same again and again, so that there are drafts
PENALISED = SamplingParams(
    n=3, seed=2, temperature=0.9, frequency_penalty=-2.0, presence_penalty=-2.0, max_tokens=40, ignore_eos=True
)
PLAIN = SamplingParams(n=2, seed=4, temperature=1.0, max_tokens=40, ignore_eos=True)
CONDITIONS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "chunks of 2": {"max_batch_tokens": 2},
    "chunks of 17": {"max_batch_tokens": 17},
    "no cache": {"prefix_cache": False},
    "forked late": {"max_running": 3},
    "a tiny pool": {"kv_tokens": 256},
    "drafts": {"prompt_lookup": True, "lookup_rows": 64},
    "slow readers": {"max_backlog": 1},
}
DEVICES = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.skipif(library_path() is None, reason="there are no native kernels")),
]


async def ask_all(say: Say, engine: object, requests: list[tuple[object, SamplingParams]]) -> list[list]:
    """The answers of requests that run together."""
    answers: list[list] = [[] for _ in requests]

    async def ask(number: int, prompt: object, params: SamplingParams) -> None:
        answers[number] = await say(engine, prompt, params)

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(ask, number, *request)
    return answers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("condition", CONDITIONS)
async def test_whoever_else_asks_for_what(
    tiny_engine: Callable, some_tokens: Tokens, say_streamed: Say, say_alone: Say, condition: str, device: str
) -> None:
    stem = some_tokens(500, 33)
    requests: list[tuple[object, SamplingParams]] = [
        (stem, EVERYTHING),
        ([*stem, 5, 6], STRUCTURED),
        (stem, PENALISED),
        ([*stem[:20], 9], PLAIN),
        (stem[:17], attrs.evolve(EVERYTHING, n=2, prompt_logprobs=None, cache_salt="mine")),
        (some_tokens(501, 5), attrs.evolve(STRUCTURED, n=2, logprobs=None)),
    ]
    options = CONDITIONS[condition] | ({"page_size": 4} if device == "reference" else {})
    async with tiny_engine(device=device, **options) as engine:
        said = await ask_all(say_streamed, engine, requests)
        again = await ask_all(say_streamed, engine, requests[:3])
        statistics = engine.statistics().scheduler
    assert (statistics.preemptions > 0) == (condition == "a tiny pool")
    assert statistics.draft_tokens_accepted > 0 or condition != "drafts"
    alone = [await say_alone(prompt, params, device=device) for prompt, params in requests]
    assert said == alone
    assert again == alone[:3]
    check_that_it_was_worth_it(alone)


def check_that_it_was_worth_it(alone: list[list]) -> None:
    """What is compared has ends of all kinds, and says different things."""
    everything, structured, *_ = alone
    assert all(len(choice.logprobs) == choice.completion_tokens >= 6 for choice in everything)
    assert all(len(score.top) == 3 for choice in everything for score in choice.logprobs)
    assert all(len(choice.prompt_logprobs) == 33 for choice in everything)
    assert any(choice.reason == "stop" for choice in everything)
    assert any(choice.reason == "stop" for choice in structured)
    assert all(len({choice.token_ids for choice in said}) == len(said) for said in alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("params", [EVERYTHING, STRUCTURED], ids=["everything", "structured"])
async def test_a_choice_that_is_cancelled_and_its_siblings(
    tiny_engine: Callable, some_tokens: Tokens, say_alone: Say, device: str, params: SamplingParams
) -> None:
    prompt = some_tokens(502, 21)
    params = attrs.evolve(params, seed=100, stop=(), stop_token_ids=(), min_tokens=0, include_stop=False)
    ids: list[list[int]] = [[] for _ in range(params.n)]
    scores: list[list] = [[] for _ in range(params.n)]
    async with tiny_engine(device=device) as engine, engine.generate(prompt, params) as generation:
        async for event in generation:
            if hasattr(event, "index") and hasattr(event, "token_ids"):
                ids[event.index] += event.token_ids
                scores[event.index] += event.logprobs
            if len(ids[1]) >= 3:
                generation.cancel_choice(1)
    for j, choice in enumerate(await say_alone(prompt, params, device=device)):
        assert len(scores[j]) == len(ids[j])
        if j == 1:
            assert 3 <= len(ids[1]) < 40
            assert tuple(ids[1]) == choice.token_ids[: len(ids[1])]
            assert tuple(scores[1]) == choice.logprobs[: len(ids[1])]
        else:
            assert (tuple(ids[j]), tuple(scores[j])) == (choice.token_ids, choice.logprobs)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs", "priority", "cache_salt"])
async def test_what_is_asked_for_besides_changes_no_token(
    tiny_engine: Callable, some_tokens: Tokens, say_alone: Say, name: str
) -> None:
    prompt = some_tokens(503, 19)
    params = attrs.evolve(EVERYTHING, **{name: None if name != "priority" else 0})
    strip = functools.partial(attrs.evolve, logprobs=(), prompt_logprobs=None)
    with_it, without = [await say_alone(prompt, each) for each in (EVERYTHING, params)]
    assert list(map(strip, with_it)) == list(map(strip, without))
