"""/v1/messages: the whole server but its sockets and its model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from trioserve.testing.engine import FAKE_OPTIONS, FAKE_TEMPLATE, say
from trioserve.testing.server import SERVE_OPTIONS, FakeServer, serving
from trioserve.testing.tokenizer import BrokenTokenizer
from trioserve.web.auth import ApiKeys

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("user: hi\nassistant: ") + 2
Frames = Callable[[bytes], list[Any]]


async def ask(server: FakeServer, **fields: Any) -> Any:
    return await server.whole(PATH, **{"messages": HI, "max_tokens": 50, **fields})


async def stream(server: FakeServer, frames: Frames, **fields: Any) -> list[Any]:
    response = await server.post(PATH, **{"messages": HI, "max_tokens": 50, "stream": True, **fields})
    assert response.status == 200, response.body
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames(response.body)


async def test_a_message() -> None:
    async with serving(say("red")) as server:
        answer = await ask(server, system="be brief")
        await server.assert_idle()
    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny-chat")
    assert [block["text"] for block in answer["content"]] == ["red"]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["input_tokens"] == PROMPT_TOKENS + len("system: be brief\n") + 1
    assert answer["usage"]["output_tokens"] == 4


async def test_n_answers_are_blocks_of_one_message() -> None:
    async with serving(say(["red", "green", "blue"])) as server:
        answer = await ask(server, n=3)
    assert [(block["choice"], block["text"]) for block in answer["content"]] == [(0, "red"), (1, "green"), (2, "blue")]
    assert [choice["seed"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["input_tokens"] == PROMPT_TOKENS
    assert sum(choice["usage"]["completion_tokens"] for choice in answer["choices"]) == answer["usage"]["output_tokens"]


async def test_a_stream_says_the_same_as_the_whole_message(frames: Frames) -> None:  # FAN-5, FAN-22
    async with serving(say(["red", "gr\xfcn", ""])) as server:
        for n in (1, 3):
            whole = await ask(server, n=n, seed=0)
            first, *events = await stream(server, frames, n=n, seed=0)
            assert first["type"] == "message_start"
            assert events[-1] == {"type": "message_stop"}
            blocks: list[Any] = []
            for event in events:
                if event["type"] == "content_block_start":
                    assert event["index"] == len(blocks)
                    blocks.append(event["content_block"])
                elif event["type"] == "content_block_delta":
                    blocks[event["index"]]["text"] += event["delta"]["text"]
            assert sorted(blocks, key=lambda block: block["choice"]) == whole["content"]
            assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "end_turn"
            assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        await server.assert_idle()


async def test_what_was_in_the_cache_is_counted_by_itself(frames: Frames) -> None:
    text = "x" * 100
    async with serving(say("red")) as server:
        first, second = [await ask(server, messages=[{"role": "user", "content": text}]) for _ in range(2)]
        *_, delta, _ = await stream(server, frames, messages=[{"role": "user", "content": text}])
    total = PROMPT_TOKENS - len("hi") + len(text)
    assert first["usage"]["input_tokens"] == total
    cached = second["usage"]["cache_read_input_tokens"]
    assert cached > 0
    assert second["usage"]["input_tokens"] == total - cached
    assert (delta["usage"]["input_tokens"], delta["usage"]["cache_read_input_tokens"]) == (total - cached, cached)


async def test_why_a_message_ended(frames: Frames) -> None:
    async with serving(say("red, green")) as server:
        for fields, reason, sequence in (
            ({"max_tokens": 3}, "max_tokens", None),
            ({"stop_sequences": ["en", ","]}, "stop_sequence", ","),
            ({}, "end_turn", None),
        ):
            answer = await ask(server, **fields)
            assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
            *_, delta, _ = await stream(server, frames, **fields)
            assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_the_tokens_of_a_prompt_are_counted_without_any_being_computed() -> None:
    async with serving() as server:
        assert await server.whole(COUNT, messages=HI) == {"input_tokens": PROMPT_TOKENS}
        assert server.device.plans == []
        answer = await ask(server, max_tokens=1)
        assert answer["usage"]["input_tokens"] == PROMPT_TOKENS
        # a client asks because it wants to know whether a prompt fits
        count = await server.whole(COUNT, messages=[{"role": "user", "content": "x" * 9000}])
        assert count == {"input_tokens": PROMPT_TOKENS - len("hi") + 9000}


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind", "param"),
    [
        (PATH, {"model": "nope"}, 404, "not_found_error", "model"),
        (PATH, {"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        (PATH, {"n": 129}, 400, "invalid_request_error", "n"),
        (PATH, {"messages": [{"role": "user", "content": "x " * 5000}]}, 400, "invalid_request_error", "messages"),
        (PATH, {"max_tokens": 10**6}, 400, "invalid_request_error", "max_tokens"),
        (PATH, {"messages": [{"role": "user", "content": "x" * 200_000}]}, 413, "request_too_large", None),
        (COUNT, {}, 400, "invalid_request_error", "max_tokens"),
        (f"{PATH}/batches", {}, 404, "not_found_error", None),
    ],
)
async def test_a_refusal_has_the_envelope_of_that_api(
    path: str, fields: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    async with serving() as server:
        for streaming in ({}, {"stream": True}) if path == PATH else ({},):
            response = await server.post(path, **{"messages": HI, "max_tokens": 5, **streaming, **fields})
            assert (response.status, response.headers["content-type"]) == (status, "application/json")
            body = json.loads(response.body)
            assert (body["type"], body["error"]["type"], body["error"]["param"]) == ("error", kind, param)
            assert response.headers["request-id"]
        await server.assert_idle()


async def test_a_wrong_method_and_a_bug_have_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        response = await server.client.request("GET", PATH)
        assert (response.status, json.loads(response.body)["error"]["type"]) == (405, "invalid_request_error")

        async def fail(*args: object, **settings: object) -> None:
            raise KeyError("secret")

        monkeypatch.setattr(server.engine, "prepare_chat", fail)
        response = await server.post(PATH, messages=HI, max_tokens=5)
    body = json.loads(response.body)
    assert (response.status, body["type"], body["error"]["type"]) == (500, "error", "api_error")
    assert b"secret" not in response.body


async def test_a_full_queue_is_a_rate_limit() -> None:  # FAN-10
    async with serving(options=attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=1)) as server:
        response = await server.post(PATH, messages=HI, max_tokens=5, n=5)
    assert (response.status, json.loads(response.body)["error"]["type"]) == (429, "rate_limit_error")
    assert response.headers["retry-after"]


async def test_every_answer_has_an_id_of_its_request() -> None:  # FAN-12
    body = json.dumps({"model": "tiny-chat", "messages": HI, "max_tokens": 5}).encode()
    async with serving(say("red")) as server:
        given = await server.client.request("POST", PATH, body=body, headers={"x-request-id": "mine"})
        own = await server.client.request("POST", PATH, body=body, headers={"anthropic-version": "2023-06-01"})
        chat = await server.client.request("GET", "/health")
    assert given.headers["request-id"] == "mine"
    assert own.headers["request-id"].startswith("req")
    assert "request-id" not in chat.headers


async def test_a_failure_half_way_is_an_event_of_the_stream(frames: Frames) -> None:  # FAN-23, FAN-28
    async with serving(say(["red", "grx"]), tokenizer=BrokenTokenizer()) as server:
        response = await server.post(PATH, messages=HI, max_tokens=9, n=2)
        assert (response.status, json.loads(response.body)["error"]["type"]) == (500, "api_error")
        *_, last = await stream(server, frames, n=2, seed=0)
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert "no x please" in last["error"]["message"]
        await server.assert_idle()


async def test_a_client_that_leaves_ends_every_choice() -> None:  # FAN-25
    async with serving() as server:
        async with server.open(PATH, messages=HI, max_tokens=3000, n=4, stream=True) as exchange:
            await exchange.receive()
            assert server.engine.statistics().requests == 1
        await server.assert_idle()
        assert [access.status for access in server.accesses] == [499]


async def test_a_long_silence_is_filled_with_pings(frames: Frames, autojump_clock: trio.abc.Clock) -> None:  # FAN-20
    async with serving(step_seconds=40.0) as server:
        events = await stream(server, frames, max_tokens=1)
    # one comes with the start
    assert [event["type"] for event in events].count("ping") == 3


TOOL = {
    "name": "f",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
THINKING = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
WORK = '<think>hm</think>See.\n<tool_call>\n{"name": "f", "arguments": {"q":"b"}}\n</tool_call>'


async def test_thoughts_texts_and_calls_are_blocks_of_their_own(frames: Frames) -> None:
    async with serving(say([WORK, "<think>so</think>No."]), options=THINKING) as server:
        answer = await ask(server, n=2, max_tokens=200, tools=[TOOL], seed=0)
        events = await stream(server, frames, n=2, max_tokens=200, tools=[TOOL], seed=0)
    assert [(block["choice"], block["type"]) for block in answer["content"]] == [
        (0, "thinking"),
        (0, "text"),
        (0, "tool_use"),
        (1, "thinking"),
        (1, "text"),
    ]
    thought, text, call, *_ = answer["content"]
    assert (thought["thinking"], text["text"].strip(), call["name"], call["input"]) == ("hm", "See.", "f", {"q": "b"})
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    begun = {event["index"]: event["content_block"] for event in events if event["type"] == "content_block_start"}
    (index,) = [index for index, block in begun.items() if block["type"] == "tool_use"]
    pieces = [event["delta"] for event in events if event.get("index") == index and "delta" in event]
    assert json.loads("".join(piece["partial_json"] for piece in pieces)) == {"q": "b"}
    assert sorted((block["choice"], block["type"]) for block in begun.values()) == sorted(
        (block["choice"], block["type"]) for block in answer["content"]
    )


async def test_a_turn_with_a_tool_goes_on_from_the_content_as_it_is() -> None:
    async with serving(say(WORK), options=THINKING) as server:
        first = await ask(server, max_tokens=200, tools=[TOOL])
        (call,) = [block for block in first["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "42"}
        turns = [*HI, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = await ask(server, max_tokens=200, tools=[TOOL], messages=turns)
        count = await server.whole(COUNT, tools=[TOOL], messages=turns)
    usage = second["usage"]
    assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_a_model_without_a_setting_for_thoughts_answers_as_ever() -> None:
    async with serving(say("red")) as server:
        for kind in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
            assert (await ask(server, thinking=kind))["content"][0]["text"] == "red"


async def test_a_model_with_a_setting_for_thoughts_is_told() -> None:
    template = FAKE_TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}at once{% endif %}"
    async with serving(say("red"), template=template) as server:
        plain, told = [
            (await server.whole(COUNT, messages=HI, thinking={"type": kind}))["input_tokens"]
            for kind in ("adaptive", "disabled")
        ]
    assert told == plain + len("at once")


async def test_what_the_engine_refuses_has_the_name_that_the_request_gave_it() -> None:
    async with serving(say("x"), options=attrs.evolve(FAKE_OPTIONS, tool_format="none")) as server:
        response = await server.post(PATH, messages=HI, max_tokens=9, tools=[TOOL])
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "tools")


async def test_a_schema_is_enforced_or_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    bad = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    async with serving() as server:
        answer = await ask(server, output_config={"format": {"type": "json_schema", "schema": schema}})
        assert json.loads(answer["content"][0]["text"]) == {"a": 1}
        response = await server.post(
            PATH, messages=HI, max_tokens=9, output_config={"format": {"type": "json_schema", "schema": bad}}
        )
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "output_config.format")


async def test_a_missing_key_is_told_in_the_envelope_of_that_api() -> None:
    guarded = attrs.evolve(SERVE_OPTIONS, api_keys=ApiKeys.of(["secret"]))
    body = json.dumps({"model": "tiny-chat", "messages": HI, "max_tokens": 5}).encode()
    async with serving(say("red"), serve_options=guarded) as server:
        refused = await server.client.request("POST", PATH, body=body)
        admitted = await server.client.request("POST", PATH, body=body, headers={"x-api-key": "secret"})
        elsewhere = await server.client.request("POST", "/v1/responses", body=body)
    assert (refused.status, json.loads(refused.body)["error"]["type"]) == (401, "authentication_error")
    assert json.loads(refused.body)["type"] == "error"
    assert admitted.status == 200
    assert "type" not in json.loads(elsewhere.body)


async def test_the_envelope_is_found_behind_a_prefix() -> None:
    prefixed = attrs.evolve(SERVE_OPTIONS, root_path="/llm")
    async with serving(serve_options=prefixed) as server:
        for path in (PATH, f"/llm{PATH}"):
            response = await server.post(path, messages=HI)
            assert (response.status, json.loads(response.body)["type"]) == (400, "error")
            assert response.headers["request-id"]


async def test_a_deadline_is_told_in_the_envelope_of_that_api(frames: Frames, autojump_clock: trio.abc.Clock) -> None:
    body = {"model": "tiny-chat", "messages": HI, "max_tokens": 3000}
    async with serving() as server:
        for stream in (False, True):
            response = await server.client.request(
                "POST", PATH, body=json.dumps({**body, "stream": stream}).encode(), headers={"x-request-timeout": "1"}
            )
            last = frames(response.body)[-1] if stream else json.loads(response.body)
            assert response.status == (200 if stream else 504)
            assert (last["type"], last["error"]["type"]) == ("error", "timeout_error")
        await server.assert_idle()
