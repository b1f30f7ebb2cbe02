"""Drafts against a slow reference, which searches the tokens themselves each time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.sched import lookup as module
from trioserve.sched.lookup import LONGEST, SHORTEST, Drafter, NgramIndex, Prediction, PromptLookup

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)
# few different tokens, so that n-grams come again
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def ids(tokens: Sequence[int]) -> array[int]:
    return array("i", tokens)


def followers(tokens: Sequence[int], ngram: Sequence[int], start: int = 0) -> list[int]:
    """Every position from ``start`` on that follows ``ngram``."""
    n = len(ngram)
    return [p for p in range(max(n, start), len(tokens)) if tuple(tokens[p - n : p]) == tuple(ngram)]


def copied(tokens: Sequence[int], place: int, count: int) -> tuple[int, ...]:
    """The tokens from ``place`` on, as if each had been said when the one after it was looked up."""
    said = list(tokens)
    for ahead in range(count):
        said.append(said[place + ahead])
    return tuple(said[len(tokens) :])


class SlowDrafter:
    """The rules, word by word."""

    def __init__(self, prompt: Sequence[int], prediction: Sequence[int], most: int, *, ngrams: bool) -> None:
        self.prompt, self.prediction, self.longest, self.ngrams = prompt, prediction, most, ngrams
        self.tokens = list(prompt)
        self.width = most
        self.guess: tuple[int, ...] = ()
        self.place: int | None = 0 if prediction else None
        self.last_place = 0

    def draft(self, answer: Sequence[int], most: int) -> tuple[int, ...]:
        new = list(answer[len(self.tokens) - len(self.prompt) :])
        self.judge(new)
        for token in new:
            self.tokens.append(token)
            self.move()
        self.guess = self.look_up(max(1, self.width))
        return self.guess[: min(self.width, most)]

    def judge(self, new: list[int]) -> None:
        pairs = list(zip(self.guess, new, strict=False))
        if not pairs:
            return
        right = next((p for p, (guessed, drawn) in enumerate(pairs) if guessed != drawn), len(pairs))
        doubled = min(self.longest, max(1, self.width * 2))
        self.width = doubled if right == len(pairs) else max(right, self.width // 2)

    def move(self) -> None:
        if not self.prediction:
            return
        if self.place is not None and list(self.prediction[self.place : self.place + 1]) == self.tokens[-1:]:
            self.place += 1
        else:
            pair = self.tokens[-2:]
            places = [p for p in range(2, len(self.prediction) + 1) if list(self.prediction[p - 2 : p]) == pair]
            ahead = [p for p in places if p >= self.last_place]
            self.place = ahead[0] if ahead else places[-1] if places else None
        if self.place is not None:
            self.last_place = self.place

    def look_up(self, count: int) -> tuple[int, ...]:
        if self.place is not None and self.place < len(self.prediction):
            return tuple(self.prediction[self.place : self.place + count])
        for n in range(LONGEST, SHORTEST - 1, -1) if self.ngrams else ():
            places = followers(self.tokens, self.tokens[-n:]) if len(self.tokens) >= n else []
            if places:
                return copied(self.tokens, places[-1], count)
        return ()


@SETTINGS
@given(TOKENS, st.lists(st.integers(0, 40), max_size=5), st.integers(0, 5))
def test_an_index_knows_the_last_position_after_each_ngram(tokens: list[int], cuts: list[int], start: int) -> None:
    start = min(start, len(tokens))
    index = NgramIndex(start)
    for end in sorted(min(max(cut, start), len(tokens)) for cut in [*cuts, len(tokens)]):
        index.extend(ids(tokens[:end]), end)
        for n in range(SHORTEST, LONGEST + 1):
            for first in range(end - n + 1):
                ngram = tuple(tokens[first : first + n])
                expected = followers(tokens[:end], ngram, start)
                assert index.find(ngram) == (expected[-1] if expected else None)
    assert index.find((9, 9)) is None


@SETTINGS
@given(
    prompt=TOKENS,
    answer=TOKENS,
    prediction=st.none() | TOKENS,
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30),
    longest=st.integers(1, 5),
    ngrams=st.booleans(),
    follows=st.booleans(),
)
def test_drafts_are_those_of_the_rules(
    prompt: list[int],
    answer: list[int],
    prediction: list[int] | None,
    sizes: list[tuple[int, int]],
    longest: int,
    ngrams: bool,
    follows: bool,
) -> None:
    if follows and prediction is not None:
        # what predictions are for: the answer is the prediction, but for something in the middle
        answer = [*prediction[: len(prediction) // 2], *answer[:2], *prediction[len(prediction) // 2 + 1 :]]
    lookup = PromptLookup(ids(prompt), ngrams=ngrams, prediction=None if prediction is None else ids(prediction))
    # two choices of one prompt, of which the second comes late
    for _ in range(2):
        drafter = Drafter(lookup, longest)
        slow = SlowDrafter(prompt, prediction or (), longest, ngrams=ngrams)
        known = 0
        for more, most in sizes:
            known = min(known + more, len(answer))
            said = answer[:known]
            assert drafter.draft(ids(said), most) == slow.draft(said, most)


def test_a_prompt_that_is_repeated_is_guessed_from_its_third_token_on() -> None:
    prompt = ids(range(100, 150))
    drafter = Drafter(PromptLookup(prompt), 4)
    assert drafter.draft(prompt[10:11], 4) == ()
    assert drafter.draft(prompt[10:12], 4) == (112, 113, 114, 115)
    assert drafter.draft(prompt[10:17], 4) == (117, 118, 119, 120)
    # as much as is wanted
    assert drafter.draft(prompt[10:22], 1) == (122,)


def test_the_longest_ngram_counts_more_than_the_last_one() -> None:
    prompt = ids([1, 2, 3, 50, 9, 2, 3, 60])
    assert Drafter(PromptLookup(prompt), 1).draft(ids([1, 2, 3]), 1) == (50,)
    assert Drafter(PromptLookup(prompt), 1).draft(ids([7, 2, 3]), 1) == (60,)


def test_what_is_repeated_at_the_very_end_goes_on_repeating() -> None:
    assert Drafter(PromptLookup(ids([5])), 7).draft(ids([1, 2, 1, 2]), 7) == (1, 2, 1, 2, 1, 2, 1)


def test_wrong_drafts_get_shorter_until_none_is_tried_and_right_ones_longer() -> None:
    prompt = ids([1, 2, 10, 11, 12, 13, 14, 15, 16, 17])
    drafter = Drafter(PromptLookup(prompt), 4)
    answer: list[int] = []
    widths = []
    for _ in range(5):
        answer += [1, 2]
        widths.append(len(drafter.draft(ids(answer), 4)))
        # never what followed before
        answer.append(90 + len(answer))
        drafter.draft(ids(answer), 4)
    assert widths == [4, 2, 1, 0, 0]
    # the first guess that would have been right brings them back
    answer += [10, 11]
    assert drafter.draft(ids(answer), 4) == ()
    widths = []
    for token in (12, 13, 14, 15):
        answer.append(token)
        widths.append(len(drafter.draft(ids(answer), 4)))
    assert widths == [1, 2, 4, 4]


def test_a_prediction_is_followed_from_the_first_token_and_found_again_after_a_difference() -> None:
    prediction = ids(range(200, 240))
    drafter = Drafter(PromptLookup(ids([1]), prediction=prediction), 3)
    assert drafter.draft(ids([200]), 3) == (201, 202, 203)
    assert drafter.draft(ids([200, 201, 7]), 3) == ()
    assert drafter.draft(ids([200, 201, 7, 203]), 3) == ()
    # 202 was replaced; of the guess of three tokens one was right
    assert drafter.draft(ids([200, 201, 7, 203, 204]), 3) == (205,)
    assert drafter.draft(ids([200, 201, 7, 203, 204, 205]), 3) == (206, 207)
    assert drafter.draft(ids([200, 201, 7, *range(203, 240)]), 3) == ()


@pytest.mark.parametrize(("place", "expected"), [(0, 2), (2, 2), (3, 5), (5, 5), (6, 8), (9, 8)])
def test_a_prediction_goes_on_at_the_next_place_that_fits(place: int, expected: int) -> None:
    prediction = Prediction(ids([1, 2, 0, 1, 2, 0, 1, 2, 0]))
    assert prediction.next_place((1, 2), place) == expected
    assert prediction.next_place((2, 1), place) is None


def test_without_ngrams_only_the_prediction_is_followed() -> None:
    lookup = PromptLookup(ids([1, 2, 3, 4]), ngrams=False, prediction=ids([7, 8]))
    assert Drafter(lookup, 2).draft(ids([7]), 2) == (8,)
    assert Drafter(lookup, 2).draft(ids([1, 2]), 2) == ()


def test_a_long_prompt_is_indexed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRIDE", 4)
    lookup = PromptLookup(ids(range(10)))
    drafter = Drafter(lookup, 2)
    assert [drafter.draft(ids([1, 2]), 2) for _ in range(3)] == [(), (), (3, 4)]
    # done once for all choices
    assert Drafter(lookup, 2).draft(ids([1, 2]), 2) == (3, 4)
