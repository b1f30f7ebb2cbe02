"""Random numbers without state: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC 2011).

Owns: the function from (seed, position) to a uniform number. Every implementation must give the same bits.
Must not know: logits, tokens.

A number depends on nothing but its seed and position. So a choice draws the same numbers alone or in any batch, and
again after it was preempted.
"""

from __future__ import annotations

from typing import Final

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_MASK: Final = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four random 32-bit words of a counter under a key. All words are unsigned, the least significant first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK, (low >> 32) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2 ** -53.

    Exactly: the key is the seed (low word, high word), the counter is the position (low word, high word, 0, 0).
    Output words 0 and 1 make a 64-bit integer, word 0 its low half; its top 53 bits times 2 ** -53 are the result.

    Raises:
        ValueError: seed or position is not in 0 to 2 ** 64 - 1.
    """
    if not 0 <= seed < 2**64 or not 0 <= position < 2**64:
        raise ValueError(f"seed and position must be unsigned 64-bit numbers, got {seed} and {position}")
    counter = (position & _MASK, position >> 32, 0, 0)
    w0, w1, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((w1 << 32 | w0) >> 11) * 2.0**-53
