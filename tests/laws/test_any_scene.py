"""FAN-15 for scenes made by Hypothesis: some requests, when they come and who leaves, in a server set up somehow."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.params import INT64_MAX, INT64_MIN, SamplingParams
from trioserve.structure import Structure

VOCABULARY = 961
# Prompts begin like one of these, so they often share pages.
STEMS = [[3 + (stem + 37 * t) % (VOCABULARY - 3) for t in range(220)] for stem in (0, 500)]


@attrs.frozen
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams
    stops: bool
    """It ends at one token id in 16."""
    arrives: int
    """The step before which it is submitted."""
    mistakes: int | None
    """Every so many tokens of what is predicted for choice 0 are wrong; 0: none are. None: nothing is predicted."""
    leaves: dict[int, int]
    """Choice -> the step, counted from there, during which it is aborted."""
    rests: dict[int, tuple[int, int]]
    """Choice -> the step, counted from there, before which it is paused, and for how many steps."""


@attrs.frozen
class Scene:
    options: dict[str, int]
    requests: list[Request]


@attrs.frozen
class Sizes:
    """What scenes are made of."""

    page_sizes: tuple[int, ...] = (1, 4, 16)
    longest: int = 44
    """Tokens of a prompt."""
    scenes: int = 120


def lengths(page_size: int, longest: int) -> st.SearchStrategy[int]:
    """Of prompts: on both sides of the edges of pages, and any."""
    edges = st.builds(lambda pages, offset: max(1, pages * page_size + offset), st.integers(1, 3), st.integers(-1, 1))
    return st.integers(20, longest) | edges | st.integers(1, longest)


@st.composite
def prompts(draw: st.DrawFn, page_size: int, longest: int) -> tuple[int, ...]:
    own = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3))
    stem = draw(st.sampled_from([STEMS[0], STEMS[0], STEMS[1]]))[: max(0, draw(lengths(page_size, longest)) - len(own))]
    return tuple(stem + own) or (draw(st.integers(0, VOCABULARY - 1)),)


# What comes next depends on all before: how many letters, which of them, what is open.
STRUCTURES = [
    Structure(kind="regex", text="(([a-m][n-z])+[0-9]{2} ?){2,4}"),
    Structure(kind="choice", text=json.dumps([f"{letter * 3}{digit}" for letter in "abcdxyz" for digit in range(100)])),
    Structure(kind="json_schema", text='{"type": "array", "items": {"enum": [1, null, "x", {"k": 2}]}, "maxItems": 3}'),
]
# The first of each mostly.
WHAT_ELSE: dict[str, list[Any]] = {
    "top_p": [1.0, 0.9, 0.2],
    "top_k": [-1, 300, 4],
    "min_p": [0.0, 0.01, 0.4],
    "presence_penalty": [0.0, 2.0, -1.5],
    "frequency_penalty": [0.0, 0.7, -2.0],
    "repetition_penalty": [1.0, 1.8, 0.4],
    "logit_bias": [{}, {18: 4.0, 40: -100.0}, dict.fromkeys(range(100, 400), 3.0)],
    "logprobs": [None, 0, 3],
    "prompt_logprobs": [None, None, 0, 2],
    "priority": [0, -1, 1],
    "cache_salt": [None, None, "mine"],
}


def params_of(number: int, seed: int) -> SamplingParams:
    """Any parameters. Of a number, since Hypothesis makes poor scenes if each value is a draw of its own."""
    rng = random.Random(number)
    fields = {name: values[0] if rng.random() < 0.6 else rng.choice(values) for name, values in WHAT_ELSE.items()}
    if rng.random() < 0.3:
        fields["structure"] = rng.choice(STRUCTURES)
    elif rng.random() < 0.3:
        fields["min_tokens"] = 1
    return SamplingParams(
        n=rng.choice([3, 1, 2, 5, 16]),
        seed=seed,
        temperature=rng.choice([1e-4, 0.6, 1.0, 2.0]),
        max_tokens=rng.choice([8, 12, 1, 2]),
        **fields,
    )


PARAMS = st.builds(params_of, st.integers(0, 2**32), st.sampled_from([0, 1, 2]) | st.integers(INT64_MIN, INT64_MAX))


def requests(page_size: int, longest: int) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        prompt=prompts(page_size, longest),
        params=PARAMS,
        stops=st.booleans(),
        mistakes=st.sampled_from([None, 0, 3, 5]),
        arrives=st.sampled_from([0, 3, 8]),
        leaves=st.dictionaries(st.integers(0, 2), st.integers(0, 6), max_size=2),
        rests=st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=2),
    )


@st.composite
def scenes(draw: st.DrawFn, sizes: Sizes) -> Scene:
    page_size = draw(st.sampled_from(sizes.page_sizes))
    come = draw(st.lists(requests(page_size, sizes.longest), min_size=2, max_size=4))
    # from a pool in which the longest prompt can say one token, to one in which nobody needs to wait
    fewest = max(len(request.prompt) for request in come) // page_size + 1
    options = {
        "page_size": page_size,
        "page_count": draw(st.sampled_from([fewest + 1, fewest, 2 * fewest, fewest, 3 * fewest, 256])),
        "max_running": draw(st.sampled_from([256, 3, 1])),
        "max_batch_tokens": draw(st.sampled_from([4096, 33, 16, 5, 2, 1])),
        "prefix_cache": draw(st.sampled_from([True, True, False])),
        "lookup_rows": draw(st.sampled_from([0, 8, 4])),
        "lookup_tokens": draw(st.sampled_from([4, 1, 3])),
    }
    return Scene(options, come)


def play(server: Any, scene: Scene, happened: Counter[str]) -> None:
    """Submit, step and abort as the scene has it, until nobody is to come or to leave any more."""
    leaving: dict[int, list[str]] = {}
    pausing: dict[int, list[str]] = {}
    resuming: dict[int, list[str]] = {}
    last = max(request.arrives for request in scene.requests)
    now = 0
    while now <= last or leaving or pausing or resuming:
        for request in scene.requests:
            if request.arrives == now:
                stop_ids = frozenset(range(2, VOCABULARY, 16)) if request.stops else frozenset()
                prediction = None
                if request.mistakes is not None:
                    prediction = server.predict(request.prompt, request.params, mistakes=request.mistakes)
                uids = server.submit(request.prompt, request.params, stop_ids=stop_ids, prediction=prediction)
                for j, after in request.leaves.items():
                    if j < len(uids):
                        leaving.setdefault(now + after, []).append(uids[j])
                for j, (after, steps) in request.rests.items():
                    if j < len(uids):
                        pausing.setdefault(now + after, []).append(uids[j])
                        resuming.setdefault(now + after + steps, []).append(uids[j])
        server.pause(pausing.pop(now, []))
        server.resume(resuming.pop(now, []))
        happened["rested"] += server.state.statistics().paused > 0
        server.step(leaving=leaving.pop(now, []))
        now += 1


def is_changed(params: SamplingParams) -> bool:
    return (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("open_any", "sizes"),
    [
        pytest.param("open_server", Sizes(), id="reference"),
        # its attention goes over stretches of 128 tokens
        pytest.param("open_native_server", Sizes(page_sizes=(16,), longest=200, scenes=100), id="cpu"),
    ],
)
def test_every_choice_is_what_it_is_alone(request: pytest.FixtureRequest, open_any: str, sizes: Sizes) -> None:
    # FAN-15; cases seed-batch-mates, preempt-same-output, pool-exhaustion
    open_server = request.getfixturevalue(open_any)
    happened: Counter[str] = Counter()

    @settings(max_examples=sizes.scenes, deadline=None, derandomize=True, database=None)
    @given(scenes(sizes))
    def check(scene: Scene) -> None:
        server = open_server(**scene.options)
        play(server, scene, happened)
        statistics = server.finish()
        told = server.told.values()
        happened["preempted"] += statistics.preemptions > 0
        happened["recomputed"] += statistics.tokens_recomputed > 0
        happened["found in the cache"] += statistics.prompt_tokens_cached > 0
        happened["left in the middle"] += any(each.has_left and each.tokens for each in told)
        happened["drafted right"] += statistics.draft_tokens_accepted > 0
        happened["drafted wrong"] += statistics.draft_tokens > statistics.draft_tokens_accepted
        happened["ended by a stop id"] += any(each.finish == "stop" for each in told)
        happened["ended by the pool"] += any(
            each.finish == "length" and len(each.tokens) < each.params.max_tokens for each in told
        )
        happened["changed and preempted"] += statistics.preemptions > 0 and any(
            is_changed(each.params) for each in told
        )
        happened["a structure was complete"] += any(
            each.finish == "stop" and each.params.structure is not None for each in told
        )
        happened["a structure in a mixed batch"] += len({each.params.structure for each in told}) > 1
        happened["scored with alternatives"] += any(score.top for each in told for score in each.logprobs)
        happened["a prompt was scored"] += any(each.prompt_logprobs is not None for each in told)
        happened["scored and preempted"] += statistics.preemptions > 0 and any(
            each.prompt_logprobs is not None for each in told
        )
        happened["went on past a stop id for min_tokens"] += any(
            each.params.min_tokens and each.stop_ids and each.tokens for each in told
        )

    check()
    assert min(happened.values()) > 0, f"the scenes show too little: {happened}"
