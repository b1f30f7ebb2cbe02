"""From the token ids of one choice to its text.

Owns: ChoiceText. Must not know: events, usage, sibling choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs

from trioserve.abc import Tokenizer
from trioserve.events import TokenLogprob
from trioserve.text.alignment import ScoreQueue
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
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens whose text is complete with this one, if they were given."""


class ChoiceText:
    """The text of one choice: its detokeniser and its stop matcher (FAN-9).

    However the tokens are divided over calls of ``feed``, the text and what ends it are the same (FAN-22). It is what
    the model wrote after the prompt, to the letter: a space or line feed at its start stays.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special: bool = True,
        spelled: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            tokenizer: that of the model.
            stop: the stop strings, none of them empty.
            min_tokens: no stop string begins in the text of so many tokens at the start.
            include_stop: the stop string that ends the text is its end.
            skip_special: special tokens have no text.
            spelled: special tokens that have one all the same, and its bytes.
        """
        self._bytes: Callable[[int], bytes] = (
            tokenizer.token_bytes if skip_special else partial(tokenizer.token_bytes, skip_special=False)
        )
        if spelled and skip_special:
            self._bytes = lambda token_id: spelled.get(token_id) or tokenizer.token_bytes(token_id)
        self._detokenizer = Detokenizer()
        self._stops = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._tokens = 0
        self._scores = ScoreQueue()
        self._ended = False

    def __repr__(self) -> str:
        return f"<ChoiceText: {self._detokenizer!r}, {self._stops!r}{', ended' if self._ended else ''}>"

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Piece:
        """The next tokens. Those after the one that completes a stop string are not taken.

        Args:
            ids: token ids.
            logprobs: of each of them; or none, here and in every other call.

        Raises:
            IndexError: an id is not in the vocabulary.
        """
        assert not self._ended, "tokens after the end of a choice"
        if self._stops is None and not logprobs:
            return Piece(self._detokenizer.feed(b"".join(map(self._bytes, ids))), tuple(ids))
        assert not logprobs or len(logprobs) == len(ids)
        parts: list[str] = []
        for taken, token_id in enumerate(ids):
            text = self._detokenizer.feed(self._bytes(token_id))
            if logprobs:
                self._scores.add(logprobs[taken], len(text), is_inside_character=self._detokenizer.is_inside_character)
            self._tokens += 1
            if self._stops is None or self._tokens <= self._min_tokens:
                parts.append(text)
                continue
            step = self._stops.feed(text)
            parts.append(step.text)
            if step.stop is not None:
                self._ended = True
                return Piece(
                    self._stopped("".join(parts), step.stop), tuple(ids[: taken + 1]), step.stop, self._scores.end()
                )
        shown = "".join(parts)
        return Piece(shown, tuple(ids), None, self._scores.show(len(shown)))

    def end(self) -> Piece:
        """No token follows: what was held back."""
        assert not self._ended, "a choice ends once"
        self._ended = True
        tail = self._detokenizer.flush()
        logprobs = self._scores.end()
        if self._stops is None or self._tokens <= self._min_tokens:
            # a character that is cut short belongs to the last token
            return Piece(tail, (), None, logprobs)
        step = self._stops.feed(tail)
        if step.stop is not None:
            return Piece(self._stopped(step.text, step.stop), (), step.stop, logprobs)
        return Piece(step.text + self._stops.flush(), (), None, logprobs)

    def _stopped(self, text: str, stop: str) -> str:
        return text + stop if self._include_stop else text
