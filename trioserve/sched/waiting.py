"""The queue: sequences that hold no pages.

Owns: the order in which they start. Must not know: steps, who fits.

Sequences of groups that were admitted before come first, strictly in their order: choices to be forked, and what was
preempted. Then come new groups. Among the ``WINDOW`` oldest of these, the one of whose prompt most is in the prefix
cache goes first, for its size: it costs least for what it brings, and what it would find might be evicted while it
waits. The older go first where that is equal. A group that does not fit, or for whose prompt a page is being computed
at the moment, may be passed over too.

Nothing starves, because a group may be *overtaken* only so long: from ``max_overtaken_s`` after the first time on it is
*aged*. Nothing overtakes the aged, not even to let them wait for a page of their prompt, and among themselves they go
first in, first out. Whoever overtakes a group overtakes all that are older, so the aged are always the oldest ones.

All that holds among new groups of the same priority. Those with a lower number go before them, however they are, and
so the others may starve: that is what priorities are for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from typing import Final

from trioserve.errors import InvariantError
from trioserve.sched.prefix import PrefixTree
from trioserve.sched.sequence import PROMPT_INDEX, Sequence

WINDOW: Final = 64
"""New groups that are compared with each other, and may start in one step: looking at all would cost too much."""

by_order = attrgetter("order")
by_place = attrgetter("group.place")
by_priority = attrgetter("group.priority")


class Waiting:
    """Waiting sequences: choices to fork and preempted sequences, then new prompts; each the oldest first."""

    def __init__(self, tree: PrefixTree, max_overtaken_s: float) -> None:
        self._tree = tree
        self._max_overtaken_s = max_overtaken_s
        self._admitted: list[Sequence] = []
        self._new: list[Sequence] = []
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._admitted) + len(self._new)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._admitted, self._new)

    def __repr__(self) -> str:
        return f"<Waiting {self._admitted}, {len(self._new)} new>"

    @property
    def choices(self) -> int:
        """Choices that wait. A prompt counts once for each of its own."""
        return sum(len(sequence.choices) for sequence in self)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at its place in the order."""
        if sequence.is_new:
            insort(self._new, sequence, key=by_place)
        else:
            insort(self._admitted, sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            InvariantError: it is not there.
        """
        line, key = (self._new, by_place) if sequence.is_new else (self._admitted, by_order)
        place = bisect_left(line, key(sequence), key=key)
        if place == len(line) or line[place] is not sequence:
            raise InvariantError(f"{sequence} does not wait")
        del line[place]

    def first(self) -> Sequence | None:
        """The sequence of a group admitted before that is to start next, and before any new group.

        None if none waits that may run. Paused ones keep their place.
        """
        return next((sequence for sequence in self._admitted if not sequence.paused), None)

    def candidates(self, now: float) -> list[Sequence]:
        """The new prompts that may start now, the best first; an aged one has to start before those after it."""
        ready = islice((prompt for prompt in self._new if not prompt.paused), WINDOW)
        candidates: list[Sequence] = []
        for _, equals in groupby(ready, key=by_priority):
            prompts = list(equals)
            aged = sum(self.is_aged(prompt, now) for prompt in prompts)
            candidates += prompts[:aged] + sorted(prompts[aged:], key=self._share, reverse=True)
        return candidates

    def is_aged(self, prompt: Sequence, now: float) -> bool:
        """Whether nothing may overtake a new prompt any more."""
        overtaken = prompt.group.overtaken
        return self._max_overtaken_s == 0 or (overtaken is not None and now - overtaken >= self._max_overtaken_s)

    def admit(self, prompt: Sequence, now: float) -> None:
        """The group of a new prompt, which was taken out before, is admitted: it is the youngest of those that are."""
        prompt.order = (self._admissions, PROMPT_INDEX)
        self._admissions += 1
        for older in self._new:
            if older.group.place > prompt.group.place:
                break
            if older.group.overtaken is None:
                older.group.overtaken = now

    def check(self) -> None:
        """Raise InvariantError if anything is not where the order wants it."""
        for line, key in ((self._admitted, by_order), (self._new, by_place)):
            if any(key(one) >= key(other) for one, other in pairwise(line)):
                raise InvariantError("waiting sequences are out of order")
        if any(sequence.is_new for sequence in self._admitted) or not all(prompt.is_new for prompt in self._new):
            raise InvariantError("a waiting sequence is in the wrong line")
        for _, equals in groupby(self._new, key=by_priority):
            since = [prompt.group.overtaken for prompt in equals]
            if any(later is not None and (first is None or first > later) for first, later in pairwise(since)):
                raise InvariantError("a group was overtaken, and an older one was not")

    def _share(self, prompt: Sequence) -> float:
        match = prompt.group.match
        self._tree.update(match)
        return match.share
