"""Finding pages by the tokens in them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from trioserve.errors import InvariantError
from trioserve.sched.pages import PagePool
from trioserve.sched.prefix import PrefixTree

SIZE = 2


@pytest.fixture
def pool() -> PagePool:
    return PagePool(8)


@pytest.fixture
def tree(pool: PagePool) -> PrefixTree:
    return PrefixTree(pool, SIZE)


def ids(tokens: Sequence[int]) -> array[int]:
    return array("i", tokens)


def computed(pool: PagePool, tree: PrefixTree, tokens: Sequence[int]) -> list[int]:
    """Compute tokens as a sequence would and leave its whole pages cached."""
    pages = pool.alloc(len(tokens) // SIZE)
    assert pages is not None
    pages = tree.insert(ids(tokens), pages)
    pool.release(pages)
    tree.check()
    return pages


def test_an_empty_tree_knows_nothing(tree: PrefixTree) -> None:
    assert tree.match(ids([1, 2, 3])).pages == []


def test_the_longest_known_beginning_is_found_in_whole_pages(pool: PagePool, tree: PrefixTree) -> None:
    pages = computed(pool, tree, [1, 2, 3, 4, 5, 6])
    assert tree.match(ids([1, 2, 3, 4, 5, 6, 7])).pages == pages
    assert tree.match(ids([1, 2, 3, 4, 9, 9, 9])).pages == pages[:2]
    assert tree.match(ids([1, 2, 3, 9, 9])).pages == pages[:1]
    assert tree.match(ids([1, 9, 3, 4, 5])).pages == []


def test_the_last_token_is_never_found(pool: PagePool, tree: PrefixTree) -> None:
    pages = computed(pool, tree, [1, 2, 3, 4])
    assert tree.match(ids([1, 2, 3, 4])).pages == pages[:1]
    assert tree.match(ids([1, 2, 3, 4, 5])).pages == pages


@pytest.mark.parametrize("prompt", [[1], [1, 2]])
def test_prompts_within_a_page_find_nothing(pool: PagePool, tree: PrefixTree, prompt: list[int]) -> None:
    # case radix-accounting: prompts shorter than a page
    computed(pool, tree, [1, 2, 3, 4])
    assert tree.match(ids(prompt)).pages == []
    assert computed(pool, tree, [7]) == []


def test_the_same_page_of_tokens_after_other_tokens_is_other_content(pool: PagePool, tree: PrefixTree) -> None:
    computed(pool, tree, [1, 2, 3, 4])
    assert tree.match(ids([3, 4, 5])).pages == []
    assert tree.match(ids([3, 4, 3, 4, 5])).pages == []


def test_two_that_computed_the_same_end_up_with_the_same_pages(pool: PagePool, tree: PrefixTree) -> None:
    # case radix-accounting: the duplicates are freed
    mine, others = pool.alloc(2), pool.alloc(2)
    assert mine is not None
    assert others is not None
    assert tree.insert(ids([1, 2, 3, 4]), mine) == mine
    kept = tree.insert(ids([1, 2, 5, 6]), others)
    assert kept == [mine[0], others[1]]
    assert pool.free == 8 - 3
    pool.check([mine, kept])
    tree.check()


def test_the_least_recently_used_ends_are_evicted_first(pool: PagePool, tree: PrefixTree) -> None:
    first = computed(pool, tree, [1, 2, 3, 4])
    second = computed(pool, tree, [1, 2, 5, 6])
    assert tree.evict(1) == [first[1]]
    assert tree.match(ids([1, 2, 3, 4, 0])).pages == first[:1]
    assert tree.match(ids([1, 2, 5, 6, 0])).pages == second
    assert tree.evict(5) == [second[1], second[0]]
    assert pool.free == 8
    assert len(tree) == 0


def test_what_is_in_use_is_not_evicted(pool: PagePool, tree: PrefixTree) -> None:
    pages = computed(pool, tree, [1, 2, 3, 4, 5, 6])
    pool.share(pages[:2])
    assert tree.evict(3) == [pages[2]]
    assert tree.evict(1) == []
    assert tree.match(ids([1, 2, 3, 4, 5])).pages == pages[:2]


def test_evicting_nothing_is_possible(pool: PagePool, tree: PrefixTree) -> None:
    computed(pool, tree, [1, 2])
    assert tree.evict(0) == tree.evict(-3) == []


def test_a_flush_forgets_everything_and_takes_no_page_in_use(pool: PagePool, tree: PrefixTree) -> None:
    # case radix-accounting: flush while requests run
    pages = computed(pool, tree, [1, 2, 3, 4])
    pool.share(pages[:1])
    tree.flush()
    tree.check()
    assert tree.match(ids([1, 2, 3, 4, 5])).pages == []
    pool.check([pages[:1]])
    assert pool.free == 7
    pool.release(pages[:1])
    assert pool.free == 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: tree._nodes.popitem(),
        lambda tree: tree._root.children.clear(),
        lambda tree: setattr(next(iter(tree._root.children.values())), "parent", None),
        lambda tree: tree._pool.share(list(tree._nodes)[:1]) or tree._pool.drop(next(iter(tree._nodes))),
        lambda tree: tree._pool._cached.move_to_end(next(iter(tree._nodes)), last=False),
    ],
)
def test_check_finds_damage(pool: PagePool, tree: PrefixTree, damage: Callable[[PrefixTree], object]) -> None:
    computed(pool, tree, [1, 2, 3, 4])
    damage(tree)
    with pytest.raises(InvariantError):
        tree.check()


def test_evicting_the_beginning_before_its_end_is_a_bug(pool: PagePool, tree: PrefixTree) -> None:
    pages = computed(pool, tree, [1, 2, 3, 4])
    pool.share(pages[1:])
    with pytest.raises(InvariantError, match="before those that continue it"):
        tree.evict(1)


def test_a_match_follows_the_tree(pool: PagePool, tree: PrefixTree) -> None:
    match = tree.match(ids([1, 2, 3, 4, 5, 6, 7]))
    assert (match.pages, match.share) == ([], 0.0)
    first = computed(pool, tree, [1, 2, 3, 4])
    tree.update(match)
    assert (match.pages, match.share) == (first, 2 / 7)
    tree.evict(1)
    tree.update(match)
    assert match.pages == first[:1]
    again = computed(pool, tree, [1, 2, 3, 4, 5, 6])
    tree.update(match)
    assert match.pages == again
    tree.flush()
    tree.update(match)
    assert match.pages == []


def test_two_that_need_the_same_page_next_know_it(pool: PagePool, tree: PrefixTree) -> None:
    computed(pool, tree, [1, 2])
    one, other, stranger, short = (tree.match(ids([1, 2, *more])) for more in ([3, 4, 5], [3, 4], [3, 5, 5], [3]))
    assert one.next_page == other.next_page is not None
    assert stranger.next_page not in (None, one.next_page)
    assert short.next_page is None
    # the last of two whole pages is computed in any case
    assert (len(one.pages) < one.most_pages, len(other.pages) < other.most_pages) == (True, False)
