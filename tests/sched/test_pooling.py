"""Vectors of prompts: the same however a prompt is cut, computed again, or found in the cache."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import InvariantError
from trioserve.params import Pooling
from trioserve.sched.group import ChoiceSpec, Group, Uid
from trioserve.sched.pooling import PromptPool

state = st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3)


def view(numbers: list[float]) -> memoryview:
    return memoryview(array("f", numbers))


def unit(numbers: list[float]) -> array[float]:
    norm = math.sqrt(sum(number * number for number in numbers))
    return array("f", [number / norm for number in numbers] if norm else numbers)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["mean", "last"]), st.lists(state, min_size=1, max_size=8), st.data())
def test_a_vector_is_that_of_the_whole_prompt_however_it_is_computed(
    pooling: Pooling, states: list[list[float]], data: st.DataObject
) -> None:
    pool = PromptPool(pooling, len(states))
    at = 0
    while at < len(states):
        end = data.draw(st.integers(at + 1, len(states)))
        pool.add([view(states[position]) for position in pool.wanted(at, end)])
        # once in a while all is lost, and computed again
        at = 0 if end < len(states) and data.draw(st.booleans()) and data.draw(st.booleans()) else end
    total = [sum(column) for column in zip(*states, strict=True)] if pooling == "mean" else states[-1]
    assert pool.vector() == pytest.approx(unit(total), abs=1e-6)


def test_a_mean_is_of_all_tokens_and_a_last_of_one() -> None:
    assert list(PromptPool("mean", 5).wanted(0, 3)) == [0, 1, 2]
    assert list(PromptPool("last", 5).wanted(0, 3)) == []
    assert list(PromptPool("last", 5).wanted(3, 5)) == [4]
    assert PromptPool("mean", 5).needs_all
    assert not PromptPool("last", 5).needs_all


def test_a_vector_without_length_stays_as_it_is() -> None:
    pool = PromptPool("last", 1)
    pool.add([view([0.0, 0.0])])
    assert list(pool.vector()) == [0.0, 0.0]


def test_a_group_whose_prompt_is_pooled_draws_nothing() -> None:
    spec = ChoiceSpec(
        uid=Uid("a"), seed=0, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=1, stop_ids=frozenset()
    )
    with pytest.raises(InvariantError, match="draw tokens"):
        Group(id="g", prompt=array("i", [1]), choices=(spec,), pooling="mean")
