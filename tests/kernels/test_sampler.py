"""How a token is drawn: proportions, filters, ties and edges."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trioserve_kernels.reference.philox import uniform
from trioserve_kernels.reference.sampler import (
    changed,
    filtered_weights,
    log_probability,
    most_likely,
    pick,
    sample,
)

Logits = npt.NDArray[np.float32]
LARGEST_U = 1 - 2.0**-53


def logits_of(values: Iterable[float]) -> Logits:
    return np.array(list(values), dtype=np.float32)


def weights_of(
    logits: Logits, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> npt.NDArray[np.float64]:
    return filtered_weights(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)


def kept(
    logits: Logits, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> set[int]:
    weights = weights_of(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    return set(np.flatnonzero(weights).tolist())


def slowly_kept(logits: Logits, temperature: float, top_p: float, top_k: int, min_p: float) -> set[int]:
    """The same from the definitions, by lists."""
    odds = {i: math.exp((x - max(logits.tolist())) / temperature) for i, x in enumerate(logits.tolist())}
    odds = {i: w for i, w in odds.items() if w >= min_p}
    by_odds = sorted(odds.values(), reverse=True)
    if top_k > 0:
        odds = {i: w for i, w in odds.items() if w >= by_odds[min(top_k, len(by_odds)) - 1]}
    if top_p == 1.0:
        return set(odds)
    by_odds = sorted(odds.values(), reverse=True)
    sums = list(itertools.accumulate(by_odds))  # not sum(): from Python 3.12 on it rounds less
    needed = next(i for i, total in enumerate(sums) if total >= top_p * sums[-1])
    return {i for i, w in odds.items() if w >= by_odds[needed]}


def test_temperature_0_takes_the_first_of_the_most_likely_tokens() -> None:
    assert sample(logits_of([1, 5, 3, 5]), seed=9, position=4, temperature=0.0) == 1


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_tiny_temperature_takes_the_most_likely_token_without_nan(temperature: float) -> None:
    # FAN-6
    logits = logits_of([-3e38, 1.0, 1.001, -np.inf, 1.0])
    weights = weights_of(logits, temperature=temperature)
    assert np.isfinite(weights).all()
    assert {sample(logits, seed=1, position=p, temperature=temperature) for p in range(50)} == {2}


def test_a_small_temperature_still_draws_among_equals() -> None:
    draws = {sample(logits_of([2, 2, 1]), seed=1, position=p, temperature=1e-6) for p in range(50)}
    assert draws == {0, 1}


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "min_p"),
    [(1.0, 1.0, 0, 0.0), (0.7, 1.0, 0, 0.0), (2.0, 0.8, 0, 0.0), (1.0, 1.0, 9, 0.0), (1.3, 0.9, 20, 0.02)],
)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_tokens_are_drawn_in_proportion_to_their_probabilities(
    temperature: float, top_p: float, top_k: int, min_p: float, along: str
) -> None:
    logits = np.random.default_rng(3).normal(size=40).astype(np.float32) * 2
    weights = weights_of(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    draws = 4000
    counts = Counter(
        sample(
            logits,
            seed=i if along == "seeds" else 12345,
            position=i if along == "positions" else 100,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
        )
        for i in range(draws)
    )
    expected = draws * weights / weights.sum()
    assert set(counts) <= set(np.flatnonzero(weights).tolist())
    # rare tokens are counted together, as the test asks for
    common = [i for i in range(40) if expected[i] >= 8]
    observed = [counts[i] for i in common] + [sum(counts[i] for i in range(40) if i not in common)]
    foreseen = [expected[i] for i in common] + [sum(expected[i] for i in range(40) if i not in common)]
    chi2 = sum((o - e) ** 2 / e for o, e in zip(observed, foreseen, strict=True) if e > 0)
    degrees = len(common)
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees) + 8  # about 5 standard deviations


def test_a_token_is_found_by_its_share_of_the_unit_interval_in_vocabulary_order() -> None:
    weights = np.array([0.25, 0.0, 0.5, 0.25])
    found = [pick(weights, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, LARGEST_U)]
    assert found == [0, 0, 2, 2, 3, 3]


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 1)), min_size=1, max_size=200).map(lambda w: [*w, 1.0, 0.0]),
    st.one_of(st.sampled_from([0.0, 2.0**-53, LARGEST_U]), st.floats(0, LARGEST_U)),
)
@settings(max_examples=200)
def test_no_u_picks_a_dropped_token(values: list[float], u: float) -> None:
    weights = np.array(values)
    assert weights[pick(weights, u)] > 0


def test_the_largest_u_picks_a_kept_token_of_a_large_vocabulary() -> None:
    logits = np.random.default_rng(0).normal(size=49152).astype(np.float32)
    for top_k in (0, 1, 50):
        weights = weights_of(logits, top_k=top_k)
        assert weights[pick(weights, LARGEST_U)] > 0


VALUES = st.lists(st.sampled_from([-8.0, -2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 1.5, 3.0]), min_size=1, max_size=12)


@given(VALUES, st.sampled_from([0.3, 1.0, 2.0]), st.floats(0, 1), st.integers(-1, 14), st.floats(0, 1))
@settings(max_examples=300)
def test_the_filters_keep_what_their_definitions_say(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits = logits_of(values)
    expected = slowly_kept(logits, temperature, top_p, top_k, min_p)
    assert kept(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p) == expected


def test_top_k_keeps_all_tokens_that_tie_with_the_last() -> None:
    assert kept(logits_of([3, 1, 2, 2, 0]), top_k=2) == {0, 2, 3}


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_all_that_tie_with_the_last() -> None:
    halves = np.log([0.5, 0.25, 0.125, 0.125])
    assert kept(logits_of(halves), top_p=0.0) == {0}
    assert kept(logits_of(halves), top_p=0.49) == {0}
    assert kept(logits_of(halves), top_p=0.51) == {0, 1}
    assert kept(logits_of(halves), top_p=0.8) == {0, 1, 2, 3}
    two = logits_of([0, -1])
    exactly_the_first = 1 / np.cumsum(weights_of(two))[-1]
    assert kept(two, top_p=exactly_the_first) == {0}


def test_min_p_is_relative_to_the_most_likely_token() -> None:
    assert kept(logits_of(np.log([0.4, 0.3, 0.19, 0.11])), min_p=0.5) == {0, 1}
    assert kept(logits_of([1, 2, 2]), min_p=1.0) == {1, 2}


def test_top_p_counts_only_what_min_p_and_top_k_left() -> None:
    # of all four the first two reach 0.7; of the two that are left, the first alone does
    logits = logits_of(np.log([0.5, 0.2, 0.16, 0.14]))
    assert kept(logits, top_p=0.7) == {0, 1}
    assert kept(logits, top_p=0.7, top_k=2) == {0}
    assert kept(logits, top_p=0.7, min_p=0.35) == {0}


@pytest.mark.parametrize("top_k", [-1, 0, 3, 100])
def test_values_that_keep_everything_drop_nothing(top_k: int) -> None:
    assert kept(logits_of([-40, 0, 9]), top_k=top_k) == {0, 1, 2}


def test_a_token_at_minus_infinity_is_never_drawn() -> None:
    logits = logits_of([-np.inf, 0, -np.inf, 0, -np.inf])
    assert {sample(logits, seed=3, position=p, temperature=2.0) for p in range(100)} == {1, 3}
    assert sample(logits, seed=3, position=0, temperature=0.0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[0, np.nan], [0, np.inf], [-np.inf, -np.inf]])
def test_logits_without_a_finite_maximum_are_an_error(temperature: float, bad: list[float]) -> None:
    with pytest.raises(FloatingPointError, match="no finite maximum"):
        sample(logits_of(bad), seed=0, position=0, temperature=temperature)


def test_a_draw_uses_the_uniform_number_of_its_seed_and_position() -> None:
    even = logits_of([0.0] * 1000)
    for seed, position in [(0, 0), (2**64 - 1, 5), (5, 2**40)]:
        expected = math.floor(1000 * uniform(seed, position))
        assert sample(even, seed=seed, position=position, temperature=1.0) == expected


def test_the_logits_are_left_as_they_were() -> None:
    logits = logits_of([1, 2, 3])
    sample(logits, seed=0, position=0, temperature=0.5, top_p=0.5, top_k=2, min_p=0.1)
    assert logits.tolist() == [1, 2, 3]


def test_presence_and_frequency_penalties_are_of_generated_tokens_only() -> None:
    result = changed(logits_of([1, 1, 1]), generated=[2, 0, 2, 2], presence_penalty=0.5, frequency_penalty=0.25)
    assert result.tolist() == [0.25, 1, -0.25]


def test_the_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    result = changed(logits_of([3, -3, 3, 0, -np.inf]), prompt=[0, 1, 3, 4, 0], repetition_penalty=2.0)
    assert result.tolist() == [1.5, -6, 3, 0, -np.inf]


def test_penalties_come_before_the_bias_and_the_mask_last() -> None:
    result = changed(
        logits_of([4, 4, 4]),
        generated=[0, 0],
        frequency_penalty=1.0,
        prompt=[0, 1, 1],
        repetition_penalty=2.0,
        bias={0: 10, 2: 100},
        allowed=np.array([True, True, False]),
    )
    assert result.tolist() == [11, 2, -np.inf]


@given(
    st.lists(st.floats(-40, 40, width=32), min_size=6, max_size=6),
    st.lists(st.integers(0, 5), max_size=9),
    st.lists(st.integers(0, 5), max_size=9),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.floats(0.1, 10),
    st.dictionaries(st.integers(0, 5), st.one_of(st.just(-math.inf), st.floats(-100, 100)), max_size=4),
)
def test_changes_are_what_their_definitions_say_one_after_another(
    values: list[float],
    generated: list[int],
    prompt: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
) -> None:
    found = changed(
        logits_of(values),
        generated=generated,
        presence_penalty=presence,
        frequency_penalty=frequency,
        prompt=prompt,
        repetition_penalty=repetition,
        bias=bias,
    )
    for token_id, value in enumerate(values):
        exact = value
        if token_id in generated:
            exact -= presence
        exact -= frequency * generated.count(token_id)
        # rounding may put a logit of next to nothing on the other side of 0: what it is there is next to nothing too
        if token_id in generated + prompt:
            exact = exact / repetition if exact > 0 else exact * repetition
        exact += bias.get(token_id, 0.0)
        assert found[token_id] == pytest.approx(exact, rel=1e-6, abs=1e-4)


def test_a_logit_that_gets_too_large_is_the_largest_there_is() -> None:
    result = changed(logits_of([2, -2, 0]), prompt=[0, 1, 2], repetition_penalty=1e-300)
    assert result.tolist() == [np.finfo(np.float32).max, 0, 0]


def test_what_changes_nothing_changes_nothing() -> None:
    logits = logits_of([1, -2])
    assert changed(logits).tolist() == changed(logits, generated=[0, 0, 0], prompt=[1]).tolist() == [1, -2]


def test_changes_are_made_to_a_copy() -> None:
    logits = logits_of([1, 2])
    changed(logits, bias={0: 5}, allowed=np.array([True, False]))
    assert logits.tolist() == [1, 2]


def test_log_probabilities_are_natural_logarithms() -> None:
    logits = logits_of(np.log([0.5, 0.25, 0.25]) + 40)
    assert [log_probability(logits, i) for i in range(3)] == pytest.approx(np.log([0.5, 0.25, 0.25]).tolist(), abs=1e-5)
    assert log_probability(logits_of([7]), 0) == 0.0
    assert log_probability(logits_of([0, -np.inf]), 1) == -np.inf
    # in float64 throughout: the float32 next to -52.7 are 4e-6 apart
    assert log_probability(logits_of([52.725075, 0.000001]), 1) == pytest.approx(-52.72507376806641, abs=1e-12)


def test_the_most_likely_tokens_are_ordered_and_equal_ones_by_id() -> None:
    logits = logits_of([1, 2, -np.inf, 2, 0])
    assert [i for i, _ in most_likely(logits, 3)] == [1, 3, 0]
    assert [i for i, _ in most_likely(logits, 9)] == [1, 3, 0, 4, 2]
    assert most_likely(logits, 5)[4] == (2, -math.inf)
    assert most_likely(logits, 1) == [(1, log_probability(logits, 1))]
    assert most_likely(logits, 0) == []


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=40), st.data())
def test_a_log_probability_is_that_of_the_softmax_of_the_raw_logits(values: list[float], data: st.DataObject) -> None:
    # FAN-32
    token = data.draw(st.integers(0, len(values) - 1))
    exact = values[token] - max(values) - math.log(math.fsum(math.exp(x - max(values)) for x in values))
    assert log_probability(logits_of(values), token) == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_log_probabilities_of_a_large_vocabulary_sum_to_one() -> None:
    logits = np.random.default_rng(1).normal(size=2000).astype(np.float32) * 5
    assert math.fsum(math.exp(log_probability(logits, token)) for token in range(2000)) == pytest.approx(1.0, abs=1e-12)


def test_the_log_probability_of_an_excluded_token_is_minus_infinity() -> None:
    logits = logits_of([0, -np.inf, 0])
    assert log_probability(logits, 1) == -math.inf
    assert log_probability(logits, 0) == pytest.approx(-math.log(2))


def test_a_token_far_from_the_most_likely_one_has_a_finite_log_probability() -> None:
    # its probability is 0 in float64
    assert log_probability(logits_of([0, -2000]), 1) == -2000.0
