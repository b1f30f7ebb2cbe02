"""One vector for a prompt, out of the last hidden states of its tokens.

Owns: which states are wanted, and what becomes of them. Must not know: steps, devices.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import add

import attrs

from trioserve.params import Pooling


@attrs.define(eq=False)
class PromptPool:
    """The vector of one prompt, while steps compute its tokens."""

    pooling: Pooling
    length: int
    """Tokens of the prompt."""
    _sum: list[float] = attrs.field(factory=list, init=False, repr=False)
    _next: int = attrs.field(default=0, init=False)
    """Tokens before this one are in the sum."""

    @property
    def needs_all(self) -> bool:
        """Whether every token counts, those too that the prefix cache has."""
        return self.pooling == "mean"

    def wanted(self, start: int, end: int) -> range:
        """The positions whose states are wanted when tokens ``start`` to ``end`` are computed, perhaps again."""
        first = self._next if self.needs_all else self.length - 1
        return range(max(start, first), min(end, self.length))

    def add(self, states: Sequence[memoryview]) -> None:
        """The states of the positions that were wanted, in their order: "f", each of the same length.

        They are added in float64 and in the order of the tokens, so how the prompt was cut into steps changes nothing.
        """
        for state in states:
            self._sum = list(map(add, self._sum, state)) if self._sum else list(state)
        self._next += len(states)

    def vector(self) -> array[float]:
        """The vector, "f", of length 1. Every state that was wanted has come."""
        assert self._sum, "no token was computed"
        # the mean points where the sum does
        norm = math.sqrt(math.fsum(number * number for number in self._sum))
        return array("f", [number / norm for number in self._sum] if norm else self._sum)
