"""Which log-probabilities belong to the text that has been shown.

Owns: ScoreQueue, the log-probabilities of one choice whose text is held back. Must not know: why it is.
"""

from __future__ import annotations

from collections import deque

import attrs

from trioserve.events import TokenLogprob


@attrs.define(eq=False, repr=False)
class ScoreQueue:
    """Tokens in order, each waiting until the text is shown up to where its own text ends."""

    _waiting: deque[tuple[int, TokenLogprob]] = attrs.field(factory=deque, init=False)
    """Where in the decoded text a token's own ends, in characters."""
    _decoded: int = attrs.field(default=0, init=False)
    _shown: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<ScoreQueue: {len(self._waiting)} tokens wait>"

    def add(self, score: TokenLogprob, characters: int, *, is_inside_character: bool) -> None:
        """The next token.

        Args:
            score: of the token.
            characters: what the text grew by with it.
            is_inside_character: it ends with a character's first bytes, and so where that character will.
        """
        self._decoded += characters
        self._waiting.append((self._decoded + is_inside_character, score))

    def show(self, characters: int) -> tuple[TokenLogprob, ...]:
        """So much more text is shown: the tokens that are complete with it."""
        self._shown += characters
        shown: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] <= self._shown:
            shown.append(self._waiting.popleft()[1])
        return tuple(shown)

    def end(self) -> tuple[TokenLogprob, ...]:
        """No more text is shown: all that wait."""
        rest = tuple(score for _, score in self._waiting)
        self._waiting.clear()
        return rest
