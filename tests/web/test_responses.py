"""/v1/responses: the whole server but its sockets and its model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.server import FakeServer, serving
from trioserve.testing.tokenizer import BrokenTokenizer

PATH = "/v1/responses"
Frames = Callable[[bytes], list[Any]]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def stream(server: FakeServer, frames: Frames, **fields: Any) -> list[Any]:
    response = await server.post(PATH, input="hi", stream=True, **fields)
    assert response.status == 200, response.body
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames(response.body)


async def test_a_response_has_an_item_for_each_choice() -> None:  # FAN-1, FAN-16, FAN-17, FAN-21
    async with serving(say(["red", "green", "blue"])) as server:
        answer = await server.whole(PATH, input="hi", n=3, temperature=1, instructions="be brief")
        await server.assert_idle()
    response = Response.model_validate(answer)
    assert response.id.startswith("resp_")
    assert (response.object, response.model, response.status) == ("response", "tiny-chat", "completed")
    assert [(item["choice"], item["content"][0]["text"]) for item in answer["output"]] == [
        (0, "red"),
        (1, "green"),
        (2, "blue"),
    ]
    assert [choice["seed"] for choice in answer["choices"]] == [0, 1, 2]
    prompt = len("system: be brief\nuser: hi\nassistant: ") + 3
    assert answer["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": len("redgreenblue") + 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + len("redgreenblue") + 3,
    }


async def test_a_stream_says_the_same_as_the_whole_response(frames: Frames) -> None:  # FAN-5, FAN-22
    async with serving(say(["red", "gr\xfcn", ""])) as server:
        for n in (1, 3):
            whole = await server.whole(PATH, input="hi", n=n, seed=0)
            events = await stream(server, frames, n=n, seed=0)
            for event in events:
                EVENTS.validate_python(event)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            last = events[-1]["response"]
            texts: dict[int, str] = {}
            choices = {}
            for event in events:
                if event["type"] == "response.output_item.added":
                    choices[event["output_index"]] = event["item"]["choice"]
                elif event["type"] == "response.output_text.delta":
                    choice = choices[event["output_index"]]
                    texts[choice] = texts.get(choice, "") + event["delta"]
            wanted = {item["choice"]: item["content"][0]["text"] for item in whole["output"]}
            assert {**dict.fromkeys(range(n), ""), **texts} == wanted
            assert {item["choice"]: item["content"] for item in last["output"]} == {
                item["choice"]: item["content"] for item in whole["output"]
            }
            assert last["choices"] == [
                {
                    **choice,
                    "usage": {
                        **choice["usage"],
                        "cached_tokens": last["choices"][0]["usage"]["cached_tokens"] * (choice["index"] == 0),
                    },
                }
                for choice in whole["choices"]
            ]
        await server.assert_idle()


async def test_an_answer_of_the_most_tokens_is_incomplete(frames: Frames) -> None:
    async with serving() as server:
        answer = await server.whole(PATH, input="hi", max_output_tokens=3)
        *_, last = await stream(server, frames, max_output_tokens=3)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert answer["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"n": 129}, 400, None, "n"),
        ({"input": None}, 400, None, "input"),
        ({"previous_response_id": "resp_1"}, 400, None, "previous_response_id"),
        ({"input": "x " * 5000}, 400, "context_length_exceeded", "input"),
        ({"max_output_tokens": 10**6}, 400, "context_length_exceeded", "max_output_tokens"),
    ],
)
async def test_a_refusal_is_the_same_streamed_or_not(
    fields: dict[str, Any], status: int, code: str | None, param: str
) -> None:
    async with serving() as server:
        bodies = []
        for streamed in (False, True):
            response = await server.post(PATH, **{"input": "hi", "stream": streamed, **fields})
            assert (response.status, response.headers["content-type"]) == (status, "application/json")
            bodies.append(json.loads(response.body))
        assert bodies[0] == bodies[1]
        assert (bodies[0]["error"]["code"], bodies[0]["error"]["param"]) == (code, param)
        assert server.device.plans == []
        await server.assert_idle()


async def test_a_failure_half_way_is_an_event_of_the_stream(frames: Frames) -> None:  # FAN-23, FAN-28
    async with serving(say(["red", "grx"]), tokenizer=BrokenTokenizer()) as server:
        response = await server.post(PATH, input="hi", n=2)
        assert response.status == 500
        assert "no x please" in json.loads(response.body)["error"]["message"]
        events = await stream(server, frames, n=2, seed=0)
        assert events[-1]["type"] == "response.failed"
        EVENTS.validate_python(events[-1])
        assert "no x please" in events[-1]["response"]["error"]["message"]
        await server.assert_idle()


async def test_a_choice_may_fail_alone() -> None:  # FAN-24
    async with serving(say(["red", "grx"]), tokenizer=BrokenTokenizer()) as server:
        answer = await server.whole(PATH, input="hi", n=2, choice_errors="isolate")
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert "no x please" in answer["choices"][1]["error"]["message"]


async def test_a_client_that_leaves_ends_every_choice() -> None:  # FAN-25
    async with serving() as server:
        async with server.open(PATH, input="hi", n=4, stream=True) as exchange:
            await exchange.receive()
            assert server.engine.statistics().requests == 1
        await server.assert_idle()
        assert [access.status for access in server.accesses] == [499]


async def test_a_response_can_be_cancelled_by_its_id(frames: Frames) -> None:  # FAN-34
    async with serving() as server:
        async with server.open(PATH, input="hi", stream=True) as exchange:
            first = frames(await exchange.receive())[0]
            cancelled = await server.client.request("DELETE", f"/v1/requests/{first['response']['id']}")
            assert cancelled.status == 200
            rest = frames((await exchange.response()).body)
        assert rest[-1]["response"]["status"] == "cancelled"
        assert rest[-1]["response"]["choices"][0]["finish_reason"] == "cancelled"


async def test_a_long_silence_is_filled(autojump_clock: trio.abc.Clock) -> None:  # FAN-20
    async with serving(step_seconds=40.0) as server:
        response = await server.post(PATH, input="hi", max_output_tokens=1, stream=True)
    assert response.body.count(b": ping\n\n") == 2


FUNCTION = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
THINKING = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
WORK = '<think>hm</think>See.\n<tool_call>\n{"name": "f", "arguments": {"q":"b"}}\n</tool_call>'


async def test_thoughts_texts_and_calls_are_items_of_their_own(frames: Frames) -> None:
    async with serving(say([WORK, "<think>so</think>No."]), options=THINKING) as server:
        answer = await server.whole(PATH, input="hi", n=2, tools=[FUNCTION], seed=0)
        events = await stream(server, frames, n=2, tools=[FUNCTION], seed=0)
    Response.model_validate(answer)
    assert [(item["choice"], item["type"]) for item in answer["output"]] == [
        (0, "reasoning"),
        (0, "message"),
        (0, "function_call"),
        (1, "reasoning"),
        (1, "message"),
    ]
    thought, text, call, *_ = answer["output"]
    assert (thought["content"][0]["text"], text["content"][0]["text"].strip()) == ("hm", "See.")
    assert (call["name"], json.loads(call["arguments"])) == ("f", {"q": "b"})
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert (answer["tools"][0]["name"], answer["tool_choice"], answer["parallel_tool_calls"]) == ("f", "auto", True)
    for event in events:
        EVENTS.validate_python(event)
    streamed = sorted(events[-1]["response"]["output"], key=lambda item: item["choice"])
    plain = [{**item, "id": None, "call_id": None} for item in answer["output"]]
    assert [{**item, "id": None, "call_id": None} for item in streamed] == plain


async def test_a_turn_with_a_tool_goes_on_from_the_output_as_it_is() -> None:
    async with serving(say(WORK), options=THINKING) as server:
        first = await server.whole(PATH, input="hi", tools=[FUNCTION])
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
        given = [{"role": "user", "content": "hi"}, *first["output"], result]
        second = await server.whole(PATH, input=given, tools=[FUNCTION])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


UNENFORCEABLE = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": UNENFORCEABLE}}}, "text.format"),
        ({"tools": [{**FUNCTION, "parameters": UNENFORCEABLE}], "tool_choice": "required"}, "tools.0.parameters"),
    ],
)
async def test_what_the_engine_refuses_has_the_name_that_the_request_gave_it(
    fields: dict[str, Any], param: str
) -> None:
    async with serving(say("x")) as server:
        response = await server.post(PATH, input="hi", **fields)
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, param)


async def test_every_choice_is_held_to_the_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    async with serving() as server:
        answer = await server.whole(PATH, input="hi", n=3, text={"format": form})
    assert answer["text"] == {"format": {**form, "description": None}}
    said = [json.loads(item["content"][0]["text"]) for item in answer["output"]]
    assert [each in ({"a": 1}, {"a": 2}) for each in said] == [True] * 3


async def test_log_probabilities_are_those_of_a_chat() -> None:
    fields = {"seed": 0, "max_tokens": 4}
    async with serving() as server:
        chat = await server.chat(logprobs=True, top_logprobs=2, **fields)
        answer = await server.whole(
            PATH, input="hi", include=["message.output_text.logprobs"], top_logprobs=2, seed=0, max_output_tokens=4
        )
    assert answer["output"][0]["content"][0]["logprobs"] == chat["choices"][0]["logprobs"]["content"]
    assert answer["top_logprobs"] == 2
