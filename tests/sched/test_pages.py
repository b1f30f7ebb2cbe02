"""Reference counts of pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trioserve.errors import InvariantError
from trioserve.sched.pages import PageCopy, PagePool


def held(pool: PagePool, count: int) -> list[int]:
    pages = pool.alloc(count)
    assert pages is not None
    return pages


def counts(pool: PagePool) -> tuple[int, int, int]:
    return pool.free, pool.cached, pool.held


def test_alloc_gives_all_or_nothing() -> None:
    pool = PagePool(3)
    assert len(set(held(pool, 2))) == 2
    assert pool.alloc(2) is None
    assert counts(pool) == (1, 0, 2)
    assert pool.alloc(0) == []
    assert len(held(pool, 1)) == 1
    assert counts(pool) == (0, 0, 3)


def test_a_page_is_free_when_its_last_user_has_left() -> None:
    pool = PagePool(1)
    pages = held(pool, 1)
    pool.share(pages)
    pool.release(pages)
    assert pool.alloc(1) is None
    pool.release(pages)
    assert pool.alloc(1) == pages


def test_a_kept_page_outlives_its_users() -> None:
    pool = PagePool(1)
    pages = held(pool, 1)
    pool.keep(pages[0])
    pool.release(pages)
    assert counts(pool) == (0, 1, 0)
    pool.share(pages)
    assert counts(pool) == (0, 0, 1)
    pool.release(pages)
    pool.drop(pages[0])
    assert counts(pool) == (1, 0, 0)


def test_a_page_dropped_in_use_is_free_after_its_users() -> None:
    pool = PagePool(1)
    pages = held(pool, 1)
    pool.keep(pages[0])
    pool.drop(pages[0])
    assert counts(pool) == (0, 0, 1)
    pool.release(pages)
    assert counts(pool) == (1, 0, 0)


def test_the_ends_of_sequences_are_less_recently_used_than_their_beginnings() -> None:
    pool = PagePool(4)
    first, second = held(pool, 2), held(pool, 2)
    for page in (*first, *second):
        pool.keep(page)
    pool.release(second)
    pool.release(first)
    assert pool.cached_pages() == [second[1], second[0], first[1], first[0]]
    pool.share(second)
    pool.release(second)
    assert pool.oldest_cached() == first[1]


def test_a_shared_page_is_copied_before_it_is_written_and_the_last_user_needs_no_copy() -> None:  # FAN-11
    pool = PagePool(3)
    (page,) = held(pool, 1)
    pool.share([page])
    copy = pool.own(page)
    assert copy is not None
    assert copy.source == page
    assert copy.target != page
    assert pool.own(page) is None
    assert pool.own(copy.target) is None
    pool.check([[page], [copy.target]])


def test_a_page_that_the_prefix_tree_keeps_is_copied_even_for_its_only_user() -> None:
    pool = PagePool(2)
    (page,) = held(pool, 1)
    pool.keep(page)
    copy = pool.own(page)
    assert isinstance(copy, PageCopy)
    assert pool.cached_pages() == [page]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, page: pool.release([page, page]),
        lambda pool, page: pool.share([page + 1]),
        lambda pool, page: pool.keep(page + 1),
        lambda pool, page: (pool.keep(page), pool.keep(page)),
        lambda pool, page: pool.drop(page),
        lambda pool, page: (pool.share([page]), pool.alloc(1), pool.own(page)),
    ],
)
def test_misuse_is_noticed(misuse: Callable[[PagePool, int], object]) -> None:
    pool = PagePool(2)
    (page,) = held(pool, 1)
    with pytest.raises(InvariantError):
        misuse(pool, page)


def test_check_compares_counts_with_users() -> None:
    pool = PagePool(2)
    pages = held(pool, 2)
    pool.check([pages])
    with pytest.raises(InvariantError, match="has 2 users and a count of 1"):
        pool.check([pages, pages[:1]])
    with pytest.raises(InvariantError, match="has 0 users and a count of 1"):
        pool.check([pages[:1]])


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.append(2),
        lambda pool: pool._free.pop(),
        lambda pool: pool._cached.clear(),
        lambda pool: pool._cached.update({0: None}),
        lambda pool: pool._kept.__setitem__(2, True),
    ],
)
def test_check_finds_pages_in_the_wrong_state(damage: Callable[[PagePool], object]) -> None:
    pool = PagePool(3)
    pages = held(pool, 2)
    pool.keep(pages[1])
    pool.release(pages[1:])
    pool.check([pages[:1]])
    assert pages == [0, 1]
    damage(pool)
    with pytest.raises(InvariantError):
        pool.check([pages[:1]])
