"""Drafts: guesses of what a sequence says next, looked up in what it and its prompt have said before.

Owns: the n-grams of tokens, a predicted text and the place in it, and how far a sequence's drafts can be trusted.
Must not know: steps, rows, pages, whether a draft is ever tried.

A draft is tried by computing it together with the last token of its sequence, and counts only as far as the tokens
that are then drawn are the same. So a guess costs time when it is wrong, and never changes an answer.

A guess is judged by the tokens that came instead, whether it was tried or not. So a sequence whose drafts were wrong
is left alone, and gets drafts again as soon as they would have been right.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise

LONGEST = 3
"""Tokens that are looked for first: the more of them are the same, the likelier is the next."""
SHORTEST = 2
"""Tokens that have to be the same at least. What follows a single token is mostly chance."""
STRIDE = 4096
"""Tokens indexed at once, in a millisecond or two; a longer prompt is done in several steps."""


class NgramIndex:
    """Finds where n tokens in a row were last followed by another one, SHORTEST <= n <= LONGEST."""

    def __init__(self, start: int = 0) -> None:
        """It is to index what follows n-grams at ``start`` and later."""
        self.end = start
        """Positions before this are indexed."""
        self._followers: dict[tuple[int, ...], int] = {}

    def __repr__(self) -> str:
        return f"<NgramIndex of {len(self._followers)} n-grams, up to position {self.end}>"

    def extend(self, tokens: array[int], end: int) -> None:
        """Index the positions of ``tokens`` up to ``end``. Those before are the same as at the last call."""
        for n in range(SHORTEST, LONGEST + 1):
            first = max(self.end, n)
            if first >= end:
                continue
            # column i holds, for each position, the token n - i places before it: a loop, but not in Python
            columns = [tokens[first - n + i : end - n + i] for i in range(n)]
            self._followers.update(zip(zip(*columns, strict=True), range(first, end), strict=False))
        self.end = end

    def find(self, ngram: tuple[int, ...]) -> int | None:
        """The last position that follows ``ngram``."""
        return self._followers.get(ngram)


class Prediction:
    """A text that an answer is expected to repeat in large part. Shared by all choices of a prompt."""

    def __init__(self, tokens: array[int]) -> None:
        self.tokens = tokens
        self._places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, pair in enumerate(pairwise(tokens), start=2):
            self._places[pair].append(place)

    def __repr__(self) -> str:
        return f"<Prediction of {len(self.tokens)} tokens>"

    def next_place(self, pair: tuple[int, int], place: int) -> int | None:
        """Where it goes on after two tokens: at or after ``place`` if it has them there, else the last time before."""
        places = self._places.get(pair)
        if places is None:
            return None
        return places[min(bisect_left(places, place), len(places) - 1)]


class PromptLookup:
    """What the choices of one prompt have in common: the index of the prompt, made when it is first asked for."""

    def __init__(self, prompt: array[int], *, ngrams: bool = True, prediction: array[int] | None = None) -> None:
        """
        Args:
            prompt: not to be changed.
            ngrams: look in the prompt and the answer. False: only the prediction is followed.
            prediction: what the answer is expected to repeat.
        """
        self.prompt = prompt
        self.ngrams = ngrams
        self._index = NgramIndex()
        self._tokens = prediction
        self._prediction: Prediction | None = None

    def __repr__(self) -> str:
        return f"<PromptLookup of {len(self.prompt)} tokens, {self._index}, {self._prediction}>"

    @property
    def prediction(self) -> Prediction | None:
        if self._prediction is None and self._tokens:
            self._prediction = Prediction(self._tokens)
        return self._prediction

    def complete_index(self) -> NgramIndex | None:
        """The index of the prompt, STRIDE tokens nearer to its end at each call; None until it has got there."""
        if self._index.end < len(self.prompt):
            self._index.extend(self.prompt, min(len(self.prompt), self._index.end + STRIDE))
        return self._index if self._index.end == len(self.prompt) else None


class Drafter:
    """Guesses the next tokens of one choice."""

    def __init__(self, lookup: PromptLookup, longest_draft: int) -> None:
        """A draft has ``longest_draft`` tokens at most, 1 or more."""
        self._lookup = lookup
        self._longest_draft = longest_draft
        self._width = longest_draft
        """Tokens of a draft that are worth a try, as far as is known."""
        self._tokens = lookup.prompt[:]
        """Prompt and answer."""
        self._index = NgramIndex(start=len(lookup.prompt))
        self._guess: tuple[int, ...] = ()
        """Of the tokens after the last one known."""
        self._place: int | None = None if lookup.prediction is None else 0
        """Where the answer is in the prediction; None if it isn't in it."""
        self._last_place = 0

    def __repr__(self) -> str:
        return f"<Drafter after {len(self._tokens)} tokens, {self._width} wide>"

    def draft(self, answer: array[int], most: int) -> tuple[int, ...]:
        """What may come after ``answer``, which goes on where the one of the call before ended; ``most`` tokens of it.

        Empty if there is nothing to be found, or nothing that deserves a try.
        """
        self._follow(answer[len(self._tokens) - len(self._lookup.prompt) :])
        # a guess of one token that isn't tried shows when it is time to try again
        self._guess = self._look_up(max(1, self._width))
        return self._guess[: min(most, self._width)]

    def _follow(self, new: array[int]) -> None:
        self._judge(new)
        before = self._tokens[-1]
        self._tokens.extend(new)
        if self._lookup.ngrams:
            self._index.extend(self._tokens, len(self._tokens))
        prediction = self._lookup.prediction
        if prediction is not None:
            for token in new:
                self._place = self._move(prediction, before, token)
                self._last_place = self._last_place if self._place is None else self._place
                before = token

    def _judge(self, new: array[int]) -> None:
        seen = min(len(self._guess), len(new))
        if seen == 0:
            return
        right = 0
        while right < seen and self._guess[right] == new[right]:
            right += 1
        if right == seen:
            self._width = min(self._longest_draft, max(1, 2 * self._width))
        else:
            self._width = max(right, self._width // 2)

    def _move(self, prediction: Prediction, before: int, token: int) -> int | None:
        """Where the answer is in the prediction after one more token."""
        place = self._place
        if place is not None and place < len(prediction.tokens) and prediction.tokens[place] == token:
            return place + 1
        return prediction.next_place((before, token), self._last_place)

    def _look_up(self, count: int) -> tuple[int, ...]:
        prediction = self._lookup.prediction
        if prediction is not None and self._place is not None and self._place < len(prediction.tokens):
            return tuple(prediction.tokens[self._place : self._place + count])
        if not self._lookup.ngrams:
            return ()
        prompt_index = self._lookup.complete_index()
        if prompt_index is None:
            return ()
        for n in range(LONGEST, SHORTEST - 1, -1):
            ngram = tuple(self._tokens[-n:])
            place = self._index.find(ngram)
            if place is None:
                place = prompt_index.find(ngram)
            if place is not None:
                return self._copy(place, count)
        return ()

    def _copy(self, place: int, count: int) -> tuple[int, ...]:
        """``count`` tokens from ``place`` on; what is repeated at the very end repeats itself."""
        period = len(self._tokens) - place
        tokens = self._tokens[place : place + count]
        while len(tokens) < count:
            tokens.append(tokens[-period])
        return tuple(tokens)
