"""PagePool and PrefixTree against models that know neither counts nor trees.

The model of a pool is a list of who holds which pages. The model of the tree is a dictionary from all tokens up
to the end of a page to that page, and a list of what was used last.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import product

import attrs
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from trioserve.sched.pages import PagePool
from trioserve.sched.prefix import Match, PrefixTree

SETTINGS = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None)


@attrs.define(eq=False)
class User:
    tokens: tuple[int, ...]
    """Those in whole pages."""
    pages: list[int]
    flushed: bool = False
    """The tree was flushed since the pages were computed."""


class PoolAndTree(RuleBasedStateMachine):
    """Users find, compute, insert, share and release; the tree evicts and flushes."""

    users = Bundle("users")

    @initialize(size=st.integers(1, 3), count=st.integers(1, 8))
    def start(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.pool = PagePool(count)
        self.tree = PrefixTree(self.pool, size)
        self.live: list[User] = []
        self.matches: list[Match] = []
        self.known: dict[tuple[int, ...], int] = {}
        self.used: list[tuple[int, ...]] = []  # the keys of `known`, least recently used first

    def held(self) -> set[int]:
        return {page for user in self.live for page in user.pages}

    def cached(self) -> list[int]:
        held = self.held()
        return [self.known[key] for key in self.used if self.known[key] not in held]

    def key(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(tokens[: (index + 1) * self.size])

    def touch(self, tokens: Sequence[int], pages: list[int]) -> None:
        keys = [self.key(tokens, index) for index in reversed(range(len(pages)))]
        keys = [key for key, page in zip(keys, reversed(pages), strict=True) if self.known.get(key) == page]
        self.used = [key for key in self.used if key not in keys] + keys

    def expected(self, tokens: Sequence[int]) -> list[int]:
        """The pages that are to be found."""
        pages: list[int] = []
        while (len(pages) + 1) * self.size < len(tokens) and self.key(tokens, len(pages)) in self.known:
            pages.append(self.known[self.key(tokens, len(pages))])
        return pages

    @rule(user=users, more=st.lists(st.integers(0, 1), max_size=3))
    def remember(self, user: User, more: list[int]) -> None:
        self.matches = [*self.matches[-3:], self.tree.match(array("i", [*user.tokens, *more]))]

    @invariant()
    def a_match_can_be_brought_up_to_date(self) -> None:
        for match in self.matches:
            self.tree.update(match)
            assert match.pages == self.expected(match.tokens)
        for one, other in product(self.matches, self.matches):
            end = (len(one.pages) + 1) * self.size
            is_whole = end <= min(len(one.tokens), len(other.tokens))
            is_same = len(one.pages) == len(other.pages) and one.tokens[:end] == other.tokens[:end]
            assert (one.next_page is not None and one.next_page == other.next_page) == (is_whole and is_same)

    @rule(target=users, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def compute(self, tokens: list[int]) -> MultipleResults[User] | User:
        """A sequence takes what is known of its tokens and computes the rest of its whole pages."""
        found = self.tree.match(array("i", tokens)).pages
        assert found == self.expected(tokens)
        self.pool.share(found)
        missing = len(tokens) // self.size - len(found)
        fresh = self.pool.alloc(missing)
        free = self.count - len(self.held() | set(self.known.values()))
        assert (fresh is None) == (missing > free)
        if fresh is None:
            self.pool.release(found)
            self.touch(tokens, found)
            return multiple()
        user = User(tuple(tokens), found + fresh)
        self.live.append(user)
        return user

    @rule(user=users)
    def insert(self, user: User) -> None:
        if user.flushed:
            return
        kept = self.tree.insert(array("i", user.tokens), user.pages)
        for index, page in enumerate(user.pages):
            key = self.key(user.tokens, index)
            if key not in self.known:
                self.known[key] = page
                self.used.append(key)
        assert kept == [self.known[self.key(user.tokens, index)] for index in range(len(user.pages))]
        user.pages = kept

    @rule(target=users, user=users)
    def share(self, user: User) -> User:
        self.pool.share(user.pages)
        self.live.append(User(user.tokens, list(user.pages), user.flushed))
        return self.live[-1]

    @rule(user=consumes(users))
    def release(self, user: User) -> None:
        self.live.remove(user)
        self.pool.release(user.pages)
        self.touch(user.tokens, user.pages)

    @precondition(lambda self: len(self.known) > 1)
    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        expected = self.cached()[:count]
        assert self.tree.evict(count) == expected
        self.used = [key for key in self.used if self.known[key] not in expected]
        self.known = {key: page for key, page in self.known.items() if page not in expected}

    @precondition(lambda self: len(self.known) > 2)
    @rule()
    def flush(self) -> None:
        self.tree.flush()
        self.known.clear()
        self.used.clear()
        for user in self.live:
            user.flushed = True

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check(user.pages for user in self.live)
        self.tree.check()
        assert self.pool.held == len(self.held())
        assert self.pool.cached == len(self.cached())
        assert self.pool.free + self.pool.cached + self.pool.held == self.count
        assert len(self.tree) == len(self.known)


PoolAndTree.TestCase.settings = SETTINGS
TestPoolAndTree = PoolAndTree.TestCase  # case radix-accounting
