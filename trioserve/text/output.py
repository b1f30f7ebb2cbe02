"""From the token ids of one choice to its parts: text, thoughts, calls.

Owns: ChoiceOutput. Must not know: formats, events, sibling choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from trioserve.abc import OutputParser, Part
from trioserve.events import TokenLogprob
from trioserve.text.parts import join_parts
from trioserve.text.pipeline import ChoiceText, Piece


class ChoiceOutput:
    """The text of one choice, and what its parsers make of it. Stop strings are looked for before that, in all of it.

    Tokens are read one by one, so that what counts as thought does not depend on which of them came together.
    """

    def __init__(self, text: ChoiceText, parsers: Sequence[OutputParser]) -> None:
        """``parsers``: one for the choice and one for each of its copies; they differ in the ids of calls only."""
        self._text = text
        self._parsers = parsers
        self._parts: list[list[Part]] = [[] for _ in parsers]
        self.reasoning_tokens = 0
        """Of the tokens so far, those that are part of a thought."""
        self.has_calls = False
        """There was a call."""

    def __repr__(self) -> str:
        return f"<ChoiceOutput: {self._text!r}, {self._parsers[0]!r}>"

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Piece:
        """As ChoiceText.feed; what it is made of is for ``take``."""
        pieces = []
        for at, token_id in enumerate(ids):
            self.reasoning_tokens += self._parsers[0].is_reasoning
            pieces.append(self._text.feed([token_id], logprobs[at : at + 1]))
            if pieces[-1].text:
                self._add([parser.feed(pieces[-1].text) for parser in self._parsers])
            if pieces[-1].stop is not None:
                self._add([parser.end() for parser in self._parsers])
                break
        return Piece(
            "".join(piece.text for piece in pieces),
            tuple(ids[: len(pieces)]),
            pieces[-1].stop if pieces else None,
            tuple(score for piece in pieces for score in piece.logprobs),
        )

    def end(self) -> Piece:
        """As ChoiceText.end."""
        piece = self._text.end()
        self._add([parser.feed(piece.text) + parser.end() for parser in self._parsers])
        return piece

    def take(self) -> list[list[Part]]:
        """The parts since the last time, for the choice and for each of its copies."""
        taken, self._parts = self._parts, [[] for _ in self._parsers]
        return [join_parts(parts) for parts in taken]

    def _add(self, news: list[list[Part]]) -> None:
        for parts, more in zip(self._parts, news, strict=True):
            parts += more
        self.has_calls = self.has_calls or any(part.kind == "tool_call" for part in news[0])
