"""The memory of sequences: how they get pages, keep them and give them back.

Owns: the pool and the prefix tree, and the pages of sequences. Must not know: order, choices' tokens, steps.

Every method does all of what it says or nothing. Pages are taken when they are needed: a sequence that starts
gets those of the tokens it has, a sequence that grows one more. Nothing is reserved for tokens to come.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from trioserve.sched.pages import PagePool
from trioserve.sched.prefix import NextPage, PrefixTree
from trioserve.sched.sequence import Sequence


class Memory:
    """``page_count`` pages of ``page_size`` tokens."""

    def __init__(self, page_size: int, page_count: int, *, prefix_cache: bool) -> None:
        self.page_size = page_size
        self.pool = PagePool(page_count)
        self.tree = PrefixTree(self.pool, page_size)
        self._prefix_cache = prefix_cache

    def __repr__(self) -> str:
        return f"<Memory {self.pool}, {self.tree}>"

    @property
    def available(self) -> int:
        """Pages to be had without taking any from a sequence: free ones, and cached ones to evict."""
        return self.pool.free + self.pool.cached

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def load(self, sequence: Sequence, spare: int) -> bool:
        """Give a waiting sequence the cached pages of its tokens, and fresh ones for the rest.

        All at once, not chunk by chunk: two prompts that each hold half of the pages would wait for one another.
        False: ``spare`` pages would not stay available.
        """
        match = self.tree.match(sequence.tokens, sequence.group.salt) if sequence.generated else sequence.group.match
        self.tree.update(match)
        cached = match.pages
        missing = self.pages_for(sequence.length) - len(cached)
        if self.available < missing + spare:
            return False  # most often it is as clear as this
        # before anything else, or they might be evicted to make room for the rest; and held, they are not available
        self.pool.share(cached)
        if self.available < missing + spare:
            self.pool.release(cached)
            return False
        sequence.pages = array("i", cached + self._take(missing))
        sequence.computed = len(cached) * self.page_size
        sequence.cacheable = True
        return True

    def fork(self, sequence: Sequence, prompt: Sequence, spare: int, copies: array[int]) -> bool:
        """Let a waiting sequence share the pages of its pinned prompt, and give it a last page to write to (FAN-11).

        That is a copy of the prompt's last page if the prompt fills it only in part; (source, target) is appended
        to ``copies``. The last choice of a prompt takes the page over, and the prompt gives its pages up.
        False: ``spare`` pages would not stay available.
        """
        is_last = len(prompt.choices) == 1
        is_partial = len(prompt.pages) > prompt.group.whole_pages
        if self.available < (0 if is_last and is_partial else 1) + spare:
            return False
        pages = prompt.pages[:]
        self.pool.share(pages)
        if is_last:
            self.pool.release(prompt.pages)
            prompt.pages = array("i")
        if not is_partial:
            pages.extend(self._take(1))
        else:
            if not is_last:
                self._make_free(1)
            copy = self.pool.own(pages[-1])
            if copy is not None:
                pages[-1] = copy.target
                copies.extend(copy)
        sequence.pages = pages
        sequence.computed = len(prompt.group.prompt)
        sequence.cacheable = prompt.cacheable
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make sure that there is a page for the last token. False: it needs one and none is available."""
        if sequence.length <= len(sequence.pages) * self.page_size:
            return True
        if self.available == 0:
            return False
        sequence.pages.extend(self._take(1))
        return True

    def coming(self, sequence: Sequence) -> NextPage | None:
        """The page of its prompt that a sequence in prefill puts in the prefix tree next; None if it won't."""
        if not (self._prefix_cache and sequence.cacheable):
            return None
        match = sequence.group.match
        self.tree.update(match)
        return match.next_page

    def stretch(self, sequence: Sequence, drafted: int, *, take: bool) -> int:
        """Make room after the last token for so many drafted ones, or for as many as there is room for; returns that.

        Without ``take``, only in the pages that it has.
        """
        missing = self.pages_for(sequence.length + drafted) - len(sequence.pages)
        taken = min(missing, self.available) if take else 0
        if taken > 0:
            sequence.pages.extend(self._take(taken))
        return min(drafted, len(sequence.pages) * self.page_size - sequence.length)

    def trim(self, sequence: Sequence) -> None:
        """Take back the pages past the last token, which drafts were written to."""
        needed = self.pages_for(sequence.length)
        self.pool.release(sequence.pages[needed:])
        del sequence.pages[needed:]

    def remember(self, sequence: Sequence) -> None:
        """Put the whole pages that are computed in the prefix tree."""
        if not (self._prefix_cache and sequence.cacheable):
            return
        whole = sequence.computed // self.page_size
        kept = self.tree.insert(sequence.tokens, sequence.pages[:whole], sequence.group.salt)
        sequence.pages[:whole] = array("i", kept)

    def free(self, sequence: Sequence) -> None:
        """Take a sequence's pages back; what they hold stays cached until the room is needed."""
        self.remember(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = array("i")
        sequence.computed = 0

    def flush(self, residents: Iterable[Sequence]) -> None:
        """Empty the prefix cache. ``residents`` keep their pages, but nobody finds them any more."""
        self.tree.flush()
        for sequence in residents:
            sequence.cacheable = False

    def _make_free(self, count: int) -> None:
        self.tree.evict(count - self.pool.free)

    def _take(self, count: int) -> list[int]:
        self._make_free(count)
        pages = self.pool.alloc(count)
        assert pages is not None, "the caller has made sure that the pages are available"
        return pages
