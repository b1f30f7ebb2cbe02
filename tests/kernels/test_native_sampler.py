"""The native sampler against the reference: the same tokens, at every level the same bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trioserve_kernels.reference.philox import uniform
from trioserve_kernels.reference.sampler import changed, filtered_weights, log_probability, most_likely

if TYPE_CHECKING:
    from conftest import NativeSampler, Result

Logits = npt.NDArray[np.float32]
VOCAB = 49152
CDF_ERROR = 1e-6
"""By how much the native sampler may misplace the border between two tokens on the unit interval."""


@attrs.frozen(kw_only=True)
class Case:
    """The arguments of one draw, as both samplers take them."""

    logits: Logits
    seed: int = 0
    position: int = 0
    filters: dict[str, Any] = attrs.field(factory=lambda: {"temperature": 1.0})
    changes: dict[str, Any] = attrs.field(factory=dict)
    alternatives: int = 0
    target: int = -1

    def draw(self, sampler: NativeSampler) -> Result:
        return sampler.sample(
            self.logits,
            seed=self.seed,
            position=self.position,
            alternatives=self.alternatives,
            target=self.target,
            **self.filters,
            **self.changes,
        )


class Expected:
    """Where the reference puts the tokens on the unit interval."""

    def __init__(self, logits: Logits, *, temperature: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0):
        self.weights = filtered_weights(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
        self.ends = np.cumsum(self.weights)
        self.ends /= self.ends[-1]

    def check(self, token: int, u: float) -> bool:
        """Asserts that u is the token's or as near to it as rounding explains. Whether it is the token's."""
        assert self.weights[token] > 0
        start, end = self.ends[token - 1] if token else 0.0, self.ends[token]
        assert start - CDF_ERROR <= u <= end + CDF_ERROR
        return bool(start <= u < end)


def check_against_reference(case: Case, result: Result) -> None:
    logits = changed(case.logits, **case.changes)
    if not np.isfinite(case.logits.max()):
        assert (result.token, result.status, result.log_probability) == (-1, 1, 0.0)
        return
    expected = most_likely(case.logits, case.alternatives)
    assert [i for i, _ in result.alternatives] == [i for i, _ in expected]
    assert [p for _, p in result.alternatives] == pytest.approx([p for _, p in expected], rel=0, abs=1e-6)
    if case.target < 0 and not np.isfinite(logits.max()):
        assert (result.token, result.status, result.log_probability) == (-1, 2, 0.0)
        return
    assert result.status == 0
    if case.target >= 0:
        assert result.token == case.target
    elif case.filters["temperature"] == 0:
        assert result.token == int(logits.argmax())
    else:
        Expected(logits, **case.filters).check(result.token, uniform(case.seed, case.position))
    assert result.log_probability == pytest.approx(log_probability(case.logits, result.token), rel=0, abs=1e-6)


def at_all_levels(samplers: dict[str, NativeSampler], case: Case) -> Result:
    results = {level: case.draw(sampler) for level, sampler in samplers.items()}
    result = results["portable"]
    assert all(other == result for other in results.values()), results
    return result


def random_logits(rng: np.random.Generator, vocab: int, kind: str) -> Logits:
    logits = rng.normal(size=vocab) * {"narrow": 1e-3, "wide": 30, "equal": 0}.get(kind, 2.5)
    if kind == "peaked":
        logits[rng.integers(vocab, size=20)] += 12
    if kind == "coarse":  # few different values, as of a head in bfloat16
        logits = np.round(logits * 4) / 4
    if kind == "holes":
        logits[rng.random(vocab) < 0.5] = -np.inf
    if kind == "sorted":
        logits.sort()
    return logits.astype(np.float32)


KINDS = ["normal", "narrow", "wide", "equal", "peaked", "coarse", "holes", "sorted"]


def some_ids(rng: np.random.Generator, vocab: int) -> list[int]:
    return [int(i) for i in rng.permutation(vocab)[: rng.integers(1, 40)]]


def history(rng: np.random.Generator, vocab: int) -> list[int]:
    """Tokens in no order, some of them several times."""
    return [int(i) for i in rng.permutation([i for i in some_ids(rng, vocab) for _ in range(rng.integers(1, 5))])]


def random_changes(rng: np.random.Generator, vocab: int) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if rng.random() < 0.5:
        changes["generated"] = history(rng, vocab)
        changes["presence_penalty"] = rng.uniform(-2, 2)
        changes["frequency_penalty"] = rng.uniform(-2, 2)
    if rng.random() < 0.5:
        changes["prompt"] = history(rng, vocab)
        changes["repetition_penalty"] = rng.uniform(0.5, 2)
    if rng.random() < 0.5:
        changes["bias"] = {i: float(rng.choice([-np.inf, -100, 2.5, 7])) for i in some_ids(rng, vocab)}
    if rng.random() < 0.5:
        changes["allowed"] = rng.random(vocab) < rng.choice([0.02, 0.5, 0.98])
    return changes


def random_filters(rng: np.random.Generator) -> dict[str, Any]:
    filters: dict[str, Any] = {"temperature": float(rng.choice([0.0, 1e-300, 1e-6, 0.3, 1.0, 2.0, 100.0]))}
    if rng.random() < 0.5:
        filters["top_p"] = float(rng.choice([0.0, 0.5, 0.95, 0.999, rng.random()]))
    if rng.random() < 0.5:
        filters["top_k"] = int(rng.choice([1, 2, 5, 40, 200, 3000]))
    if rng.random() < 0.5:
        filters["min_p"] = float(rng.choice([1.0, 1e-9, 0.02, rng.random()]))
    return filters


def random_case(seed: int, vocab: int, kind: str) -> Case:
    rng = np.random.default_rng([seed, vocab])
    return Case(
        logits=random_logits(rng, vocab, kind),
        seed=int(rng.integers(2**64, dtype=np.uint64)),
        position=int(rng.integers(2**40)),
        filters=random_filters(rng),
        changes=random_changes(rng, vocab),
        alternatives=int(rng.integers(0, min(vocab, 20) + 1)),
        target=int(rng.integers(vocab)) if rng.random() < 0.1 else -1,
    )


@given(st.integers(0, 2**32), st.integers(1, 70), st.sampled_from(KINDS))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_row_is_drawn_as_the_reference_says(
    native_samplers: dict[str, NativeSampler], seed: int, vocab: int, kind: str
) -> None:
    case = random_case(seed, vocab, kind)
    check_against_reference(case, at_all_levels(native_samplers, case))


@pytest.mark.parametrize("vocab", range(1, 71))
def test_every_small_vocabulary_is_drawn_from_to_its_last_token(
    native_samplers: dict[str, NativeSampler], vocab: int
) -> None:
    even = np.zeros(vocab, np.float32)
    last = next(position for position in range(10_000) if uniform(0, position) > 1 - 1 / vocab)
    for position in (0, 1, 2, last):
        token = at_all_levels(native_samplers, Case(logits=even, position=position)).token
        assert token == math.floor(vocab * uniform(0, position))
    assert token == vocab - 1
    rising = Case(logits=np.arange(vocab, dtype=np.float32), filters={"temperature": 0.0})
    assert at_all_levels(native_samplers, rising).token == vocab - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_any_row_of_a_real_vocabulary_is_drawn_as_the_reference_says(
    native_samplers: dict[str, NativeSampler], seed: int, kind: str
) -> None:
    case = random_case(seed, VOCAB, kind)
    check_against_reference(case, at_all_levels(native_samplers, case))


FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.2},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 0.9999},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "top_p": 0.95, "top_k": 300, "min_p": 0.001},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["normal", "peaked"])
def test_of_ten_thousand_draws_only_those_on_a_border_differ_from_the_reference(
    native_samplers: dict[str, NativeSampler], kind: str, filters: dict[str, Any]
) -> None:
    logits = random_logits(np.random.default_rng(5), VOCAB, kind)
    expected = Expected(logits, **filters)
    fastest = list(native_samplers.values())[-1]
    draws = 500  # for each of 20 cases
    same = 0
    for position in range(draws):
        token = fastest.sample(logits, seed=3, position=position, **filters, wants_log_probability=False).token
        same += expected.check(token, uniform(3, position))
    # the borders of 49,152 tokens are 2e-5 apart on average
    assert same > 0.99 * draws


def test_weights_of_one_size_far_below_the_largest_keep_their_share(native_samplers: dict[str, NativeSampler]) -> None:
    # the worst there is for float32: all rounding errors of the many small weights are the same
    logits = np.full(VOCAB, 0.1, np.float32)
    logits[VOCAB // 2] = 10.9
    for temperature in (0.9, 1.0, 1.1):
        expected = Expected(logits, temperature=temperature)
        for position in range(25):
            case = Case(logits=logits, position=position, filters={"temperature": temperature})
            result = at_all_levels(native_samplers, case)
            expected.check(result.token, uniform(0, position))
            assert result.log_probability == pytest.approx(log_probability(logits, result.token), rel=0, abs=1e-6)


@pytest.mark.parametrize("filters", [f for f in FILTERS if len(f) > 1][:4], ids=str)
def test_tokens_are_drawn_in_proportion_to_their_probabilities(
    native_sampler: NativeSampler, filters: dict[str, Any]
) -> None:
    logits = random_logits(np.random.default_rng(3), 40, "normal")
    weights = Expected(logits, **filters).weights
    draws = 4000
    tokens = [native_sampler.sample(logits, seed=i, position=100, **filters).token for i in range(draws)]
    counts, expected = np.bincount(tokens, minlength=40), draws * weights / weights.sum()
    assert not counts[weights == 0].any()
    # rare tokens are counted together, as the test asks for
    common = expected >= 8
    observed = [*counts[common], counts[~common].sum()]
    foreseen = [*expected[common], expected[~common].sum()]
    chi2 = sum((o - e) ** 2 / e for o, e in zip(observed, foreseen, strict=True) if e > 0)
    degrees = int(common.sum())
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees) + 8  # about 5 standard deviations


def kept(sampler: NativeSampler, logits: list[float], **filters: Any) -> set[int]:
    row = np.array(logits, np.float32)
    return {sampler.sample(row, seed=1, position=p, **filters).token for p in range(300)}


def test_tokens_that_tie_with_the_last_are_kept(native_sampler: NativeSampler) -> None:
    assert kept(native_sampler, [3, 2, 2.5, 2.5, 2], top_k=2) == {0, 2, 3}
    assert kept(native_sampler, [0, -1, -1, -1, -9], top_p=0.6) == {0, 1, 2, 3}
    assert kept(native_sampler, [0, 1, 1], min_p=1.0) == {1, 2}
    assert kept(native_sampler, [0, 1, 1], top_p=0.0) == {1, 2}


@pytest.mark.parametrize("level", [0.0, -3.25, 1e-40, 3e38])
def test_a_large_vocabulary_of_equal_logits_is_one_tie(native_sampler: NativeSampler, level: float) -> None:
    logits = np.full(5000, level, np.float32)
    for filters in ({"top_k": 7}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_k": 7, "top_p": 0.1}):
        for position in range(20):
            drawn = native_sampler.sample(logits, position=position, **filters)
            assert drawn.token == math.floor(5000 * uniform(0, position))


def test_a_top_k_of_more_than_min_p_left_keeps_all_of_that(native_sampler: NativeSampler) -> None:
    logits = np.full(5000, -20, np.float32)
    logits[1000:1200] = 0
    for position in range(20):
        drawn = native_sampler.sample(logits, position=position, min_p=0.5, top_k=1000)
        assert drawn.token == 1000 + math.floor(200 * uniform(0, position))


def test_top_p_counts_only_what_min_p_and_top_k_left(native_sampler: NativeSampler) -> None:
    logits = [math.log(p) for p in (0.5, 0.2, 0.16, 0.14)]
    assert kept(native_sampler, logits, top_p=0.69) == {0, 1}
    assert kept(native_sampler, logits, top_p=0.69, top_k=2) == {0}
    assert kept(native_sampler, logits, top_p=0.69, min_p=0.35) == {0}


def test_the_filters_see_the_changed_logits_and_the_log_probabilities_the_raw_ones(
    native_sampler: NativeSampler,
) -> None:
    logits = np.array([5, 4, 3], np.float32)
    result = native_sampler.sample(logits, bias={0: -3, 2: 4}, top_k=1, alternatives=2)
    assert result.token == 2
    assert result.log_probability == pytest.approx(log_probability(logits, 2), abs=1e-6)
    assert [i for i, _ in result.alternatives] == [0, 1]


def test_of_equal_alternatives_the_lower_id_comes_first(native_sampler: NativeSampler) -> None:
    logits = np.zeros(100, np.float32)
    logits[[90, 40]] = 1
    assert [i for i, _ in native_sampler.sample(logits, alternatives=5).alternatives] == [40, 90, 0, 1, 2]


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-300, 5e-324])
def test_a_tiny_temperature_takes_the_most_likely_token(native_sampler: NativeSampler, temperature: float) -> None:
    # FAN-6
    logits = [-3e38, 1.0, 1.001, -np.inf, 1.0]
    assert kept(native_sampler, logits, temperature=temperature) == {2}
    assert kept(native_sampler, logits, temperature=temperature, top_k=3, top_p=0.9, min_p=0.1) == {2}
    assert kept(native_sampler, [*logits, 1.001], temperature=temperature, top_p=0.9) == {2, 5}


def test_a_huge_temperature_draws_evenly_from_all_tokens_but_those_at_minus_infinity(
    native_sampler: NativeSampler,
) -> None:
    assert kept(native_sampler, [-3e4, -np.inf, 3e4, 0], temperature=1e300) == {0, 2, 3}


@pytest.mark.parametrize("bad", [[0, np.nan], [np.nan, 0], [0, np.inf], [-np.inf, -np.inf], [np.nan]])
@pytest.mark.parametrize("at", [0, 15, 16, 300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_finite_maximum_have_their_own_status(
    native_sampler: NativeSampler, bad: list[float], at: int, temperature: float
) -> None:
    logits = np.full(at + len(bad), -np.inf, np.float32)
    logits[at:] = bad
    result = native_sampler.sample(logits, temperature=temperature, top_p=0.9, top_k=3, alternatives=1)
    assert (result.token, result.status, result.log_probability) == (-1, 1, 0.0)


def test_changes_that_leave_nothing_have_another_and_the_likeliest_tokens_are_told_all_the_same(
    native_sampler: NativeSampler,
) -> None:
    logits = np.array([1, 2, -np.inf], np.float32)
    for changes in (
        {"allowed": np.zeros(3, np.bool_)},
        {"allowed": np.array([False, False, True])},
        {"allowed": np.array([True, False, False]), "bias": {0: -math.inf}},
        {"bias": {0: -math.inf, 1: -math.inf}},
        {"bias": {2: math.inf}},
    ):
        result = native_sampler.sample(logits, alternatives=3, **changes)
        assert (result.token, result.status, result.log_probability) == (-1, 2, 0.0)
        assert result.alternatives == native_sampler.sample(logits, alternatives=3).alternatives
    assert native_sampler.sample(logits, allowed=np.array([True, False, False])).token == 0


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_random_numbers_are_those_of_the_reference(
    native_samplers: dict[str, NativeSampler], seed: int, position: int
) -> None:
    assert {s.uniform(seed, position) for s in native_samplers.values()} == {uniform(seed, position)}


def test_a_log_probability_that_is_not_wanted_is_0(native_sampler: NativeSampler) -> None:
    assert native_sampler.sample(np.array([1, 2], np.float32), wants_log_probability=False).log_probability == 0.0
