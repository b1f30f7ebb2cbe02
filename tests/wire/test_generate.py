"""Tokens in and tokens out: what is read, what is written, and that a rendered prompt reads as what it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import ParamError
from trioserve.events import (
    ChoiceFinished,
    ChoiceUsage,
    Event,
    PromptScored,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from trioserve.params import ChoiceParams, Limits, SamplingParams, StopWhen
from trioserve.structure import Structure
from trioserve.testing.tokenizer import EOS, ByteTokenizer
from trioserve.wire.calls import Call
from trioserve.wire.details import Details
from trioserve.wire.generate import GenerateCall, TokenAnswerBuilder, TokenChunkBuilder, parse_generate
from trioserve.wire.rendered import rendered_body, rendered_fields, sampling_fields
from trioserve.wire.tally import Head
from trioserve.wire.token_texts import TokenTexts

TEXTS = TokenTexts(ByteTokenizer())


def parse(**fields: object) -> GenerateCall:
    return parse_generate(json.dumps({"token_ids": [1, 2], **fields}).encode(), Limits(max_n=1000))


def refusal(**fields: object) -> ParamError:
    with pytest.raises(ParamError) as caught:
        parse(**fields)
    return caught.value


# ---- what is read


def test_the_fewest_fields_have_every_default() -> None:
    call = parse()
    assert (call.model, call.request_id, call.token_ids, call.stream) == ("", None, (1, 2), False)
    assert call.params == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": None}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": "x"}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids"),
        ({"token_ids": [[1]]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"model": 1}, "model"),
        ({"model": ""}, "model"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"n": 2}, "n"),
        ({"features": {}}, "features"),
        ({"priority": 0.5}, "priority"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"sampling_params": {"n": "2"}}, "sampling_params.n"),
        ({"sampling_params": {"n": 1001}}, "sampling_params.n"),
        ({"sampling_params": {"x": 1}}, "sampling_params.x"),
        ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
        ({"sampling_params": {"logprobs": True}}, "sampling_params.logprobs"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"logit_bias": {"5": 101}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"stop_token_ids": [-1]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"priority": 1}}, "sampling_params.priority"),
        ({"sampling_params": {"best_of": 3}, "stream": True}, "sampling_params.best_of"),
        ({"sampling_params": {"choice_params": [{"top_p": 2}]}}, "sampling_params.choice_params.0.top_p"),
        ({"sampling_params": {"stop_when": {}}}, "sampling_params.stop_when"),
        ({"sampling_params": {"truncate_prompt_tokens": 5}}, "sampling_params.truncate_prompt_tokens"),
    ],
)
def test_a_fault_is_named_by_its_path(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


def test_errors_of_the_engine_are_named_by_their_paths_too() -> None:
    names = parse(sampling_params={"n": 2, "choice_params": [{}, {"max_tokens": 5}]}).names
    assert names["prompt"] == "token_ids"
    assert names["stop_token_ids"] == "sampling_params.stop_token_ids"
    assert names["choice_params.1.max_tokens"] == "sampling_params.choice_params.1.max_tokens"


# ---- what is rendered

counts = st.integers(1, 4)
some_params = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(0, 100),
    temperature=st.none() | st.floats(0.1, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(-1, 50),
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2),
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 2),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100), max_size=3),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    skip_special_tokens=st.booleans(),
    priority=st.integers(-5, 5),
    cache_salt=st.none() | st.just("salt"),
    stop_when=st.none() | st.just(StopWhen(finished=1)) | st.just(StopWhen(agree=1, pattern="x")),
    choice_errors=st.sampled_from(["fail", "isolate"]),
    prompt_lookup=st.none() | st.booleans(),
    prediction=st.none() | st.text(max_size=3),
)
with_choices = st.just(
    SamplingParams(n=2, max_tokens=5, choice_params=[ChoiceParams(seed=1, top_k=3), ChoiceParams(temperature=0.0)])
)


@settings(max_examples=100, deadline=None)
@given(some_params | with_choices, st.booleans(), st.booleans())
def test_a_rendered_prompt_reads_as_what_it_was_made_from(params: SamplingParams, stream: bool, usage: bool) -> None:
    usage = usage and stream
    call = Call(model="m", params=params, stream=stream, include_usage=usage, continuous_usage=usage)
    read = parse_generate(rendered_body(rendered_fields(call, [5, 6], params)), Limits())
    assert read.params == params
    assert (read.model, read.token_ids) == ("m", (5, 6))
    assert (read.stream, read.include_usage, read.continuous_usage) == (stream, usage, usage)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (Structure(kind="json_object", text=""), ("json_schema", '{"type":"object"}')),
        (Structure(kind="json_schema", text='{"const":1}'), ("json_schema", '{"const":1}')),
        (Structure(kind="regex", text="a+"), ("regex", "a+")),
        (Structure(kind="choice", text='["a","b"]'), ("choice", '["a","b"]')),
        (Structure(kind="lark", text='start: "a"'), ("lark", 'start: "a"')),
    ],
)
def test_a_rendered_structure_reads_as_one_that_allows_the_same(given: Structure, read: tuple[str, str]) -> None:
    params = SamplingParams(structure=given)
    call = Call(model="m", params=params, stream=False, include_usage=False, continuous_usage=False)
    structure = parse_generate(rendered_body(rendered_fields(call, [5], params)), Limits()).params.structure
    assert structure is not None
    assert (structure.kind, structure.text) == read


def test_what_has_its_default_is_not_rendered() -> None:
    assert sampling_fields(SamplingParams()) == {}
    assert sampling_fields(SamplingParams(n=2, min_tokens=1)) == {"n": 2, "min_tokens": 1}


# ---- what is written


def head(n: int = 1, details: Details | None = None) -> Head:
    return Head(kind="tokens", id="id-1", created=1, model="tiny", n=n, prompt_tokens=(2,), details=details)


def whole(head: Head, logprobs: int | None, events: Iterable[Event]) -> Any:
    builder = TokenAnswerBuilder(head, logprobs)
    for event in events:
        builder.feed(event)
    return json.loads(builder.answer())


def stream(head: Head, logprobs: int | None, events: Iterable[Event], *, usage: bool = False) -> list[Any]:
    builder = TokenChunkBuilder(head, logprobs, include_usage=usage, continuous_usage=usage)
    data = b"".join([builder.start(), *map(builder.feed, events), builder.end()])
    *frames, done, _ = data.decode().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


EVENTS: list[Event] = [
    TextDelta(1, "a", (97,), (TokenLogprob(97, -1.0, ((5, -0.5), (97, -1.0))),)),
    TextDelta(0, "", (98,)),
    ToolCallDelta(
        0, 0, "c", "f", "{}", (99, EOS), (TokenLogprob(98, -2.0), TokenLogprob(99, -3.0), TokenLogprob(EOS, 0))
    ),
    ChoiceFinished(1, "length", ChoiceUsage(1, shared_tokens=2), seed=8),
    ChoiceFinished(0, "stop", ChoiceUsage(3), seed=7),
]


def test_an_answer_is_its_tokens_whatever_they_say() -> None:
    answer = whole(head(n=2), None, EVENTS)
    assert answer["request_id"] == "id-1"
    assert [(c["index"], c["token_ids"], c["finish_reason"], c["seed"]) for c in answer["choices"]] == [
        (0, [98, 99, EOS], "stop", 7),
        (1, [97], "length", 8),
    ]
    assert [c["logprobs"] for c in answer["choices"]] == [None, None]
    assert answer["prompt_logprobs"] is None
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 4)


def test_log_probabilities_are_told_by_id() -> None:
    answer = whole(head(n=2), 1, EVENTS)
    assert answer["choices"][1]["logprobs"] == {
        "content": [
            {
                "token": "token_id:97",
                "logprob": -1.0,
                "bytes": None,
                "top_logprobs": [{"token": "token_id:5", "logprob": -0.5, "bytes": None}],
            }
        ]
    }
    assert [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]] == [
        "token_id:98",
        "token_id:99",
        f"token_id:{EOS}",
    ]


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_put_together_is_the_answer(usage: bool) -> None:
    details = Details(texts=TEXTS, prompt_logprobs=0)
    events = [PromptScored(0, (1, 2), (None, TokenLogprob(2, -1.0))), *EVENTS]
    answer = whole(head(2, details), 1, events)
    chunks = stream(head(2, details), 1, events, usage=usage)
    choices: list[dict[str, Any]] = [{"token_ids": [], "logprobs": {"content": []}} for _ in range(2)]
    for chunk in chunks:
        assert chunk["request_id"] == "id-1"
        for part in chunk["choices"]:
            choice = choices[part["index"]]
            choice["token_ids"] += part.pop("token_ids")
            choice["logprobs"]["content"] += (part.pop("logprobs") or {"content": []})["content"]
            choice.update(part)
    assert choices == answer["choices"]
    assert chunks[0] == {"request_id": "id-1", "choices": [], "prompt_logprobs": answer["prompt_logprobs"]}
    if usage:
        assert chunks[-1]["usage"] == answer["usage"]
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:-1]] == [1, 1, 3, 1, 3]


def test_builders_tell_how_far_they_are() -> None:
    assert "id-1: 1 of 1 choices live" in repr(TokenAnswerBuilder(head(), None))
    assert "id-1: 1 of 1 choices live" in repr(
        TokenChunkBuilder(head(), None, include_usage=False, continuous_usage=False)
    )
