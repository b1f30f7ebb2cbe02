"""Answers that are not streamed. That they tell the same as a stream is shown in test_chunks."""

from __future__ import annotations

import json

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from trioserve.events import ChoiceFinished, ChoiceUsage, Event, TextDelta
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.tally import Head


def answer(head: Head, *events: Event) -> bytes:
    builder = AnswerBuilder(head)
    for event in events:
        builder.feed(event)
    return builder.answer()


def test_a_chat_answers_with_its_choices_in_index_order() -> None:  # FAN-16, FAN-17, FAN-21
    body = answer(
        Head(kind="chat", id="id-1", created=1700000000, model="tiny", n=2, prompt_tokens=(5,)),
        TextDelta(1, "b", (1,)),
        TextDelta(0, "a", (2,)),
        ChoiceFinished(1, "length", ChoiceUsage(2, shared_tokens=5, rejected_prediction_tokens=3), seed=8),
        TextDelta(0, "c", (3,)),
        ChoiceFinished(
            0, "stop", ChoiceUsage(3, 4, 0, 1, accepted_prediction_tokens=2, rejected_prediction_tokens=5), seed=7
        ),
    )
    assert json.loads(body) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ac", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "seed": 7,
                "usage": {
                    "completion_tokens": 3,
                    "reasoning_tokens": 1,
                    "cached_tokens": 4,
                    "shared_tokens": 0,
                    "accepted_prediction_tokens": 2,
                    "rejected_prediction_tokens": 5,
                },
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "seed": 8,
                "usage": {
                    "completion_tokens": 2,
                    "reasoning_tokens": 0,
                    "cached_tokens": 0,
                    "shared_tokens": 5,
                    "accepted_prediction_tokens": 0,
                    "rejected_prediction_tokens": 3,
                },
            },
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 5,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 4},
            # rejected ones are in no total
            "completion_tokens_details": {
                "reasoning_tokens": 1,
                "accepted_prediction_tokens": 2,
                "rejected_prediction_tokens": 8,
            },
        },
    }
    read = ChatCompletion.model_validate_json(body)
    assert [choice.message.content for choice in read.choices] == ["ac", "b"]


def test_a_completion_answers_every_prompt_and_echoes_it() -> None:  # FAN-4, FAN-17, FAN-21; case prompt-list-index
    body = answer(
        Head(
            kind="completion",
            id="id-1",
            created=1700000000,
            model="tiny",
            n=2,
            prompt_tokens=(2, 3),
            echo_texts=("aa", "bb"),
        ),
        *(TextDelta(index, str(index), (1,)) for index in (3, 1, 0, 2)),
        *(ChoiceFinished(index, "stop", ChoiceUsage(1), seed=index) for index in (2, 0, 3, 1)),
    )
    read = Completion.model_validate_json(body)
    assert read.object == "text_completion"
    assert [(choice.index, choice.text) for choice in read.choices] == [(0, "aa0"), (1, "aa1"), (2, "bb2"), (3, "bb3")]
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.usage.total_tokens) == (5, 4, 9)


def test_a_completion_of_no_tokens_has_an_empty_text() -> None:  # case max-tokens-edges
    head = Head(kind="completion", id="id-1", created=1, model="tiny", n=1, prompt_tokens=(2,))
    read = Completion.model_validate_json(answer(head, ChoiceFinished(0, "length", ChoiceUsage(0), seed=0)))
    assert (read.choices[0].text, read.choices[0].finish_reason) == ("", "length")


def test_the_usage_of_ranked_choices_counts_the_candidates_that_are_none() -> None:  # FAN-21, FAN-32
    body = answer(
        Head(kind="completion", id="id-1", created=1, model="tiny", n=1, prompt_tokens=(5, 6), ranked=True),
        TextDelta(0, "a", (1, 2)),
        ChoiceFinished(0, "stop", ChoiceUsage(2, cached_tokens=4, discarded_tokens=7), seed=9, mean_logprob=-0.5),
        ChoiceFinished(1, "length", ChoiceUsage(0, discarded_tokens=1), seed=8),
    )
    read = json.loads(body)
    assert [(choice["seed"], choice["mean_logprob"]) for choice in read["choices"]] == [(9, -0.5), (8, None)]
    assert read["choices"][0]["usage"] == {
        "completion_tokens": 2,
        "reasoning_tokens": 0,
        "cached_tokens": 4,
        "shared_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    assert read["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 10,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "discarded_tokens": 8,
        },
    }
    assert Completion.model_validate_json(body).usage is not None


def test_there_is_no_answer_before_all_choices_have_finished() -> None:  # FAN-17
    head = Head(kind="chat", id="id-1", created=1, model="tiny", n=2, prompt_tokens=(2,))
    with pytest.raises(AssertionError, match="1 choices have not finished"):
        answer(head, ChoiceFinished(0, "stop", ChoiceUsage(0), seed=0))


def test_a_builder_tells_how_far_it_is() -> None:
    head = Head(kind="chat", id="id-1", created=1, model="tiny", n=2, prompt_tokens=(2,))
    assert "id-1: 2 of 2 choices live" in repr(AnswerBuilder(head))
