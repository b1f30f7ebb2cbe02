"""The seeds of the choices of one prompt (FAN-14).

Owns: the offset and its wrapping. Must not know: whether a request is seeded, how numbers are drawn.
"""

from __future__ import annotations


def child_seed(seed: int, j: int) -> int:
    """The seed of choice j: seed + j, wrapped into int64."""
    return (seed + j + 2**63) % 2**64 - 2**63


def seed_key(seed: int) -> int:
    """An int64 seed as the uint64 that keys the random numbers: the same 64 bits."""
    return seed % 2**64
