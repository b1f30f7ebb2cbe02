"""The chunks of a stream: their order, their form, and what strict clients make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from trioserve.errors import ChoiceFailedError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, FinishReason, TextDelta
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.chunks import PING, ChunkBuilder, error_event
from trioserve.wire.tally import Head, Kind

both = pytest.mark.parametrize("kind", ["chat", "completion"])
NO_DRAFTS = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def head(kind: Kind, n: int = 1, prompt_tokens: tuple[int, ...] = (5,), echo: tuple[str, ...] = ()) -> Head:
    return Head(
        kind=kind, id="id-1", created=1700000000, model="tiny", n=n, prompt_tokens=prompt_tokens, echo_texts=echo
    )


def ends(index: int, tokens: int = 1, cached: int = 0, shared: int = 0, reasoning: int = 0) -> ChoiceFinished:
    return ChoiceFinished(index, "stop", ChoiceUsage(tokens, cached, shared, reasoning), seed=-index)


def stream(
    head: Head, events: Iterable[Event], *, include_usage: bool = False, continuous_usage: bool = False
) -> bytes:
    builder = ChunkBuilder(head, include_usage=include_usage, continuous_usage=continuous_usage)
    return b"".join([builder.start(), *map(builder.feed, events), builder.end()])


def payloads(data: bytes) -> Iterator[str]:
    """What a strict reader of server-sent events finds: one line of data in each frame, and the end in its place."""
    *frames, rest = data.decode().split("\n\n")
    assert rest == ""
    assert frames.pop() == "data: [DONE]"
    for frame in frames:
        assert frame.splitlines() == [frame]
        assert frame.startswith("data: {")
        yield frame.removeprefix("data: ")


def chunks(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in payloads(data)]


def test_the_chunks_of_a_chat() -> None:  # FAN-16, FAN-18, FAN-19; case stream-envelope
    shared = {"id": "id-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "tiny"}
    open_ended = {"logprobs": None, "finish_reason": None}
    role = {"role": "assistant", "content": ""}
    usage = {"completion_tokens": 2, "reasoning_tokens": 1, "cached_tokens": 3, "shared_tokens": 0, **NO_DRAFTS}
    events: list[Event] = [
        TextDelta(0, "a", (7,)),
        TextDelta(1, "b", (8,)),
        ends(1),
        ends(0, tokens=2, cached=3, reasoning=1),
    ]
    sibling = {"completion_tokens": 1, "reasoning_tokens": 0, "cached_tokens": 0, "shared_tokens": 0, **NO_DRAFTS}
    assert chunks(stream(head("chat", n=2), events)) == [
        {**shared, "choices": [{"index": 0, "delta": role, **open_ended}]},
        {**shared, "choices": [{"index": 1, "delta": role, **open_ended}]},
        {**shared, "choices": [{"index": 0, "delta": {"content": "a"}, **open_ended}]},
        {**shared, "choices": [{"index": 1, "delta": {"content": "b"}, **open_ended}]},
        {
            **shared,
            "choices": [
                {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "stop", "seed": -1, "usage": sibling}
            ],
        },
        {
            **shared,
            "choices": [
                {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "seed": 0, "usage": usage}
            ],
        },
    ]


def test_the_chunks_of_a_completion() -> None:  # FAN-18, FAN-19; case stream-envelope
    shared = {"id": "id-1", "object": "text_completion", "created": 1700000000, "model": "tiny"}
    usage = {"completion_tokens": 1, "reasoning_tokens": 0, "cached_tokens": 0, "shared_tokens": 5, **NO_DRAFTS}
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "seed": 0, "usage": usage}
    assert chunks(stream(head("completion"), [TextDelta(0, "a", (7,)), ends(0, shared=5)])) == [
        {**shared, "choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]},
        {**shared, "choices": [last]},
    ]


@both
def test_a_delta_without_text_is_not_written(kind: Kind) -> None:
    builder = ChunkBuilder(head(kind), include_usage=True, continuous_usage=True)
    builder.start()
    assert builder.feed(TextDelta(0, "", (7,))) == b""
    assert builder.feed(TextDelta(0, "a", (8,))) != b""


def test_an_echo_comes_before_the_text_of_its_choice() -> None:  # FAN-4; case prompt-list-index
    first = stream(head("completion", n=2, prompt_tokens=(2, 2, 0), echo=("aa", "bb", "")), [ends(i) for i in range(6)])
    texts = [(c["index"], c["text"]) for chunk in chunks(first) for c in chunk["choices"] if c["text"]]
    assert texts == [(0, "aa"), (1, "aa"), (2, "bb"), (3, "bb")]


@both
def test_usage_is_in_the_last_chunk_and_null_in_all_others(kind: Kind) -> None:
    # FAN-20, FAN-21; case n-usage-and-usage-chunk
    events: list[Event] = [
        TextDelta(0, "a", (1,)),
        ends(0, 2, cached=3),
        ends(1, 4),
        ends(2, 8, cached=1),
        ends(3, 16, reasoning=9),
    ]
    *others, last = chunks(stream(head(kind, n=2, prompt_tokens=(5, 7)), events, include_usage=True))
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 30,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 9, **NO_DRAFTS},
    }


@both
def test_without_include_usage_no_chunk_has_usage(kind: Kind) -> None:  # FAN-20; case n-usage-and-usage-chunk
    assert not any("usage" in chunk for chunk in chunks(stream(head(kind), [TextDelta(0, "a", (1,)), ends(0)])))


@both
def test_continuous_usage_is_that_of_the_choice_so_far(kind: Kind) -> None:  # FAN-20
    events: list[Event] = [
        TextDelta(0, "a", (1,)),
        TextDelta(3, "b", (1, 2)),
        TextDelta(0, "", (3,)),
        TextDelta(0, "c", (4,)),
        ends(0, tokens=4),
        *(ends(index) for index in (1, 2, 3)),
    ]
    data = stream(head(kind, n=2, prompt_tokens=(5, 7)), events, include_usage=True, continuous_usage=True)
    *written, last = chunks(data)
    seen = [
        (chunk["choices"][0]["index"], usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        for chunk in written
        for usage in [chunk["usage"]]
    ]
    roles = [(0, 5, 0, 5), (1, 5, 0, 5), (2, 7, 0, 7), (3, 7, 0, 7)] if kind == "chat" else []
    assert seen == [
        *roles,
        (0, 5, 1, 6),
        (3, 7, 2, 9),
        (0, 5, 3, 8),
        (0, 5, 4, 9),
        (1, 5, 1, 6),
        (2, 7, 1, 8),
        (3, 7, 1, 8),
    ]
    assert last["usage"]["completion_tokens"] == 7


@both
def test_any_text_is_one_line_of_data(kind: Kind) -> None:  # case stream-envelope
    text = 'a\nb\r\nc\x00\x0b\x0c\x1c\x7f\x85\u2028\u2029 "é" \\ data: [DONE]\n\n𝄞'
    data = stream(head(kind, echo=(text,)), [TextDelta(0, text, (1,)), ends(0)])
    found = [c.get("text") or c.get("delta", {}).get("content") for chunk in chunks(data) for c in chunk["choices"]]
    assert found.count(text) == (1 if kind == "chat" else 2)


@both
def test_the_official_client_knows_every_chunk(kind: Kind) -> None:
    model = ChatCompletionChunk if kind == "chat" else Completion
    data = stream(head(kind), [TextDelta(0, "a", (1,)), ends(0)], include_usage=True)
    for payload in payloads(data):
        if kind == "completion" and '"finish_reason":null' in payload:
            # its model of a completion is that of a whole answer: only there a finish_reason has to be set
            payload = payload.replace('"finish_reason":null', '"finish_reason":"stop"')
        assert model.model_validate_json(payload).model == "tiny"


def test_a_builder_asserts_that_it_is_used_in_order() -> None:  # FAN-19
    builder = ChunkBuilder(head("chat", n=2), include_usage=False, continuous_usage=False)
    with pytest.raises(AssertionError):
        builder.feed(ends(0))
    builder.start()
    with pytest.raises(AssertionError):
        builder.start()
    builder.feed(ends(0))
    with pytest.raises(AssertionError, match="ends twice"):
        builder.feed(ends(0))
    with pytest.raises(AssertionError, match="goes on"):
        builder.feed(TextDelta(0, "a", (1,)))
    builder.feed(ends(1))
    builder.end()
    with pytest.raises(AssertionError):
        builder.end()


def test_a_stream_cannot_end_before_its_choices() -> None:  # FAN-19
    builder = ChunkBuilder(head("chat", n=2), include_usage=False, continuous_usage=False)
    builder.start()
    builder.feed(ends(0))
    with pytest.raises(AssertionError, match="1 choices have not finished"):
        builder.end()


def test_a_builder_tells_how_far_it_is() -> None:
    builder = ChunkBuilder(head("chat", n=2), include_usage=False, continuous_usage=False)
    builder.start()
    builder.feed(ends(0))
    assert "id-1: 1 of 2 choices live" in repr(builder)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Head, list[Event]]:
    """The head and the events of a request, its choices interleaved at random."""
    kind: Kind = draw(st.sampled_from(["chat", "completion"]))
    n = draw(st.integers(1, 3))
    prompt_tokens = (4,) if kind == "chat" else draw(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
    echo = draw(st.booleans()) and kind == "completion"
    texts = tuple(draw(st.text(max_size=3)) for _ in prompt_tokens) if echo else ()
    events: list[Event] = []
    live = dict.fromkeys(range(n * len(prompt_tokens)), 0)
    while live:
        index = draw(st.sampled_from(list(live)))
        if draw(st.booleans()):
            ids = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
            live[index] += len(ids)
            events.append(TextDelta(index, draw(st.text(max_size=4)), ids))
        else:
            shared = 0 if index % n == 0 else prompt_tokens[index // n]
            usage = ChoiceUsage(live.pop(index), draw(st.integers(0, 4)) if shared == 0 else 0, shared)
            reason: FinishReason = draw(st.sampled_from(["stop", "length"]))
            events.append(ChoiceFinished(index, reason, usage, draw(st.integers(-(2**63), 2**63 - 1))))
    return head(kind, n, prompt_tokens, texts), events


@settings(max_examples=150, deadline=None)
@given(requests(), st.sampled_from([(False, False), (True, False), (True, True)]))
def test_a_stream_put_together_is_the_answer(request: tuple[Head, list[Event]], usage: tuple[bool, bool]) -> None:
    # FAN-16, FAN-18, FAN-19, FAN-20, FAN-21, FAN-22
    head, events = request
    builder = AnswerBuilder(head)
    for event in events:
        builder.feed(event)
    answer = json.loads(builder.answer())
    data = stream(head, events, include_usage=usage[0], continuous_usage=usage[1])
    put_together, total = put_together_as_a_client_does(chunks(data))
    assert put_together == answer["choices"]
    assert total == (answer["usage"] if usage[0] else None)


def put_together_as_a_client_does(written: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], object]:
    """The choices and the usage of a stream, checking the order of its chunks on the way."""
    choices: dict[int, dict[str, Any]] = {}
    total = None
    for chunk in written:
        assert total is None, "nothing follows the usage"
        if not chunk["choices"]:
            total = chunk["usage"]
            continue
        (choice,) = chunk["choices"]
        index = choice["index"]
        known = choices.get(index)
        if "delta" in choice:
            if known is None:
                assert choice["delta"] == {"role": "assistant", "content": ""}
                known = {"index": index, "message": {"role": "assistant", "content": "", "refusal": None}}
            else:
                assert choice["delta"].keys() <= {"content"}
                known["message"]["content"] += choice["delta"].get("content", "")
        else:
            known = known or {"index": index, "text": ""}
            known["text"] += choice["text"]
        assert known.get("finish_reason") is None, "nothing follows the end of a choice"
        if choice["finish_reason"] is not None:
            assert not choice.get("text")
            assert not choice.get("delta")
        choices[index] = {**known, **{key: choice[key] for key in choice if key not in ("delta", "text", "index")}}
    assert all(choice["finish_reason"] for choice in choices.values())
    return [choices[index] for index in sorted(choices)], total


def test_a_ping_is_a_comment_in_a_frame_of_its_own() -> None:  # FAN-20; case mid-stream-error-visible
    assert PING.startswith(b":")
    assert PING.endswith(b"\n\n")
    assert PING.count(b"\n") == 2


def test_an_error_event_is_the_error_and_the_end() -> None:  # FAN-28; case mid-stream-error-visible
    message = "no\nluck"
    (event,) = chunks(error_event(ChoiceFailedError(message, "id-1", 0)))
    assert event == {"error": {"message": message, "type": "server_error", "param": None, "code": "generation_failed"}}
