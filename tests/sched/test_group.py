"""What the engine may submit."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from trioserve.errors import InvariantError, ParamError
from trioserve.sched.group import ChoiceSpec, Group


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 2**64),
        ("top_k", 2**31),
        ("top_k", -(2**31) - 1),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
    ],
)
def test_a_number_that_no_plan_can_carry_is_refused_by_name(
    spec: Callable[..., ChoiceSpec], name: str, value: int
) -> None:
    with pytest.raises(ParamError, match=f"{name} must be between") as caught:
        spec(**{name: value})
    assert caught.value.param == name


def test_the_extreme_numbers_are_taken(spec: Callable[..., ChoiceSpec]) -> None:
    spec(seed=2**64 - 1, top_k=2**31 - 1, max_tokens=1)
    spec(seed=0, top_k=-1)


def test_a_group_needs_a_prompt_and_a_choice(spec: Callable[..., ChoiceSpec]) -> None:
    with pytest.raises(ParamError) as caught:
        Group(id="g", prompt=array("i"), choices=(spec(),))
    assert caught.value.param == "prompt"
    with pytest.raises(ParamError) as caught:
        Group(id="g", prompt=array("i", [1]), choices=())
    assert caught.value.param == "n"


def test_a_group_with_one_uid_twice_is_a_bug(spec: Callable[..., ChoiceSpec]) -> None:
    with pytest.raises(InvariantError, match="same uid"):
        Group(id="g", prompt=array("i", [1]), choices=(spec(uid="a"), spec(uid="a")))
