"""A text that comes in parts, for code that reads it as if it were there.

Owns: Reader. Must not know: what is read.

What reads is a generator that yields nothing, each time it needs more text than there is. So it sees the same
characters, one after another, however they were cut; and it is written like a parser of a whole text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Something to do, with a result, that yields when it has to wait for more text."""

_SPACE: Final = re.compile(r"\s*")


class Reader:
    """The text of one choice and how far it was read.

    What was read is forgotten, unless it is recorded. Only ``peek`` and ``accept`` wait with text unread; the first has
    none, and the second less than its mark, so what comes in is looked at a bounded number of times.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None
        self._record_from = 0

    def __repr__(self) -> str:
        return f"<Reader: {len(self._text) - self._at} characters unread{', ended' if self._ended else ''}>"

    def feed(self, text: str) -> None:
        """More text."""
        if self._record is not None:
            self._record.append(self._text[self._record_from : self._at])
            self._record_from = 0
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text."""
        self._ended = True

    def peek(self) -> Steps[str]:
        """The next character, which stays; "" at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def accept(self, mark: str) -> Steps[bool]:
        """Whether ``mark`` is next; it is taken if it is, and nothing if it isn't."""
        while True:
            rest = self._text[self._at : self._at + len(mark)]
            if rest == mark:
                self._at += len(mark)
                return True
            if self._ended or not mark.startswith(rest):
                return False
            yield

    def take(self) -> str:
        """The next character, which must be there: after ``peek``."""
        self._at += 1
        return self._text[self._at - 1]

    def take_here(self, pattern: re.Pattern[str]) -> str:
        """What ``pattern``, a repeated set of characters, matches of the text that is there; does not wait for more."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def take_all(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The same of the whole text."""
        parts = []
        while True:
            parts.append(self.take_here(pattern))
            if self._at < len(self._text) or self._ended:
                return "".join(parts)
            yield

    def skip_space(self) -> Steps[str]:
        """The next character that is no white space, which stays; "" at the end."""
        yield from self.take_all(_SPACE)
        return (yield from self.peek())

    def record(self) -> None:
        """Remember what is read from here on."""
        self._record = []
        self._record_from = self._at

    def recorded(self) -> str:
        """What was read since ``record``; it is forgotten now."""
        assert self._record is not None
        text = "".join([*self._record, self._text[self._record_from : self._at]])
        self._record = None
        return text
