"""FAN-15 for scenes made by Hypothesis: some requests, when they come and who leaves, in a server set up somehow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.params import INT64_MAX, INT64_MIN, SamplingParams

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, database=None)
VOCABULARY = 961
# Prompts begin like one of these, so they often share pages.
STEMS = [[3 + (stem + 37 * t) % (VOCABULARY - 3) for t in range(48)] for stem in (0, 500)]


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


@attrs.frozen
class Scene:
    options: dict[str, int]
    requests: list[Request]


def lengths(page_size: int) -> st.SearchStrategy[int]:
    """Of prompts: on both sides of the edges of pages, and any."""
    edges = st.builds(lambda pages, offset: max(1, pages * page_size + offset), st.integers(1, 3), st.integers(-1, 1))
    return st.integers(20, 44) | edges | st.integers(1, 44)


@st.composite
def prompts(draw: st.DrawFn, page_size: int) -> tuple[int, ...]:
    own = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3))
    stem = draw(st.sampled_from([STEMS[0], STEMS[0], STEMS[1]]))[: max(0, draw(lengths(page_size)) - len(own))]
    return tuple(stem + own) or (draw(st.integers(0, VOCABULARY - 1)),)


PARAMS = st.builds(
    SamplingParams,
    n=st.sampled_from([3, 1, 2, 5, 16]),
    seed=st.sampled_from([0, 1, 2]) | st.integers(INT64_MIN, INT64_MAX),
    temperature=st.sampled_from([1e-4, 0.6, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.2]),
    top_k=st.sampled_from([-1, -1, 300, 4]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.4]),
    max_tokens=st.sampled_from([8, 12, 1, 2]),
)


def requests(page_size: int) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        prompt=prompts(page_size),
        params=PARAMS,
        stops=st.booleans(),
        mistakes=st.sampled_from([None, 0, 3, 5]),
        arrives=st.sampled_from([0, 3, 8]),
        leaves=st.dictionaries(st.integers(0, 2), st.integers(0, 6), max_size=2),
    )


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    page_size = draw(st.sampled_from([1, 4, 16]))
    come = draw(st.lists(requests(page_size), min_size=2, max_size=4))
    # from a pool in which the longest prompt can say one token, to one in which nobody needs to wait
    fewest = max(len(request.prompt) for request in come) // page_size + 1
    options = {
        "page_size": page_size,
        "page_count": draw(st.sampled_from([fewest + 1, 2 * fewest, 3 * fewest, fewest, 256])),
        "max_running": draw(st.sampled_from([256, 3, 1])),
        "max_batch_tokens": draw(st.sampled_from([4096, 33, 16, 5, 2, 1])),
        "prefix_cache": draw(st.sampled_from([True, True, False])),
        "lookup_rows": draw(st.sampled_from([0, 8, 4])),
        "lookup_tokens": draw(st.sampled_from([4, 1, 3])),
    }
    return Scene(options, come)


def play(server: Any, scene: Scene) -> None:
    """Submit, step and abort as the scene has it, until nobody is to come or to leave any more."""
    leaving: dict[int, list[str]] = {}
    last = max(request.arrives for request in scene.requests)
    now = 0
    while now <= last or leaving:
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
        server.step(leaving=leaving.pop(now, []))
        now += 1


def test_every_choice_is_what_it_is_alone(open_server: Callable) -> None:
    # FAN-15; cases seed-batch-mates, preempt-same-output, pool-exhaustion
    happened: Counter[str] = Counter()

    @SETTINGS
    @given(scenes())
    def check(scene: Scene) -> None:
        server = open_server(**scene.options)
        play(server, scene)
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

    check()
    assert min(happened.values()) > 0, f"the scenes show too little: {happened}"
