"""The queue: sequences that hold no pages.

Owns: the order in which they start. Must not know: pages, steps.

First in, first out by groups, for the sake of no starvation: nothing overtakes the sequence that ``first``
names, however well it would fit. A preempted sequence is older than everything that never ran, and so is at the
front again by itself. A policy that prefers groups whose prefix is cached would change ``first`` alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from trioserve.errors import InvariantError
from trioserve.sched.sequence import Sequence

by_order = attrgetter("order")


class Waiting:
    """Waiting sequences, the oldest first: prompts to compute, choices to fork, preempted sequences."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __repr__(self) -> str:
        return f"<Waiting {self._sequences}>"

    @property
    def choices(self) -> int:
        """Choices that wait. A prompt counts once for each of its own."""
        return sum(len(sequence.choices) for sequence in self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at its place in the order."""
        insort(self._sequences, sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            InvariantError: it is not there.
        """
        place = bisect_left(self._sequences, sequence.order, key=by_order)
        if place == len(self._sequences) or self._sequences[place] is not sequence:
            raise InvariantError(f"{sequence} does not wait")
        del self._sequences[place]

    def first(self) -> Sequence | None:
        """The sequence to start next; None if none waits that may run. Paused ones keep their place."""
        return next((sequence for sequence in self._sequences if not sequence.paused), None)
