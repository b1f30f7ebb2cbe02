"""The random numbers: known answers, and how a seed and a position become one of them."""

from __future__ import annotations

import pytest
from trioserve_kernels.reference.philox import philox4x32, uniform

# kat_vectors of Random123, lines "philox4x32 10": counter, key, words
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1",
]


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_it_gives_the_known_answers_of_its_authors(line: str) -> None:
    c0, c1, c2, c3, k0, k1, *words = (int(word, 16) for word in line.split())
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == tuple(words)


def test_a_uniform_number_is_the_top_53_bits_of_the_first_two_words() -> None:
    assert uniform(0, 0) == (0xE169C58D6627E8D5 >> 11) / 2**53


def test_the_seed_is_the_key_and_the_position_the_counter_low_words_first() -> None:
    words = philox4x32((0x89ABCDEF, 0x01234567, 0, 0), (0x76543210, 0xFEDCBA98))
    assert uniform(0xFEDCBA9876543210, 0x0123456789ABCDEF) == ((words[1] << 32 | words[0]) >> 11) / 2**53


def test_numbers_are_spread_evenly_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(7, p) for p in range(4000)], [uniform(s, 7) for s in range(4000)]):
        counts = [sum(tenth / 10 <= u < (tenth + 1) / 10 for u in numbers) for tenth in range(10)]
        assert sum(counts) == 4000
        # chi-square with 9 degrees of freedom: above 40 once in 10^5
        assert sum((count - 400) ** 2 / 400 for count in counts) < 40


def test_neighbouring_seeds_and_positions_share_no_number() -> None:
    # FAN-14: siblings use s, s + 1, ...; a generator that adds seed and position would give them one stream, shifted
    assert len({uniform(seed, position) for seed in range(50) for position in range(50)}) == 2500


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_a_number_that_is_not_a_uint64_is_refused(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="unsigned 64-bit"):
        uniform(seed, position)
