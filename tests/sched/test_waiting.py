"""The order of the queue."""

from __future__ import annotations

from array import array

import pytest

from trioserve.errors import InvariantError
from trioserve.sched.sequence import LiveGroup, Sequence
from trioserve.sched.waiting import Waiting


def sequence(number: int, index: int = 0) -> Sequence:
    return Sequence(LiveGroup(number, array("i", [1]), 0, 0.0), (number, index), array("i"), [])


def test_the_oldest_comes_first_however_late_it_was_added() -> None:
    waiting = Waiting()
    late, early, prompt, sibling = sequence(5), sequence(2), sequence(2, -1), sequence(2, 1)
    for each in (late, sibling, early, prompt):
        waiting.add(each)
    assert list(waiting) == [prompt, early, sibling, late]
    assert waiting.first() is prompt


def test_a_paused_sequence_is_passed_over_and_keeps_its_place() -> None:  # FAN-29
    waiting = Waiting()
    first, second = sequence(0), sequence(1)
    waiting.add(first)
    waiting.add(second)
    first.paused = True
    assert waiting.first() is second
    first.paused = False
    assert waiting.first() is first


def test_nothing_is_first_in_an_empty_or_paused_queue() -> None:
    waiting = Waiting()
    assert waiting.first() is None
    paused = sequence(0)
    paused.paused = True
    waiting.add(paused)
    assert waiting.first() is None


def test_only_what_waits_can_be_removed() -> None:
    waiting = Waiting()
    one, two = sequence(0), sequence(1)
    waiting.add(one)
    for stranger in (two, sequence(0)):
        with pytest.raises(InvariantError, match="does not wait"):
            waiting.remove(stranger)
    waiting.remove(one)
    assert len(waiting) == 0
