"""Agreement of choices: what a pattern finds, and when enough found the same (FAN-31)."""

from __future__ import annotations

import time

import pytest

from trioserve.errors import ParamError
from trioserve.text.agreement import Agreement


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (r"\d+", "first 12, then 34.", "34"),
        (r"answer is (\w+)", "The answer is yes. No, the answer is no!", "no"),
        (r"\\boxed\{([^}]*)\}", r"so \boxed{x+1} it is", "x+1"),
        (r"(a)|b", "b", None),
        (r"\d+", "none here", None),
        (r"é+", "caféé", "éé"),
    ],
)
def test_an_answer_is_what_the_last_match_captured(pattern: str, text: str, answer: str | None) -> None:
    assert Agreement(pattern, 1).answer(text) == answer


def test_enough_agree_when_as_many_as_wanted_found_the_same() -> None:
    agreement = Agreement(r"\d", 3)
    assert [agreement.vote(text) for text in ("1", "2", "x", "1", "2", "y 1")] == [False] * 5 + [True]


def test_copies_are_as_many_votes() -> None:
    assert Agreement(r"\d", 3).vote("1", 3)
    assert not Agreement(r"\d", 3).vote("x", 3)


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a{99999}", "x" * 1001])
def test_a_pattern_that_is_not_valid_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(ParamError, match=r"stop_when\.pattern") as caught:
        Agreement(pattern, 1)
    assert caught.value.param == "stop_when.pattern"


def test_no_pattern_takes_more_than_linear_time() -> None:
    # with backtracking, this would take longer than the universe has lasted
    begin = time.process_time()
    assert Agreement(r"(a+)+$", 1).answer("a" * 5000 + "b") is None
    assert time.process_time() - begin < 1
