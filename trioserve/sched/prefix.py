"""The prefix cache: which pages hold the keys and values of which tokens.

Owns: the tree, what was found in it, and which cached page is evicted. Must not know: sequences, or why tokens are
looked up.

A node is one whole page of tokens; the path from the root to it is everything before. A page's content depends
on all tokens up to its end, so a path names a content, and two pages with the same path are interchangeable.

Whoever uses a node's page uses those of all its ancestors: ``match`` and ``insert`` return whole paths, and
``flush`` leaves nothing behind that could be continued. Hence a page that nobody uses continues into pages that
nobody uses, and the least recently used cached page is always a leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from trioserve.errors import InvariantError
from trioserve.sched.pages import PagePool


@attrs.define(eq=False, repr=False)
class _Node:
    page: int
    key: bytes
    """Its tokens, as int32 in native order: a hash of bytes costs less than one of a tuple. Of a first page the salt
    stands before them, so that a path with another salt is another path."""
    parent: _Node | None
    children: dict[bytes, _Node] = attrs.field(factory=dict)


NextPage = tuple[int, bytes]
"""(the last page found, -1 if none was; the tokens of the page after it)"""


@attrs.define(eq=False, repr=False)
class Match:
    """The longest known beginning of some tokens, and where to look on when the tree has changed.

    Never all of the tokens: at least the last has to be computed, since nothing can be drawn without its logits.
    """

    tokens: array[int]
    salt: bytes
    most_pages: int
    """Pages that can ever be found."""
    pages: list[int]
    """Those that were. They have to be shared before anything else happens to the pool."""
    next_page: NextPage | None
    """The first whole page of the tokens that was not found; None if less than a page is left.

    For two matches with the same one, both up to date, whoever computes the page computes it for the other as well.
    """
    _node: _Node
    _version: int

    def __repr__(self) -> str:
        return f"<Match {len(self.pages)} pages of {len(self.tokens)} tokens>"

    @property
    def share(self) -> float:
        """How much of the tokens was found, 0 to 1; or rather, pages for each token: to compare by."""
        return len(self.pages) / len(self.tokens)


class PrefixTree:
    """Finds the pages of tokens that were computed before.

    It keeps pages of ``pool`` but is not a user of them (see pages.py).
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._root = _Node(-1, b"", None)
        self._nodes: dict[int, _Node] = {}
        self._version = 0  # counts the changes that could change a match

    def __len__(self) -> int:
        """Pages kept."""
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<PrefixTree {len(self)} pages>"

    def match(self, tokens: array[int], salt: bytes = b"", *, whole: bool = False) -> Match:
        """The longest beginning of ``tokens`` that is known with that ``salt``; P >= 1 tokens, not to be changed.

        With ``whole`` nothing is ever found, since all of the tokens are to be computed.
        """
        most_pages = 0 if whole else (len(tokens) - 1) // self._page_size
        match = Match(tokens, salt, most_pages, [], None, self._root, -1)
        self.update(match)
        return match

    def update(self, match: Match) -> None:
        """Bring a match up to date.

        That costs nothing if the tree has not changed, and else one lookup, or one for each page that came or went.
        """
        if match._version == self._version:
            return
        size, tokens, pages, node = self._page_size, match.tokens, match.pages, match._node
        while node.parent is not None and self._nodes.get(node.page) is not node:
            pages.pop()
            node = node.parent
        match.next_page = None
        for start in range(len(pages) * size, len(tokens) - size + 1, size):
            key = tokens[start : start + size].tobytes()
            if start == 0:
                key = match.salt + key
            child = node.children.get(key)
            if child is None or len(pages) == match.most_pages:
                match.next_page = (node.page, key)
                break
            pages.append(child.page)
            node = child
        match._node, match._version = node, self._version

    def insert(self, tokens: array[int], pages: Sequence[int], salt: bytes = b"") -> list[int]:
        """Keep the pages that hold the first ``len(pages)`` whole pages of ``tokens``, and are used by the caller.

        Returns the pages of the tree for these tokens. Where another page is kept for the same tokens already,
        the caller becomes a user of that one and no longer of its own, a duplicate, which is freed if nobody else
        uses it.
        """
        size = self._page_size
        kept: list[int] = []
        node = self._root
        for index, page in enumerate(pages):
            key = tokens[index * size : (index + 1) * size].tobytes()
            if index == 0:
                key = salt + key
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = self._nodes[page] = _Node(page, key, node)
                self._pool.keep(page)
                self._version += 1
            elif child.page != page:
                self._pool.share((child.page,))
                self._pool.release((page,))
            kept.append(child.page)
            node = child
        return kept

    def evict(self, count: int) -> list[int]:
        """Free the ``count`` least recently used cached pages, or as many as there are; returns them."""
        evicted: list[int] = []
        while len(evicted) < count and (page := self._pool.oldest_cached()) is not None:
            node = self._nodes.pop(page)
            if node.children or node.parent is None:
                raise InvariantError(f"page {page} was to be evicted before those that continue it")
            del node.parent.children[node.key]
            self._pool.drop(page)
            self._version += 1
            evicted.append(page)
        return evicted

    def flush(self) -> None:
        """Forget everything. Pages in use stay with their users, which must not insert them any more."""
        for page in self._nodes:
            self._pool.drop(page)
        self._nodes.clear()
        self._root.children.clear()
        self._version += 1

    def check(self) -> None:
        """Raise InvariantError if the tree contradicts itself or the pool."""
        found: dict[int, _Node] = {}
        unvisited = [self._root]
        while unvisited:
            node = unvisited.pop()
            for key, child in node.children.items():
                if child.parent is not node or child.key != key or child.page in found:
                    raise InvariantError(f"the node of page {child.page} is in the wrong place")
                found[child.page] = child
                unvisited.append(child)
        kept = {page for page in range(self._pool.size) if self._pool.is_kept(page)}
        if found != self._nodes or set(found) != kept:
            raise InvariantError("the pages of the tree are not those that the pool keeps")
        gone: set[int] = set()
        for page in self._pool.cached_pages():
            gone.add(page)
            if any(child.page not in gone for child in found[page].children.values()):
                raise InvariantError(f"page {page} would be evicted before one that continues it")
