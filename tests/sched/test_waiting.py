"""The order of the queue."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Tokens

import pytest

from trioserve.errors import InvariantError
from trioserve.sched.pages import PagePool
from trioserve.sched.prefix import PrefixTree
from trioserve.sched.sequence import NEW, LiveGroup, Sequence
from trioserve.sched.waiting import WINDOW, Waiting

SIZE = 2
LIMIT_S = 5.0


@pytest.fixture
def tree() -> PrefixTree:
    return PrefixTree(PagePool(64), SIZE)


@pytest.fixture
def waiting(tree: PrefixTree) -> Waiting:
    return Waiting(tree, LIMIT_S)


@pytest.fixture
def new(tree: PrefixTree, waiting: Waiting) -> Callable[..., Sequence]:
    """Adds the prompt of a new group."""
    numbers = iter(range(1000))

    def add(tokens: Tokens[int] = (1,)) -> Sequence:
        prompt = array("i", tokens)
        prompt_sequence = Sequence(LiveGroup(next(numbers), prompt, 0, tree.match(prompt), 0.0), NEW, array("i"), [])
        waiting.add(prompt_sequence)
        return prompt_sequence

    return add


@pytest.fixture
def admitted(tree: PrefixTree) -> Callable[[int, int], Sequence]:
    """Makes a sequence of a group that was admitted."""

    def make(number: int, index: int = 0) -> Sequence:
        prompt = array("i", [1])
        return Sequence(LiveGroup(number, prompt, 0, tree.match(prompt), 0.0), (number, index), array("i"), [])

    return make


def computed(tree: PrefixTree, tokens: Tokens[int]) -> None:
    """Leave the whole pages of tokens cached."""
    pages = tree._pool.alloc(len(tokens) // SIZE)
    assert pages is not None
    tree._pool.release(tree.insert(array("i", tokens), pages))


def start(waiting: Waiting, prompt: Sequence, now: float) -> None:
    waiting.remove(prompt)
    waiting.admit(prompt, now)
    waiting.check()


def test_the_oldest_of_the_admitted_comes_first_however_late_it_was_added(waiting: Waiting, admitted: Callable) -> None:
    late, early, prompt, sibling = admitted(5), admitted(2), admitted(2, -1), admitted(2, 1)
    for each in (late, sibling, early, prompt):
        waiting.add(each)
    assert list(waiting) == [prompt, early, sibling, late]
    assert waiting.first() is prompt
    waiting.check()


def test_a_paused_sequence_is_passed_over_and_keeps_its_place(
    waiting: Waiting, admitted: Callable, new: Callable
) -> None:  # FAN-29
    first, second = admitted(0), admitted(1)
    waiting.add(first)
    waiting.add(second)
    third, fourth = new(), new()
    first.paused = third.paused = True
    assert waiting.first() is second
    assert waiting.candidates(0.0) == [fourth]
    first.paused = third.paused = False
    assert waiting.first() is first
    assert waiting.candidates(0.0) == [third, fourth]


def test_nothing_is_first_in_an_empty_or_paused_queue(waiting: Waiting, admitted: Callable, new: Callable) -> None:
    assert waiting.first() is None
    assert waiting.candidates(0.0) == []
    paused = admitted(0)
    waiting.add(paused)
    paused.paused = new().paused = True
    assert waiting.first() is None


def test_only_what_waits_can_be_removed(waiting: Waiting, admitted: Callable, new: Callable) -> None:
    one, two, prompt = admitted(0), admitted(1), new()
    waiting.add(one)
    for stranger in (two, admitted(0)):
        with pytest.raises(InvariantError, match="does not wait"):
            waiting.remove(stranger)
    waiting.remove(one)
    waiting.remove(prompt)
    with pytest.raises(InvariantError, match="does not wait"):
        waiting.remove(prompt)
    assert len(waiting) == 0


def test_new_groups_come_in_the_order_of_what_is_cached_of_them_for_their_size(
    tree: PrefixTree, waiting: Waiting, new: Callable
) -> None:
    cold, long, half, other_cold, most = (
        new([9] * 3),
        new([1, 1, 1, 1] + [9] * 20),
        new([1, 1, 9, 9]),
        new([8] * 3),
        new([1, 1, 1, 1, 9]),
    )
    assert waiting.candidates(0.0) == [cold, long, half, other_cold, most]
    computed(tree, [1] * 6)
    assert waiting.candidates(0.0) == [most, half, long, cold, other_cold]
    tree.flush()
    assert waiting.candidates(0.0) == [cold, long, half, other_cold, most]


def test_an_admitted_group_is_the_youngest_of_the_admitted_however_old_it_is(waiting: Waiting, new: Callable) -> None:
    one, two, three = new(), new(), new()
    for prompt in (two, one, three):
        start(waiting, prompt, 0.0)
    assert two.order < one.order < three.order < NEW


def test_what_is_overtaken_for_too_long_comes_first_in_the_order_it_came(
    tree: PrefixTree, waiting: Waiting, new: Callable
) -> None:
    computed(tree, [1] * 6)
    first, second, hot = new([9] * 3), new([8] * 3), new([1] * 5)
    start(waiting, hot, 10.0)
    third, hot = new([7] * 3), new([1] * 5)
    assert waiting.candidates(14.5) == [hot, first, second, third]
    assert not waiting.is_aged(first, 14.5)
    # the second time does not count
    start(waiting, hot, 14.5)
    hot = new([1] * 5)
    assert waiting.candidates(15.0) == [first, second, hot, third]
    assert waiting.is_aged(first, 15.0)
    assert waiting.is_aged(second, 15.0)
    assert not waiting.is_aged(third, 15.0)
    assert waiting.candidates(19.5) == [first, second, third, hot]


def test_without_a_time_to_be_overtaken_it_is_first_in_first_out(tree: PrefixTree, new: Callable) -> None:
    computed(tree, [1] * 6)
    strict = Waiting(tree, 0.0)
    prompts = [new([9] * 3), new([1] * 5)]
    for prompt in reversed(prompts):
        strict.add(prompt)
    assert strict.candidates(0.0) == prompts


def test_only_the_oldest_of_a_long_queue_are_compared(tree: PrefixTree, waiting: Waiting, new: Callable) -> None:
    computed(tree, [1] * 6)
    cold = [new([9] * 3) for _ in range(WINDOW)]
    hot = new([1] * 5)
    assert waiting.candidates(0.0) == cold
    start(waiting, cold[0], 0.0)
    assert waiting.candidates(0.0) == [hot, *cold[1:]]


def lines_swapped(waiting: Waiting) -> None:
    waiting._admitted, waiting._new = waiting._new, waiting._admitted


@pytest.mark.parametrize(
    "damage",
    [
        lambda waiting: waiting._admitted.reverse(),
        lambda waiting: waiting._new.reverse(),
        lines_swapped,
        lambda waiting: setattr(waiting._new[1].group, "overtaken", 3.0),
        lambda waiting: [setattr(waiting._new[i].group, "overtaken", 3.0 - i) for i in range(2)],
    ],
)
def test_check_finds_damage(
    waiting: Waiting, admitted: Callable, new: Callable, damage: Callable[[Waiting], object]
) -> None:
    for number in range(2):
        waiting.add(admitted(number))
        new()
    waiting.check()
    damage(waiting)
    with pytest.raises(InvariantError):
        waiting.check()
