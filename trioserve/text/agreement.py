"""Whether finished choices agree on an answer (FAN-31).

Owns: finding the answer in a text, and counting. Must not know: what an agreement is for.
RE2 takes time linear in the text whatever the pattern, so a pattern from a stranger can't stop the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, cast

import re2

from trioserve.errors import ParamError

MAX_PATTERN_LENGTH = 1000


class _Match(Protocol):
    def group(self, number: int) -> str | None: ...


class _Pattern(Protocol):
    """What is used of a compiled pattern; re2 has no types."""

    groups: int

    def finditer(self, text: str) -> Iterable[_Match]: ...


class Agreement:
    """Counts the answers of choices; true once ``wanted`` of them are the same."""

    def __init__(self, pattern: str, wanted: int) -> None:
        """
        Raises:
            ParamError: the pattern is too long, or no regular expression in RE2's syntax.
        """
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise ParamError(
                f"stop_when.pattern has at most {MAX_PATTERN_LENGTH} characters, got {len(pattern)}.",
                "stop_when.pattern",
            )
        options = re2.Options()
        options.log_errors = False
        try:
            self._pattern = cast(_Pattern, re2.compile(pattern, options))
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
            raise ParamError(f"stop_when.pattern is not valid: {reason}.", "stop_when.pattern") from None
        self._wanted = wanted
        self._votes: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Agreement of {self._wanted}: {dict(self._votes)}>"

    def answer(self, text: str) -> str | None:
        """What the first group of the pattern, or all of it, found in its last match; None if it finds nothing."""
        last: str | None = None
        for match in self._pattern.finditer(text):
            last = match.group(1 if self._pattern.groups else 0)
        return last

    def vote(self, text: str, copies: int = 1) -> bool:
        """Count the answer of a finished choice, or of several with the same text. Whether enough agree now."""
        answer = self.answer(text)
        if answer is None:
            return False
        self._votes[answer] += copies
        return self._votes[answer] >= self._wanted
