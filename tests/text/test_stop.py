"""The stop matcher agrees with a search of the whole text, however the text is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from trioserve.text.stop import StopMatcher, StopStep

CutAtStop = Callable[[str, tuple[str, ...]], tuple[str, str | None]]
# two letters make partial matches, overlaps and restarts frequent
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4).map(tuple)
PARTS = st.lists(st.text("abc", max_size=5), max_size=8)


def ambiguous(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end of text that may be the start of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(parts=PARTS, stops=STOPS)
def test_any_cut_gives_the_text_and_stop_of_the_whole(
    cut_at_stop: CutAtStop, parts: list[str], stops: tuple[str, ...]
) -> None:
    # stop-split-and-holdback, FAN-22
    matcher = StopMatcher(stops)
    shown, so_far, stop = "", "", None
    for part in parts:
        step = matcher.feed(part)
        shown += step.text
        so_far += part
        stop = step.stop
        if stop is not None:
            break
        # all that can't be part of a match is shown, and nothing else
        assert shown == so_far[: len(so_far) - ambiguous(so_far, stops)]
    assert (shown + matcher.flush(), stop) == cut_at_stop("".join(parts), stops)


PIECES = ["al", "pha", "<e", "nd", " x", ">", " tail"]


@pytest.mark.parametrize(
    ("stops", "texts", "stop"),
    [
        (("<end>",), ["al", "pha", "", "", "<end x", ">", " tail"], None),
        (("<end x>",), ["al", "pha", "", "", "", ""], "<end x>"),
        (("d x", "<end"), ["al", "pha", "", ""], "<end"),
        (("tail!!",), ["al", "pha", "<e", "nd", " x", ">", " "], None),
    ],
)
def test_pieces_are_held_back_only_while_they_may_be_a_stop_string(
    stops: tuple[str, ...], texts: list[str], stop: str | None
) -> None:
    # stop-split-and-holdback
    matcher = StopMatcher(stops)
    steps = []
    for piece in PIECES:
        steps.append(matcher.feed(piece))
        if steps[-1].stop is not None:
            break
    assert [step.text for step in steps] == texts
    assert steps[-1].stop == stop
    assert "".join(texts) + matcher.flush() == ("".join(PIECES) if stop is None else "alpha")


def test_the_match_that_is_complete_first_wins_though_another_began_earlier() -> None:
    assert StopMatcher(("abcd", "bc")).feed("xabcd") == StopStep("xa", "bc")


@pytest.mark.parametrize("stops", [("bc", "abc"), ("abc", "bc")])
def test_of_matches_complete_at_once_the_one_that_began_first_wins(stops: tuple[str, ...]) -> None:
    assert StopMatcher(stops).feed("xabc") == StopStep("x", "abc")


def test_what_follows_a_match_in_the_same_part_is_dropped() -> None:
    assert StopMatcher(("b",)).feed("abc") == StopStep("a", "b")


def test_no_text_may_follow_a_match() -> None:
    matcher = StopMatcher(("b",))
    matcher.feed("b")
    assert matcher.flush() == ""
    assert "stopped" in repr(matcher)
    with pytest.raises(AssertionError, match="text after a stop string"):
        matcher.feed("a")


def test_a_prefix_that_starts_again_inside_itself_is_found() -> None:
    matcher = StopMatcher(("aab",))
    assert matcher.feed("aaa") == StopStep("a")
    assert matcher.feed("a") == StopStep("a")
    assert "2 characters held" in repr(matcher)
    assert matcher.feed("b") == StopStep("", "aab")


@pytest.mark.parametrize("text", ["a" * 3000, "ab" * 1500])
def test_the_worst_stop_strings_cost_little(text: str) -> None:
    # compared with each other, or looked for again from each character, they would take minutes
    stops = tuple(text[: MAX_STOP_LENGTH - 1] + chr(0x100 + n) for n in range(MAX_STOP_STRINGS))
    matcher = StopMatcher(stops)
    shown = "".join(matcher.feed(letter).text for letter in text)
    assert shown + matcher.flush() == text
