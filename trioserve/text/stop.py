"""Finds stop strings in a text that comes in parts.

Owns: which stop string ends a text, and how much may be shown before that is known.
Must not know: tokens.

The rule, which does not depend on how the text is cut: the stop string that is *complete* first ends the text; of
several that are complete with the same character, the one that starts first. The text is what stands before it. A
rule by where a match starts would have to wait, for as long as a longer stop string that started earlier might still
match.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class StopStep:
    """What came of one more part of a text."""

    text: str
    """What may be shown now: it is in no match, and no match to come begins in it."""
    stop: str | None = None
    """The stop string that ended the text."""


@attrs.define(eq=False)
class _Search:
    """Knuth, Morris and Pratt's search for one stop string, over parts of a text."""

    stop: str
    matched: int = 0
    """Characters: the longest end of the text so far that is a proper start of the stop string."""
    _borders: list[int] = attrs.field(factory=lambda: [0, 0])
    """[k] the longest proper start of stop[:k] that is also its end; known as far as it was needed."""

    def feed(self, text: str, limit: int) -> int | None:
        """Search on in text[:limit]; returns where the first match ends, as an index in ``text``."""
        stop = self.stop
        matched = self.matched
        at = 0
        while at < limit:
            if matched == 0:
                # in C, past all that can't begin a match
                at = text.find(stop[0], at, limit)
                if at < 0:
                    break
            else:
                letter = text[at]
                while matched and stop[matched] != letter:
                    matched = self._border(matched)
                if stop[matched] != letter:
                    at += 1
                    continue
            matched += 1
            at += 1
            if matched == len(stop):
                return at
        self.matched = matched
        return None

    def _border(self, length: int) -> int:
        borders = self._borders
        while len(borders) <= length:
            letter = self.stop[len(borders) - 1]
            border = borders[-1]
            while border and self.stop[border] != letter:
                border = borders[border]
            borders.append(border + 1 if self.stop[border] == letter else 0)
        return borders[length]


class StopMatcher:
    """Looks for stop strings in the text of one choice (FAN-9); all of them not empty.

    Time is proportional to the characters fed times the stop strings, whatever the text.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._searches = [_Search(stop) for stop in stops]
        self._held = ""
        """The end of the text so far that may be the start of a stop string."""
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"{len(self._held)} characters held"
        return f"<StopMatcher: {len(self._searches)} stop strings, {state}>"

    def feed(self, text: str) -> StopStep:
        """One more part of the text; none may follow a match."""
        assert not self._stopped, "text after a stop string"
        if not self._searches:
            return StopStep(text)
        end = len(text)
        found: str | None = None
        for search in self._searches:
            match_end = search.feed(text, end)
            # a later search looks no further than this end, so a match of its own ends there or earlier
            if match_end is not None and (found is None or match_end < end or len(search.stop) > len(found)):
                end, found = match_end, search.stop
        buffer = self._held + text
        if found is not None:
            self._stopped = True
            self._held = ""
            return StopStep(buffer[: len(buffer) - len(text) + end - len(found)], found)
        held = max(search.matched for search in self._searches)
        self._held = buffer[len(buffer) - held :]
        return StopStep(buffer[: len(buffer) - held])

    def flush(self) -> str:
        """The end of the text: what was held back."""
        held, self._held = self._held, ""
        return held
