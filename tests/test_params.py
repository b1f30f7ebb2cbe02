"""SamplingParams and Limits: what is in range, and how the rest is refused."""

from __future__ import annotations

import math

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits, SamplingParams


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", [0, -1, True, 1.0, "1", None]),
        ("best_of", [0, -1, True, 2.0, "2", 2**31]),
        ("max_tokens", [-1, True, 3.5, "5", 2**31]),
        ("temperature", [-0.1, 2.1, math.nan, math.inf, -math.inf, True, "0.7"]),
        ("top_p", [-0.1, 1.1, math.nan, math.inf, True, "1"]),
        ("top_k", [-2, 1.5, True, 2**31]),
        ("min_p", [-0.1, 1.1, math.nan, True]),
        ("seed", [2**63, -(2**63) - 1, 1.0, True]),
        ("ignore_eos", [1, "yes", None]),
        ("prompt_lookup", [1, "yes"]),
        ("prediction", [1, ("a",), b"a"]),
        ("stop", ["", ("a", ""), (1,), "x" * 1025, tuple("abc" * 30)]),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, values: list[object]) -> None:  # case nonfinite-numbers
    for value in values:
        with pytest.raises(ParamError) as caught:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        assert caught.value.param == name, value
        assert name in str(caught.value) or name == "stop"


def test_the_edges_of_every_range_are_inside() -> None:
    for seed in (-(2**63), 2**63 - 1, 0, -1, None):
        assert SamplingParams(seed=seed).seed == seed
    for temperature in (0, 0.0, 1e-6, 2, None):
        SamplingParams(temperature=temperature)
    for share in (0.0, 1.0, 0, 1):
        SamplingParams(top_p=share, min_p=share)
    SamplingParams(top_k=-1)
    SamplingParams(max_tokens=0)


def test_a_stop_string_alone_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (0.0, True), (1e-6, False), (None, False)])
def test_greedy_is_a_temperature_of_exactly_zero(temperature: float | None, greedy: bool) -> None:  # FAN-6
    assert SamplingParams(temperature=temperature).greedy is greedy


@pytest.mark.parametrize(
    ("own", "models", "resolved"), [(None, None, 1.0), (None, 0.6, 0.6), (0.2, 0.6, 0.2), (0.0, 0.6, 0.0)]
)
def test_the_temperature_is_the_callers_then_the_models_then_one(
    own: float | None, models: float | None, resolved: float
) -> None:  # FAN-7
    assert SamplingParams(temperature=own).resolve(models).temperature == resolved


@pytest.mark.parametrize(("seed", "seeded"), [(None, False), (-1, False), (-2, True), (0, True)])
def test_seeded_or_not_is_decided_before_the_offset(seed: int | None, seeded: bool) -> None:  # FAN-14
    assert SamplingParams(seed=seed).seeded is seeded


@pytest.mark.parametrize(
    ("n", "temperature", "prompts", "param", "message"),
    [
        (129, 1, 1, "n", "n must be at most 128, got 129."),  # FAN-2
        (3, 0, 1, "n", "n must be 1 when using greedy sampling, got 3."),  # FAN-6
        (2, 1, 600, "prompt", "A request may have at most 1024 choices, got 600 prompts times n = 2."),  # FAN-3
    ],
)
def test_limits_name_what_is_over_them(n: int, temperature: float, prompts: int, param: str, message: str) -> None:
    with pytest.raises(ParamError) as caught:
        Limits().check(SamplingParams(n=n, temperature=temperature), prompts)
    assert (caught.value.param, str(caught.value)) == (param, message)


@pytest.mark.parametrize(
    ("fields", "prompts", "param", "message"),
    [
        ({"best_of": 129}, 1, "best_of", "best_of must be at most 128, got 129."),
        ({"n": 129, "best_of": 130}, 1, "n", "n must be at most 128, got 129."),
        ({"best_of": 3, "temperature": 0}, 1, "best_of", "best_of must be 1 when using greedy sampling, got 3."),
        ({"n": 3, "best_of": 3, "temperature": 0}, 1, "n", "n must be 1 when using greedy sampling, got 3."),
        (
            {"n": 2, "best_of": 3},
            400,
            "prompt",
            "A request may have at most 1024 choices, got 400 prompts times best_of = 3.",
        ),
    ],
)
def test_limits_bound_the_candidates_of_best_of(
    fields: dict[str, float], prompts: int, param: str, message: str
) -> None:  # FAN-32
    with pytest.raises(ParamError) as caught:
        Limits().check(SamplingParams(**fields), prompts)  # type: ignore[arg-type]
    assert (caught.value.param, str(caught.value)) == (param, message)


def test_best_of_alone_may_be_over_the_bound_of_choices() -> None:  # FAN-32
    with pytest.raises(ParamError, match="at most 6 choices, got 1 prompts times best_of = 8") as caught:
        Limits(max_choices=6).check(SamplingParams(best_of=8), 1)
    assert caught.value.param == "best_of"


@pytest.mark.parametrize(
    ("n", "best_of", "candidates", "ranked"), [(2, None, 2, False), (2, 2, 2, False), (2, 3, 3, True)]
)
def test_only_more_candidates_than_choices_are_ranked(
    n: int, best_of: int | None, candidates: int, ranked: bool
) -> None:  # FAN-32
    params = SamplingParams(n=n, best_of=best_of)
    assert (params.candidates, params.ranked) == (candidates, ranked)


def test_fewer_candidates_than_choices_are_refused() -> None:  # FAN-32
    with pytest.raises(ParamError, match=r"best_of must be at least 3, got 2\.") as caught:
        SamplingParams(n=3, best_of=2)
    assert caught.value.param == "best_of"


def test_what_is_at_a_limit_passes() -> None:
    Limits().check(SamplingParams(n=2, best_of=128), 8)
    Limits().check(SamplingParams(n=128), 8)
    Limits(greedy_n="replicate").check(SamplingParams(n=3, temperature=0), 1)
    Limits().check(SamplingParams(n=3, temperature=1e-6), 1)
