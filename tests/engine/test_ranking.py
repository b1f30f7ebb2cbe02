"""Which candidates become choices, against a slow reading of the rule. # FAN-32"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.engine.ranking import Ranking
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, FinishReason, TextDelta

REASONS: tuple[FinishReason, ...] = ("stop", "length", "cancelled", "error")


@attrs.frozen
class Candidate:
    """All that one candidate says."""

    prompt: int
    c: int
    deltas: tuple[TextDelta, ...]
    ending: ChoiceFinished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)


@attrs.frozen
class Field:
    n: int
    size: int
    """Candidates per prompt."""
    prompts: int
    candidates: tuple[Candidate, ...]
    events: tuple[Event, ...]
    """Of all candidates, as they might come."""


@st.composite
def fields(draw: st.DrawFn) -> Field:
    size, prompts = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    n = draw(st.integers(1, size - 1))
    candidates = []
    for index in range(size * prompts):
        prompt, c = divmod(index, size)
        lengths = draw(st.lists(st.integers(0, 2), max_size=3))
        deltas = tuple(TextDelta(index, f"<{index}>" * k, tuple(range(k))) for k in lengths)
        tokens = sum(lengths)
        # few values, so that there are ties
        mean = draw(st.sampled_from([-0.5, -1.0, -1.5])) if tokens else None
        usage = ChoiceUsage(tokens, cached_tokens=0 if c else 4, shared_tokens=10 + prompt if c else 0)
        ending = ChoiceFinished(index, draw(st.sampled_from(REASONS)), usage, seed=100 + index, mean_logprob=mean)
        candidates.append(Candidate(prompt, c, deltas, ending))
    scripts: list[list[Event]] = [[*candidate.deltas, candidate.ending] for candidate in candidates]
    events: list[Event] = []
    while scripts:
        script = scripts[draw(st.integers(0, len(scripts) - 1))]
        events.append(script.pop(0))
        scripts = [each for each in scripts if each]
    return Field(n, size, prompts, tuple(candidates), tuple(events))


def is_better(one: Candidate, other: Candidate) -> bool:
    """The rule, case by case."""
    tiers = {"stop": "ended", "length": "ended", "cancelled": "cancelled", "error": "failed"}
    mine, theirs = tiers[one.ending.reason], tiers[other.ending.reason]
    if mine != theirs:
        return mine == "ended" or theirs == "failed"
    my_mean, their_mean = one.ending.mean_logprob, other.ending.mean_logprob
    if my_mean is None and their_mean is None:
        return one.c < other.c
    if my_mean is None or their_mean is None:
        return their_mean is None
    return my_mean > their_mean or (my_mean == their_mean and one.c < other.c)


def slowly_ranked(candidates: list[Candidate]) -> list[Candidate]:
    """The best, then the best of the rest, and so on."""
    rest, ranked = list(candidates), []
    while rest:
        best = next(one for one in rest if all(one is other or is_better(one, other) for other in rest))
        rest.remove(best)
        ranked.append(best)
    return ranked


@given(fields())
@settings(max_examples=200)
def test_the_n_best_of_each_prompt_come_out_best_first(field: Field) -> None:
    ranking = Ranking(field.n, field.size, field.prompts)
    said: dict[int, TextDelta] = {}
    ended: dict[int, ChoiceFinished] = {}
    for event in ranking.feed(field.events):
        assert event.index not in ended
        if isinstance(event, TextDelta):
            assert event.index not in said, "it comes whole"
            said[event.index] = event
        else:
            ended[event.index] = event
    assert sorted(ended) == list(range(field.n * field.prompts))
    for prompt in range(field.prompts):
        ranked = slowly_ranked([each for each in field.candidates if each.prompt == prompt])
        for j, candidate in enumerate(ranked[: field.n]):
            index = prompt * field.n + j
            delta, end = said.get(index, TextDelta(index, "", ())), ended[index]
            assert (delta.text, delta.token_ids) == (candidate.text, candidate.token_ids)
            assert end.seed == candidate.ending.seed  # FAN-16
            assert (end.reason, end.mean_logprob) == (candidate.ending.reason, candidate.ending.mean_logprob)
            assert end.usage.completion_tokens == candidate.ending.usage.completion_tokens


@given(fields())
def test_the_usage_of_the_choices_adds_up_to_that_of_all_candidates(field: Field) -> None:  # FAN-21
    ranking = Ranking(field.n, field.size, field.prompts)
    costs = [event.usage for event in ranking.feed(field.events) if isinstance(event, ChoiceFinished)]
    spent = [candidate.ending.usage for candidate in field.candidates]
    assert sum(cost.completion_tokens + cost.discarded_tokens for cost in costs) == sum(
        cost.completion_tokens for cost in spent
    )
    assert sum(cost.cached_tokens for cost in costs) == sum(cost.cached_tokens for cost in spent)


@given(fields())
def test_a_prompt_is_answered_when_its_last_candidate_has_finished_and_not_before(field: Field) -> None:
    ranking = Ranking(field.n, field.size, field.prompts)
    live = [field.size] * field.prompts
    for event in field.events:
        prompt = event.index // field.size
        live[prompt] -= isinstance(event, ChoiceFinished)
        best = ranking.feed([event])
        ended = [each.index for each in best if isinstance(each, ChoiceFinished)]
        is_last = isinstance(event, ChoiceFinished) and live[prompt] == 0
        assert ended == [prompt * field.n + j for j in range(field.n if is_last else 0)]


def test_what_is_counted_once_per_prompt_stands_at_the_best_choice() -> None:  # FAN-21
    ranking = Ranking(2, 3, 1)
    endings = [
        ChoiceFinished(0, "stop", ChoiceUsage(7, cached_tokens=16), seed=0, mean_logprob=-3.0),
        ChoiceFinished(1, "stop", ChoiceUsage(2, shared_tokens=20), seed=1, mean_logprob=-2.0),
        ChoiceFinished(2, "stop", ChoiceUsage(3, shared_tokens=20), seed=2, mean_logprob=-1.0),
    ]
    assert ranking.feed(endings) == [
        ChoiceFinished(0, "stop", ChoiceUsage(3, 16, 0, discarded_tokens=7), seed=2, mean_logprob=-1.0),
        ChoiceFinished(1, "stop", ChoiceUsage(2, 0, 20), seed=1, mean_logprob=-2.0),
    ]


@pytest.mark.parametrize("reasons", [("error", "cancelled", "stop"), ("cancelled", "error", "length")])
def test_a_candidate_that_did_not_end_by_itself_is_worse_however_likely(reasons: tuple[FinishReason, ...]) -> None:
    ranking = Ranking(2, 3, 1)
    endings = [
        ChoiceFinished(c, reason, ChoiceUsage(1, shared_tokens=5 if c else 0), seed=c, mean_logprob=-1.0 - c)
        for c, reason in enumerate(reasons)
    ]
    kept = [event.reason for event in ranking.feed(endings) if isinstance(event, ChoiceFinished)]
    assert kept == [reasons[2], "cancelled"]


def test_it_tells_how_far_it_is() -> None:
    ranking = Ranking(1, 2, 2)
    ranking.feed([ChoiceFinished(3, "stop", ChoiceUsage(0), seed=0)])
    assert repr(ranking) == "<Ranking: best 1 of 2, finished: [0, 1]>"
