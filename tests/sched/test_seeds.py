"""FAN-14: seeds of the choices of one prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.sched.seeds import child_seed, seed_key

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("seed", "j", "expected"),
    [
        (7, 0, 7),
        (7, 3, 10),
        (-2, 1, -1),
        (2**63 - 1, 1, -(2**63)),
        (2**63 - 1, 2, -(2**63) + 1),
        (-(2**63), 0, -(2**63)),
    ],
)
def test_choice_j_uses_seed_plus_j_wrapped_into_int64(seed: int, j: int, expected: int) -> None:  # FAN-14
    assert child_seed(seed, j) == expected


@given(INT64, st.integers(0, 2**14), st.integers(0, 2**14))
def test_offsets_add_up(seed: int, i: int, j: int) -> None:
    assert child_seed(child_seed(seed, i), j) == child_seed(seed, i + j)


@given(INT64)
def test_the_key_has_the_bits_of_the_seed(seed: int) -> None:
    assert seed_key(seed).to_bytes(8, "little") == seed.to_bytes(8, "little", signed=True)
