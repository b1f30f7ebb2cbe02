"""The pages: who uses each of them.

Owns: the reference counts and the free pages. Must not know: tokens, sequences, or what is in a page.

Every page is in one of three states, and ``free + cached + held`` is always the number of pages:

    free    --alloc-->    held        has users: as many as its count says
    held    --release-->  free        the last user has left
    held    --release-->  cached      ... but the prefix tree keeps the page
    cached  --share-->    held        the content was wanted again
    cached  --drop-->     free        the prefix tree keeps it no longer

The prefix tree is not counted as a user. So "cached" means kept by the tree and used by nobody, which is what
may be taken away when pages are short.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trioserve.errors import InvariantError


class PageCopy(NamedTuple):
    """A page to copy before the target is written to."""

    source: int
    target: int


class PagePool:
    """Page ids 0 to ``page_count`` - 1. All lists of pages are in sequence order."""

    def __init__(self, page_count: int) -> None:
        # taken from the end: neighbours in a sequence are neighbours in memory as far as possible
        self._free = list(range(page_count))[::-1]
        self._users = [0] * page_count
        self._kept = [False] * page_count
        # least recently used first; a page always comes before those that it continues, see release()
        self._cached: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PagePool {self.free} free + {self.cached} cached + {self.held} held>"

    @property
    def size(self) -> int:
        """Pages in all."""
        return len(self._users)

    @property
    def free(self) -> int:
        """Pages that nobody uses or keeps."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that only the prefix tree keeps."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Pages with users."""
        return self.size - len(self._free) - len(self._cached)

    def alloc(self, count: int) -> list[int] | None:
        """``count`` free pages, with the caller as their one user; None, and nothing changed, if fewer are free."""
        left = len(self._free) - count
        if left < 0:
            return None
        pages = self._free[left:][::-1]
        del self._free[left:]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a user to pages that are held or cached."""
        for page in pages:
            if self._users[page] == 0:
                try:
                    del self._cached[page]
                except KeyError:
                    raise InvariantError(f"page {page} is free and can't be shared") from None
            self._users[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Take one user from each page.

        From the last page to the first, so that a cached page is always less recently used than those before it
        in its sequence: what is evicted first is never the beginning of something that is still cached.
        """
        for page in reversed(pages):
            users = self._users[page] - 1
            if users < 0:
                raise InvariantError(f"page {page} was released more often than shared")
            self._users[page] = users
            if users == 0:
                if self._kept[page]:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def own(self, page: int) -> PageCopy | None:
        """Make the page of a user writable for it: copy on write.

        None: nobody else sees the page. Otherwise the user gives it up and has the copy's target instead.

        Raises:
            InvariantError: a copy is needed, and no page is free.
        """
        if self._users[page] == 1 and not self._kept[page]:
            return None
        target = self.alloc(1)
        if target is None:
            raise InvariantError(f"no page is free to copy page {page} to")
        self.release((page,))
        return PageCopy(page, target[0])

    def keep(self, page: int) -> None:
        """A held page stays cached after its last user. For the prefix tree."""
        if self._users[page] == 0 or self._kept[page]:
            raise InvariantError(f"page {page} is not held, or kept already")
        self._kept[page] = True

    def drop(self, page: int) -> None:
        """The opposite of ``keep``: a cached page becomes free, a held one will be. For the prefix tree."""
        if not self._kept[page]:
            raise InvariantError(f"page {page} is not kept")
        self._kept[page] = False
        if self._users[page] == 0:
            del self._cached[page]
            self._free.append(page)

    def is_kept(self, page: int) -> bool:
        """Whether the prefix tree keeps a page, cached or held."""
        return self._kept[page]

    def cached_pages(self) -> list[int]:
        """The cached pages, least recently used first."""
        return list(self._cached)

    def oldest_cached(self) -> int | None:
        """The least recently used cached page; None if there is none."""
        return next(iter(self._cached), None)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Compare the books with ``tables``: the pages of every user.

        Raises:
            InvariantError: they differ, or contradict themselves.
        """
        users = Counter(page for table in tables for page in table)
        for page, count in enumerate(self._users):
            if users[page] != count:
                raise InvariantError(f"page {page} has {users[page]} users and a count of {count}")
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a page is free twice")
        for page, count in enumerate(self._users):
            cached = count == 0 and self._kept[page]
            if (page in self._cached) != cached or (page in free) != (count == 0 and not cached):
                raise InvariantError(f"page {page} is in the wrong state")
