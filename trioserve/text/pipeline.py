"""From the token ids of one choice to its text.

Owns: ChoiceText. Must not know: events, usage, sibling choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from trioserve.abc import Tokenizer
from trioserve.text.detokenizer import Detokenizer
from trioserve.text.stop import StopMatcher


@attrs.frozen
class Piece:
    """What came of some more tokens of a choice."""

    text: str
    """May be empty: the tokens end inside a character or inside what may be a stop string."""
    token_ids: tuple[int, ...]
    """The tokens taken. With ``stop``, the last of them is the one that completed the stop string."""
    stop: str | None = None
    """The stop string that ended the choice."""


class ChoiceText:
    """The text of one choice: its detokeniser and its stop matcher (FAN-9).

    However the tokens are divided over calls of ``feed``, the text and what ends it are the same (FAN-22). It is what
    the model wrote after the prompt, to the letter: a space or line feed at its start stays.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        """``stop``: the stop strings, none of them empty."""
        self._token_bytes = tokenizer.token_bytes
        self._detokenizer = Detokenizer()
        self._stops = StopMatcher(stop) if stop else None
        self._ended = False

    def __repr__(self) -> str:
        return f"<ChoiceText: {self._detokenizer!r}, {self._stops!r}{', ended' if self._ended else ''}>"

    def feed(self, ids: Sequence[int]) -> Piece:
        """The next tokens. Those after the one that completes a stop string are not taken.

        Raises:
            IndexError: an id is not in the vocabulary.
        """
        assert not self._ended, "tokens after the end of a choice"
        if self._stops is None:
            return Piece(self._detokenizer.feed(b"".join(map(self._token_bytes, ids))), tuple(ids))
        parts = []
        for taken, token_id in enumerate(ids, start=1):
            step = self._stops.feed(self._detokenizer.feed(self._token_bytes(token_id)))
            parts.append(step.text)
            if step.stop is not None:
                self._ended = True
                return Piece("".join(parts), tuple(ids[:taken]), step.stop)
        return Piece("".join(parts), tuple(ids))

    def end(self) -> Piece:
        """No token follows: what was held back."""
        assert not self._ended, "a choice ends once"
        self._ended = True
        tail = self._detokenizer.flush()
        if self._stops is None:
            return Piece(tail, ())
        step = self._stops.feed(tail)
        if step.stop is not None:
            return Piece(step.text, (), step.stop)
        return Piece(step.text + self._stops.flush(), ())
