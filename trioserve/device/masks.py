"""Fills the masks of a step in a thread of its own, while the device computes.

Owns: MaskFiller, its thread, and which rows have the same mask. Must not know: devices, what a matcher matches.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.step import Matcher

Masks = npt.NDArray[np.uint32]
WORD_BITS = 32


def distinct(matchers: Sequence[Matcher | None]) -> tuple[list[Matcher], array[int]]:
    """The matchers, each once, and for each item its index in them, -1 for None."""
    numbers: dict[int, int] = {}
    found: list[Matcher] = []
    indices = array("i")
    for matcher in matchers:
        if matcher is None:
            indices.append(-1)
            continue
        number = numbers.setdefault(id(matcher), len(found))
        if number == len(found):
            found.append(matcher)
        indices.append(number)
    return found, indices


def new_masks(count: int, vocab_size: int) -> Masks:
    """[count, (vocab_size + 31) // 32] not yet filled."""
    return np.empty((count, -(-vocab_size // WORD_BITS)), np.uint32)


@attrs.define(eq=False)
class MaskJob:
    """The masks of one step. ``told`` is called once, in the filler's thread, after they are there or ``error`` is."""

    matchers: Sequence[Matcher]
    masks: Masks
    told: Callable[[MaskJob], None]
    error: BaseException | None = None
    abandoned: bool = False
    """Nobody wants them any more: the matchers not yet asked are let alone."""

    def fill(self) -> None:
        try:
            for matcher, mask in zip(self.matchers, self.masks, strict=True):
                if self.abandoned:
                    break
                matcher.fill_mask(memoryview(mask))
        # whatever it is, it is the step that fails of it, and not this thread; it is no task, so there are no Cancelled
        except BaseException as error:  # noqa: ASYNC103
            self.error = error
        self.told(self)


class MaskFiller:
    """A thread that fills masks, one job after another. It starts with the first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[MaskJob | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # also of one that nobody closes
        self._end = weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: MaskJob) -> None:
        if self._thread is None:
            # a daemon: a matcher that never comes back must not keep the process from ending
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name="trioserve masks", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the jobs that it has. Does not wait for that. Idempotent."""
        self._end()


def _work(jobs: SimpleQueue[MaskJob | None]) -> None:
    while (job := jobs.get()) is not None:
        job.fill()
        # the matchers are not this thread's to keep until there is another job
        del job
