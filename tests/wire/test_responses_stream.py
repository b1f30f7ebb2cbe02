"""Responses, whole and streamed, as OpenAI's client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from trioserve.errors import ChoiceFailedError, EngineStoppingError, TrioserveError
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
from trioserve.params import Limits
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.wire.responses.answer import ResponseBuilder
from trioserve.wire.responses.decode import parse_response
from trioserve.wire.responses.shapes import Shapes
from trioserve.wire.responses.stream import ResponseStreamBuilder
from trioserve.wire.tally import Head
from trioserve.wire.token_texts import TokenTexts

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
REPEATED = parse_response(
    b'{"model":"tiny","input":"hi","metadata":{"a":"b"},"user":"u","top_p":0.5,"instructions":"be brief"}', Limits()
).repeated


def head(n: int = 1) -> Head:
    return Head(kind="response", id="resp_abc", created=1700000000, model="tiny", n=n, prompt_tokens=(5,))


def shapes(of: Head) -> Shapes:
    return Shapes(of, REPEATED, temperature=0.7, top_p=0.5, texts=TokenTexts(ByteTokenizer()), top=2)


def ends(index: int, reason: FinishReason = "stop", **usage: int) -> ChoiceFinished:
    return ChoiceFinished(index, reason, ChoiceUsage(**{"completion_tokens": 1, **usage}), seed=index + 7)


def whole(of: Head, events: Iterable[Event]) -> Any:
    builder = ResponseBuilder(of, shapes(of))
    for event in events:
        builder.feed(event)
    return json.loads(builder.answer())


def frames(data: bytes) -> list[Any]:
    """What a strict reader of server-sent events finds: a name and one line of data in each frame."""
    *parts, rest = data.decode().split("\n\n")
    assert rest == ""
    found = []
    for part in parts:
        name, line = part.splitlines()
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def stream(of: Head, events: Iterable[Event]) -> list[Any]:
    builder = ResponseStreamBuilder(of, shapes(of))
    return frames(b"".join([builder.start(), *map(builder.feed, events), builder.end()]))


CONVERSATION: list[Event] = [
    PromptScored(0, (1,), (None,)),
    ReasoningDelta(0, "hm", (104, 109)),
    TextDelta(0, "", ()),
    TextDelta(0, "let", (108,), (TokenLogprob(108, -0.5, ((108, -0.5), (97, -1.5))),)),
    TextDelta(0, " me", (109,)),
    ToolCallDelta(0, 0, "call-1", "f", "", ()),
    ToolCallDelta(0, 0, None, None, '{"a":', (1,)),
    ToolCallDelta(0, 0, None, None, "1}", (1,)),
    ToolCallDelta(0, 1, "call-2", "g", "{}", (1,)),
    ends(0, "tool_calls", completion_tokens=9, cached_tokens=4, reasoning_tokens=2),
]


def test_a_stream_has_its_events_in_order() -> None:
    events = stream(head(), CONVERSATION)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *["created", "in_progress"],
        *["output_item.added", "content_part.added", "reasoning_text.delta"],
        *["reasoning_text.done", "content_part.done", "output_item.done"],
        *["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"],
        *["output_text.done", "content_part.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"],
        *["function_call_arguments.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    for event in events:
        EVENTS.validate_python(event)
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1, 2, 3]


def test_a_stream_of_one_choice_ends_with_the_whole_response() -> None:  # FAN-5, FAN-22
    answer = whole(head(), CONVERSATION)
    assert stream(head(), CONVERSATION)[-1]["response"] == answer
    response = Response.model_validate(answer)
    assert (response.id, response.status, response.output_text) == ("resp_abc", "completed", "let me")
    thought, message, first, second = response.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "hm"
    assert message.type == "message"
    assert first.type == second.type == "function_call"
    assert (first.call_id, first.name, first.arguments) == ("call-1", "f", '{"a":1}')
    assert (second.call_id, second.name, second.arguments) == ("call-2", "g", "{}")
    assert len({item.id for item in response.output}) == 4
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (5, 4)
    assert (response.usage.output_tokens, response.usage.output_tokens_details.reasoning_tokens) == (9, 2)
    assert response.usage.total_tokens == 14
    assert (response.temperature, response.top_p, response.metadata) == (0.7, 0.5, {"a": "b"})
    assert (response.user, response.instructions, response.truncation) == ("u", "be brief", "disabled")


def test_log_probabilities_stand_with_the_text() -> None:
    _, message, *_ = whole(head(), CONVERSATION)["output"]
    token = {"token": "l", "bytes": [108], "logprob": -0.5}
    other = {"token": "a", "bytes": [97], "logprob": -1.5}
    assert message["content"][0]["logprobs"] == [{**token, "top_logprobs": [token, other]}]
    deltas = [event for event in stream(head(), CONVERSATION) if event["type"] == "response.output_text.delta"]
    assert [event["logprobs"] for event in deltas] == [[{**token, "top_logprobs": [token, other]}], []]


def test_every_choice_has_items_of_its_own_and_its_end() -> None:  # FAN-16, FAN-17, FAN-18, FAN-21
    events: list[Event] = [
        TextDelta(1, "b", (1,)),
        TextDelta(0, "a", (1,)),
        ToolCallDelta(1, 0, "c", "f", "{}", (1,)),
        ends(1, "tool_calls", completion_tokens=3, shared_tokens=5),
        ends(2, completion_tokens=1, shared_tokens=5),
        ends(0, completion_tokens=2, cached_tokens=4),
    ]
    answer = whole(head(n=3), events)
    assert [(item["choice"], item["type"]) for item in answer["output"]] == [
        (0, "message"),
        (1, "message"),
        (1, "function_call"),
        (2, "message"),
    ]
    assert answer["output"][3]["content"][0]["text"] == ""
    assert [(each["index"], each["finish_reason"], each["seed"]) for each in answer["choices"]] == [
        (0, "stop", 7),
        (1, "tool_calls", 8),
        (2, "stop", 9),
    ]
    assert (
        sum(each["usage"]["completion_tokens"] for each in answer["choices"]) == answer["usage"]["output_tokens"] == 6
    )
    streamed = stream(head(n=3), events)
    last = streamed[-1]["response"]
    assert [item["choice"] for item in last["output"]] == [1, 0, 1, 2]
    added = [event["item"] for event in streamed if event["type"] == "response.output_item.added"]
    assert [(item["id"], item["choice"]) for item in added] == [(item["id"], item["choice"]) for item in last["output"]]
    assert {**last, "output": None} == {**answer, "output": None}


@pytest.mark.parametrize(
    ("reasons", "status", "kind"),
    [
        (["stop"], "completed", "completed"),
        (["tool_calls"], "completed", "completed"),
        (["length"], "incomplete", "incomplete"),
        (["stop", "length"], "incomplete", "incomplete"),
        (["stop", "cancelled"], "completed", "completed"),
        (["stop", "error"], "completed", "completed"),
        (["cancelled"], "cancelled", "incomplete"),
        (["cancelled", "error"], "cancelled", "incomplete"),
    ],
)
def test_the_status_is_that_of_all_choices(reasons: list[FinishReason], status: str, kind: str) -> None:
    events: list[Event] = [ends(j, reason) for j, reason in enumerate(reasons)]
    last = stream(head(n=len(reasons)), events)[-1]
    assert (last["type"], last["response"]["status"]) == (f"response.{kind}", status)
    expected = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert last["response"]["incomplete_details"] == expected
    EVENTS.validate_python(last)
    items = [item["status"] for item in last["response"]["output"]]
    assert items == ["completed" if reason in ("stop", "tool_calls") else "incomplete" for reason in reasons]


def test_a_choice_that_failed_alone_says_what_went_wrong() -> None:  # FAN-24
    failed = ChoiceFinished(1, "error", ChoiceUsage(1), seed=1, error="The parser failed.")
    answer = whole(head(n=2), [ends(0), failed])
    assert "error" not in answer["choices"][0]
    assert answer["choices"][1]["error"]["message"] == "The parser failed."
    assert answer["error"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(ChoiceFailedError("The parser failed.", "resp_abc", 0), "server_error"), (EngineStoppingError(), "server_error")],
)
def test_a_stream_that_fails_half_way_says_so_and_ends(error: TrioserveError, code: str) -> None:  # FAN-28
    builder = ResponseStreamBuilder(head(), shapes(head()))
    *_, last = frames(builder.start() + builder.feed(TextDelta(0, "a", (1,))) + builder.fail(error))
    assert last["type"] == "response.failed"
    response = EVENTS.validate_python(last).response
    assert (response.status, response.error.code, response.error.message) == ("failed", code, str(error))
    assert response.output[0].content[0].text == "a"
    assert response.output[0].status == "in_progress"


said = st.sampled_from(
    [
        *[TextDelta(0, "a", (1,)), TextDelta(0, "\u2028", (1,)), ReasoningDelta(0, "b", (1,))],
        *[TextDelta(1, "c", (1,)), ReasoningDelta(1, "d\n\n", (1,)), TextDelta(1, "", (1,))],
        ToolCallDelta(1, 0, "call-1", "f", "{}", (1,)),
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(said, max_size=8))
def test_the_client_puts_together_what_the_last_event_says(deltas: list[Event]) -> None:
    """OpenAI's accumulator checks the order of events and the identity of items, and has the same in the end."""
    if sum(isinstance(event, ToolCallDelta) for event in deltas) > 1:
        return
    events = stream(head(n=2), [*deltas, ends(0), ends(1)])
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        state.handle_event(construct_type_unchecked(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]
    final = events[-1]["response"]["output"]
    snapshot = [state._output_items[index] for index in range(len(final))]
    for item, last in zip(snapshot, final, strict=True):
        assert item.id == last["id"]
        if item.type == "message":
            assert item.content[0].text == last["content"][0]["text"]
        elif item.type == "function_call":
            assert item.arguments == last["arguments"]
