"""Messages, whole and streamed, against the shapes that Anthropic's client has for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from trioserve.errors import (
    ChoiceFailedError,
    ContextLengthError,
    EngineStoppingError,
    ModelNotFoundError,
    ParamError,
    QueueFullError,
)
from trioserve.events import (
    ChoiceFinished,
    ChoiceUsage,
    Event,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from trioserve.wire.anthropic.answer import MessageBuilder, count_body
from trioserve.wire.anthropic.errors import error_body, http_error_body
from trioserve.wire.anthropic.stream import MessageStreamBuilder
from trioserve.wire.tally import Head

# ---- the shapes, after anthropic.types


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


Block = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class OutputTokensDetails(BaseModel):
    thinking_tokens: int


class Usage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class Message(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


class MessageStart(BaseModel):
    type: Literal["message_start"]
    message: Message


class BlockStart(BaseModel):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextPiece(BaseModel):
    type: Literal["text_delta"]
    text: str


class ThinkingPiece(BaseModel):
    type: Literal["thinking_delta"]
    thinking: str


class InputPiece(BaseModel):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(BaseModel):
    type: Literal["content_block_delta"]
    index: int
    delta: TextPiece | ThinkingPiece | InputPiece


class BlockStop(BaseModel):
    type: Literal["content_block_stop"]
    index: int


class Stop(BaseModel):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(BaseModel):
    type: Literal["message_delta"]
    delta: Stop
    usage: Usage


class Bare(BaseModel):
    type: Literal["ping", "message_stop"]


class ErrorFields(BaseModel):
    type: str
    message: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    type: Literal["error"]
    error: ErrorFields


class AnyEvent(BaseModel):
    event: MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | Bare | ErrorBody = Field(
        discriminator="type"
    )


EVENTS = TypeAdapter(AnyEvent)


def head(n: int = 1) -> Head:
    return Head(kind="message", id="msg_1", created=1700000000, model="tiny", n=n, prompt_tokens=(5,))


def ends(index: int, reason: FinishReason = "stop", stop: str | int | None = None, **usage: int) -> ChoiceFinished:
    return ChoiceFinished(index, reason, ChoiceUsage(**{"completion_tokens": 1, **usage}), seed=index + 7, stop=stop)


def whole(of: Head, events: Iterable[Event]) -> Any:
    builder = MessageBuilder(of)
    for event in events:
        builder.feed(event)
    return json.loads(builder.answer())


def frames(data: bytes) -> list[Any]:
    *parts, rest = data.decode().split("\n\n")
    assert rest == ""
    found = []
    for part in parts:
        name, line = part.splitlines()
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENTS.validate_python({"event": found[-1]}, strict=True)
    return found


def stream(of: Head, events: Iterable[Event]) -> list[Any]:
    builder = MessageStreamBuilder(of)
    return frames(b"".join([builder.start(), *map(builder.feed, events), builder.end()]))


def put_together(events: list[Any]) -> Any:
    """The message that a client has in the end: what it starts with, and all that is told of it after."""
    first, *rest = events
    message = first["message"]
    arguments: dict[int, str] = {}
    for event in rest:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                (name,) = set(delta) - {"type"}
                block[name] += delta[name]
        elif event["type"] == "content_block_stop" and event["index"] in arguments:
            message["content"][event["index"]]["input"] = json.loads(arguments[event["index"]])
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"], "choices": event["choices"]}
    return message


CONVERSATION: list[Event] = [
    PromptScored(0, (1,), (None,)),
    ReasoningDelta(0, "hm", (104, 109)),
    TextDelta(0, "let", (108,)),
    TextDelta(0, " me", (109,)),
    TextDelta(0, "", (109,), (TokenLogprob(109, -1.0),)),
    ToolCallDelta(0, 0, "call-1", "f", "", ()),
    ToolCallDelta(0, 0, None, None, '{"a":', (1,)),
    ToolCallDelta(0, 0, None, None, "1}", (1,)),
    ToolCallDelta(0, 1, "call-2", "g", "", ()),
    ends(0, "tool_calls", completion_tokens=9, cached_tokens=4, reasoning_tokens=2),
]


def test_a_message() -> None:
    answer = whole(head(), CONVERSATION)
    Message.model_validate(answer, strict=True)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "", "choice": 0},
        {"type": "text", "text": "let me", "citations": None, "choice": 0},
        {"type": "tool_use", "id": "call-1", "name": "f", "input": {"a": 1}, "choice": 0},
        {"type": "tool_use", "id": "call-2", "name": "g", "input": {}, "choice": 0},
    ]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    assert answer["usage"] == {
        "input_tokens": 1,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["seed"]) == (0, "tool_calls", 7)


def test_a_stream_has_its_events_in_order() -> None:
    events = stream(head(), CONVERSATION)
    assert [event["type"] for event in events] == [
        *["message_start", "ping"],
        *["content_block_start", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_stop"],
        *["message_delta", "message_stop"],
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 5


said = st.sampled_from(
    [
        *[TextDelta(0, "a", (1,)), TextDelta(0, "\u2028", (1,)), ReasoningDelta(0, "b", (1,))],
        *[ReasoningDelta(0, "d\n\n", (1,)), TextDelta(0, "", (1,))],
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(said, max_size=6), st.integers(0, 6))
def test_a_stream_put_together_is_the_message(deltas: list[Event], at: int) -> None:  # FAN-22
    call = [ToolCallDelta(0, 0, "c", "f", '{"a"', (1,)), ToolCallDelta(0, 0, None, None, ":1}", (1,))]
    events = [*deltas[:at], *call, *deltas[at:], ends(0, cached_tokens=2)]
    assert put_together(stream(head(), events)) == whole(head(), events)


def test_every_choice_has_blocks_of_its_own_and_its_end() -> None:  # FAN-16, FAN-17, FAN-18, FAN-21
    events: list[Event] = [
        TextDelta(1, "b", (1,)),
        TextDelta(0, "a", (1,)),
        ToolCallDelta(1, 0, "c", "f", "{}", (1,)),
        TextDelta(0, "c", (1,)),
        ends(1, "tool_calls", completion_tokens=3, shared_tokens=5),
        ends(0, completion_tokens=2, cached_tokens=4),
    ]
    answer = whole(head(n=2), events)
    assert [(block["choice"], block["type"]) for block in answer["content"]] == [
        (0, "text"),
        (1, "text"),
        (1, "tool_use"),
    ]
    assert answer["content"][0]["text"] == "ac"
    assert answer["stop_reason"] == "end_turn"
    assert [(each["index"], each["finish_reason"], each["seed"]) for each in answer["choices"]] == [
        (0, "stop", 7),
        (1, "tool_calls", 8),
    ]
    assert answer["usage"]["output_tokens"] == 5
    streamed = put_together(stream(head(n=2), events))
    assert [block["choice"] for block in streamed["content"]] == [1, 0, 1]
    assert {**streamed, "content": None} == {**answer, "content": None}


@pytest.mark.parametrize(
    ("reason", "stop", "stop_reason", "stop_sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", 256, "end_turn", None),
        ("stop", "###", "stop_sequence", "###"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("cancelled", None, None, None),
        ("error", None, None, None),
    ],
)
def test_the_reason_of_the_end(
    reason: FinishReason, stop: str | int | None, stop_reason: str | None, stop_sequence: str | None
) -> None:
    events: list[Event] = [ends(0, reason, stop)]
    answer = whole(head(), events)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (stop_reason, stop_sequence)
    delta = stream(head(), events)[-2]["delta"]
    assert delta == {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    assert answer["choices"][0]["finish_reason"] == reason


def test_a_choice_that_says_nothing_has_an_empty_text() -> None:
    assert [block["text"] for block in whole(head(), [ends(0)])["content"]] == [""]


@pytest.mark.parametrize("arguments", ["oops", "[1]", '{"a":'])
def test_arguments_that_are_no_object_are_given_inside_one(arguments: str) -> None:
    (block,) = whole(head(), [ToolCallDelta(0, 0, "c", "f", arguments, (1,)), ends(0)])["content"]
    assert block["input"] == {"arguments": arguments}


def test_a_stream_that_fails_half_way_says_so_and_ends() -> None:  # FAN-28
    builder = MessageStreamBuilder(head())
    error = ChoiceFailedError("The parser failed.", "msg_1", 0)
    *_, last = frames(builder.start() + builder.feed(TextDelta(0, "a", (1,))) + builder.fail(error))
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "The parser failed.", "param": None, "code": "generation_failed"},
    }


def test_a_long_silence_is_filled_with_a_ping() -> None:
    assert frames(MessageStreamBuilder(head()).ping()) == [{"type": "ping"}]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ParamError("No.", "top_p"), 400, "invalid_request_error"),
        (ContextLengthError(10, 20, "messages"), 400, "invalid_request_error"),
        (ModelNotFoundError("x", ("y",)), 404, "not_found_error"),
        (QueueFullError("Full."), 429, "rate_limit_error"),
        (EngineStoppingError(), 503, "overloaded_error"),
        (ValueError("secret"), 500, "api_error"),
    ],
)
def test_an_error_has_the_envelope_and_the_words_of_that_api(error: Exception, status: int, kind: str) -> None:
    found, body = error_body(error)
    fields = ErrorBody.model_validate_json(body, strict=True).error
    assert (found, fields.type) == (status, kind)
    assert fields.param == getattr(error, "param", None)
    assert "secret" not in fields.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (500, "api_error"),
    ],
)
def test_an_error_of_http_has_them_too(status: int, kind: str) -> None:
    fields = ErrorBody.model_validate_json(http_error_body(status, "No."), strict=True).error
    assert (fields.type, fields.message) == (kind, "No.")


def test_a_count() -> None:
    assert count_body(7) == b'{"input_tokens":7}'
