"""Our histograms against those of prometheus_client."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Oracle

from trioserve.web.histogram import FIRST_TOKEN_SECONDS, N_CHOICES, Histogram, token_counts

BOUNDS = st.sampled_from([FIRST_TOKEN_SECONDS, N_CHOICES, token_counts(4096)])
VALUES = st.sampled_from([0.0, 1.0, 2.0, 20.0, 2560.0]) | st.floats(0, 1e5)


@settings(max_examples=100)
@given(bounds=BOUNDS, observations=st.lists(st.tuples(VALUES, st.integers(1, 3)), max_size=10))
def test_a_histogram_says_what_that_of_prometheus_client_says(
    bounds: tuple[float, ...], observations: list[tuple[float, int]]
) -> None:
    oracle = Oracle("x", "Doc.", ["model_name"], buckets=bounds, registry=CollectorRegistry())
    ours = Histogram("x", "Doc.", bounds)
    child = oracle.labels("m")
    for value, times in observations:
        ours.observe(value, times)
        for _ in range(times):
            child.observe(value)
    (expected,) = oracle.collect()
    family = ours.family(("model_name",), ("m",))
    assert (family.name, family.documentation, family.type) == (expected.name, expected.documentation, expected.type)
    got, wanted = (
        {(sample.name, frozenset(sample.labels.items())): sample.value for sample in metric.samples}
        for metric in (family, expected)
    )
    # when it was made, which we do not tell
    del wanted["x_created", frozenset({("model_name", "m")})]
    assert got == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(1, (1,)), (4, (1, 2)), (9, (1, 2, 5)), (10, (1, 2, 5, 10)), (400, (1, 2, 5, 10, 20, 50, 100, 200))],
)
def test_token_counts_go_up_to_the_context(most: int, bounds: tuple[float, ...]) -> None:
    assert token_counts(most) == bounds
