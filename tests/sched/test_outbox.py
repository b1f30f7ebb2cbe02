"""Coalescing what a choice has not been told yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.errors import InvariantError
from trioserve.events import TokenLogprob
from trioserve.sched.commit import Admitted, Delivery, Drafted
from trioserve.sched.group import Uid
from trioserve.sched.outbox import Outbox, Progress

A = Uid("a")


def test_nothing_waits_at_first() -> None:
    outbox = Outbox(8)
    assert outbox.take() is None
    assert outbox.backlog == 0


def test_everything_that_waits_is_one_message() -> None:
    outbox = Outbox(8)
    outbox.put(Delivery(A, Admitted(16, 0.5)))
    outbox.put(Delivery(A, token_ids=(1,)))
    outbox.put(Delivery(A, token_ids=(2, 3), drafted=Drafted(1, 3)))
    outbox.put(Delivery(A, token_ids=(4, 5), finish="stop", stop_id=5, drafted=Drafted(1, 1)))
    assert outbox.backlog == 5
    assert outbox.take() == Progress(Admitted(16, 0.5), (1, 2, 3, 4, 5), "stop", 5, drafted=Drafted(2, 4))
    assert outbox.take() is None
    assert outbox.backlog == 0


def test_the_scores_of_a_prompt_and_an_error_are_told_once() -> None:
    outbox, scores, error = Outbox(8), (None, TokenLogprob(7, -1.0)), ValueError("no")
    outbox.put(Delivery(A, Admitted(0, 0.0)))
    outbox.put(Delivery(A, token_ids=(1,), prompt_logprobs=scores))
    outbox.put(Delivery(A, token_ids=(2,)))
    first = outbox.take()
    assert first is not None
    assert first.prompt_logprobs == scores
    outbox.put(Delivery(A, finish="error", error=error))
    assert outbox.take() == Progress(finish="error", error=error)


def test_what_was_taken_is_not_said_again() -> None:
    outbox = Outbox(8)
    outbox.put(Delivery(A, Admitted(0, 0.0), (1,), drafted=Drafted(1, 1)))
    outbox.take()
    outbox.put(Delivery(A, token_ids=(2,)))
    assert outbox.take() == Progress(None, (2,))


def test_an_ending_without_tokens_is_a_message() -> None:
    outbox = Outbox(8)
    outbox.put(Delivery(A, finish="cancelled"))
    assert outbox.take() == Progress(finish="cancelled")


def test_over_the_bound_means_more_than_it() -> None:  # FAN-29
    outbox = Outbox(2)
    outbox.put(Delivery(A, token_ids=(1, 2)))
    assert not outbox.over_bound
    outbox.put(Delivery(A, token_ids=(3,)))
    assert outbox.over_bound
    outbox.take()
    assert not outbox.over_bound


def test_a_delivery_after_the_last_is_a_bug() -> None:
    outbox = Outbox(2)
    outbox.put(Delivery(A, token_ids=(1,), finish="length"))
    outbox.take()
    with pytest.raises(InvariantError, match="after it had finished"):
        outbox.put(Delivery(A, token_ids=(2,)))


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.booleans())))
def test_no_token_is_lost_or_repeated_however_it_is_taken(script: list[tuple[list[int], bool]]) -> None:
    outbox = Outbox(2)
    told: list[int] = []
    scores: list[float] = []
    for ids, take in script:
        outbox.put(Delivery(A, token_ids=tuple(ids), logprobs=tuple(-token / 8 for token in ids)))
        if take:
            progress = outbox.take()
            assert progress is not None
            assert len(progress.logprobs) == len(progress.token_ids)
            told += progress.token_ids
            scores += progress.logprobs
    last = outbox.take()
    if last is not None:
        told += last.token_ids
        scores += last.logprobs
    assert told == [token for ids, _ in script for token in ids]
    assert scores == [-token / 8 for token in told]
