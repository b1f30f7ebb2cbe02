"""The whole server but its sockets and its model: requests as clients write them, answers as they read them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from trioserve.engine.generation import Generation
from trioserve.errors import InternalError
from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.server import CHAT, TEXT, serving


async def test_a_chat_gives_n_answers_in_index_order_and_one_usage() -> None:  # FAN-17, FAN-21
    async with serving(say(["red", "green", "blue"])) as server:
        answer = await server.chat(n=3, temperature=1)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny-chat"
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["red", "green", "blue"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    assert answer["usage"]["completion_tokens"] == len("red") + len("green") + len("blue") + 3
    assert answer["usage"]["prompt_tokens"] == len("user: hi\nassistant: ") + 2


async def test_a_stream_has_roles_first_one_finish_each_one_usage_and_one_done() -> None:  # FAN-18, FAN-19, FAN-20
    async with serving(say(["red", "", "blue"])) as server:
        *chunks, done = await server.stream(CHAT, n=3, stream_options={"include_usage": True})
        await server.assert_idle()
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:3]] == ["assistant"] * 3
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    *chunks, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 10
    texts, finishes = {0: "", 1: "", 2: ""}, []
    for chunk in chunks:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        assert choice["index"] not in finishes
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            assert choice["delta"] == {}
            finishes.append(choice["index"])
    assert sorted(finishes) == [0, 1, 2]
    assert texts == {0: "red", 1: "", 2: "blue"}


async def test_events_of_one_step_reach_the_client_in_one_write() -> None:
    async with serving(say("abc")) as server:
        body = json.dumps({"model": "tiny-chat", "prompt": "x", "n": 8, "stream": True}).encode()
        async with server.client.open("POST", TEXT, body=body) as exchange:
            writes = [write async for write in exchange._chunks]
    with_text = [write for write in writes if b'"text":"a"' in write]
    assert len(with_text) == 1
    assert with_text[0].count(b"data: ") == 8


async def test_completions_take_texts_ids_and_lists_of_both() -> None:  # case prompt-list-index
    def repeat_last(draw: Any) -> int:
        return draw.prompt[-1] if not draw.generated else 256

    async with serving(repeat_last) as server:
        for prompt, texts in [("aa", "a"), (["aa", "bb"], "ab"), ([97, 98], "b"), ([[97], [98, 99]], "ac")]:
            response = await server.post(TEXT, prompt=prompt, echo=False)
            answer = json.loads(response.body)
            assert [choice["text"] for choice in answer["choices"]] == list(texts)
        answer = json.loads((await server.post(TEXT, prompt=["aa", "bb"], n=2, echo=True)).body)
        assert [choice["text"] for choice in answer["choices"]] == ["aaa", "aaa", "bbb", "bbb"]
        assert answer["usage"]["prompt_tokens"] == 6
        chunks = await server.stream(TEXT, prompt=["aa", "bb"], n=2)
        assert {chunk["choices"][0]["index"] for chunk in chunks[:-1]} == {0, 1, 2, 3}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "param"), [([999_999_999], "prompt"), ([[97], [97, 5000]], "prompt.1")])
async def test_ids_that_are_none_of_the_model_are_refused_with_an_echo_too(
    prompt: list[Any], param: str, stream: bool
) -> None:
    async with serving() as server:
        response = await server.post(TEXT, prompt=prompt, echo=True, stream=stream)
        assert response.status == 400
        assert json.loads(response.body)["error"]["param"] == param


async def test_a_completion_has_sixteen_tokens_unless_told_and_a_chat_runs_to_the_end() -> None:
    async with serving(context_length=64) as server:
        short = json.loads((await server.post(TEXT, prompt="x")).body)
        assert short["usage"]["completion_tokens"] == 16
        # a default is no request: it takes the room there is
        tight = json.loads((await server.post(TEXT, prompt=[1] * 60)).body)
        assert tight["usage"]["completion_tokens"] == 4
        chat = await server.chat("hi")
        assert chat["usage"]["total_tokens"] == 64


async def test_zero_tokens_of_a_completion_are_its_prompt_or_nothing() -> None:  # case max-tokens-edges
    async with serving() as server:
        empty = json.loads((await server.post(TEXT, prompt="abc", max_tokens=0)).body)
        echoed = json.loads((await server.post(TEXT, prompt="abc", max_tokens=0, echo=True)).body)
        assert (empty["choices"][0]["text"], empty["choices"][0]["finish_reason"]) == ("", "length")
        assert echoed["choices"][0]["text"] == "abc"
        assert server.device.plans == []


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),  # case model-404
        ({"n": 129}, 400, None, "n"),
        ({"n": 10**6}, 400, None, "n"),  # case huge-n
        ({"n": 2, "temperature": 0}, 400, None, "n"),
        ({"n": 2, "best_of": 129}, 400, None, "best_of"),  # FAN-32
        ({"n": 2, "best_of": 1}, 400, None, "best_of"),
        ({"best_of": 2, "temperature": 0}, 400, None, "best_of"),
        ({"top_p": 7}, 400, None, "top_p"),
        ({"audio": {"voice": "x"}}, 400, None, "audio"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, 400, "context_length_exceeded", "messages"),
        ({"max_tokens": 10**6}, 400, "context_length_exceeded", "max_tokens"),
        ({"messages": [{"role": "banana", "content": "x"}]}, 400, None, "messages.0.role"),
    ],
)
async def test_a_refusal_is_the_same_streamed_or_not(
    fields: dict[str, Any], status: int, code: str | None, param: str
) -> None:  # case error-before-first-byte-is-http-status
    async with serving() as server:
        bodies = []
        for stream in (False, True):
            response = await server.post(
                CHAT, **{"messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
            )
            assert response.status == status
            assert response.headers["content-type"] == "application/json"
            bodies.append(json.loads(response.body))
        assert bodies[0] == bodies[1]
        assert (bodies[0]["error"]["code"], bodies[0]["error"]["param"]) == (code, param)
        assert server.device.plans == []
        await server.assert_idle()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"max_tokens": 4090}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 4090}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": 4090, "max_tokens": 4095}, "max_completion_tokens"),
        (CHAT, {"n": 2, "choice_params": [{}, {"max_tokens": 4090}]}, "choice_params.1.max_tokens"),
        (CHAT, {"n": 2, "choice_params": [{}, {"seed": 1}], "max_completion_tokens": 4090}, "max_completion_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        (TEXT, {"prompt": "x", "max_tokens": 4096}, "max_tokens"),
        (TEXT, {"prompt": ["x", "y" * 90], "n": 2, "choice_params": [{}, {"max_tokens": 4090}]}, "choice_params.1.max_tokens"),
        (TEXT, {"prompt": "x" * 200}, "prompt"),
        (TEXT, {"prompt": ["x", "y" * 200]}, "prompt.1"),
    ],
)  # fmt: skip
async def test_what_only_the_engine_can_refuse_is_named_as_the_request_has_it(
    path: str, fields: dict[str, Any], param: str
) -> None:
    if path == CHAT:
        fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
    # a long context, and memory for 160 tokens of it
    async with serving(page_count=10) as server:
        for stream in (False, True):
            response = await server.post(path, stream=stream, **fields)
            error = json.loads(response.body)["error"]
            assert (response.status, error["code"]) == (400, "context_length_exceeded")
            assert error["param"] == param
        await server.assert_idle()


async def test_a_prompt_too_long_says_so_in_the_words_clients_look_for() -> None:
    async with serving(context_length=100) as server:
        response = await server.post(TEXT, prompt="x" * 500)
        assert "maximum context length is 100 tokens" in json.loads(response.body)["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": "\xff"}', b"[1]", b"null", b"[" * 50_000, b"\xff\xfe{\x00"])
async def test_a_body_that_is_no_request_is_refused_as_json(body: bytes) -> None:  # case json-body-junk
    async with serving() as server:
        for path in (CHAT, TEXT):
            response = await server.client.request("POST", path, body=body)
            assert response.status == 400
            assert json.loads(response.body)["error"]["message"]


@pytest.mark.parametrize(
    "content_type", [None, "application/x-www-form-urlencoded", "text/plain", "multipart/form-data"]
)
async def test_valid_json_is_taken_under_any_content_type(content_type: str | None) -> None:  # case json-body-junk
    headers = {} if content_type is None else {"content-type": content_type}
    async with serving(say("ok")) as server:
        body = json.dumps({"model": "tiny-chat", "prompt": "x"}).encode()
        response = await server.client.request("POST", TEXT, body=body, headers=headers)
        assert json.loads(response.body)["choices"][0]["text"] == "ok"


@pytest.mark.parametrize("name", ["a/b", "/b", "a//b", "a/", "a\nb", "\n", "a\r\n", "\x00", "a\u2028b", ".", "..", "?"])
async def test_a_name_in_a_path_may_be_any_text(name: str) -> None:
    async with serving() as server:
        for method, path in (
            ("GET", f"/v1/models/{quote(name, safe='/')}"),
            ("DELETE", f"/v1/requests/{quote(name, safe='/')}"),
            ("DELETE", f"/v1/requests/{quote(name, safe='/')}/choices/0"),
        ):
            response = await server.client.request(method, path)
            assert response.status == 404
            # by the handler, not by the router
            assert json.loads(response.body)["error"]["param"] in {"model", "id"}


async def test_a_path_with_a_doubled_slash_is_unknown_and_not_redirected() -> None:
    async with serving() as server:
        for method, path in (("GET", "/v1//models"), ("POST", "/v1//chat/completions"), ("GET", "/health/")):
            response = await server.client.request(method, path)
            assert response.status == 404
            assert json.loads(response.body)["error"]["message"] == f"There is no {path}."


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", CHAT, 405), ("POST", "/health", 405), ("GET", "/v1/models/nope", 404)],
)
async def test_errors_of_http_are_json_too(method: str, path: str, status: int) -> None:
    async with serving() as server:
        response = await server.client.request(method, path)
        assert response.status == status
        assert response.headers["content-type"] == "application/json"
        assert json.loads(response.body)["error"]["message"]
        assert status != 405 or "POST" in response.headers["allow"] or "GET" in response.headers["allow"]


async def test_a_body_that_is_too_large_is_413_as_json() -> None:
    async with serving() as server:
        response = await server.client.request("POST", TEXT, body=b" " * 100_001)
        assert response.status == 413
        assert json.loads(response.body)["error"]["message"] == "The body of the request is too large."


async def test_what_is_served_can_be_asked_for() -> None:
    async with serving() as server:
        get = server.client.request
        assert json.loads((await get("GET", "/health")).body) == {"status": "ok"}
        assert "version" in json.loads((await get("GET", "/version")).body)
        (card,) = json.loads((await get("GET", "/v1/models")).body)["data"]
        assert (card["id"], card["max_model_len"]) == ("tiny-chat", 4096)
        assert json.loads((await get("GET", "/v1/models/tiny-chat")).body) == card


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.015, 0.025, 0.5])
async def test_a_disconnect_at_any_moment_ends_every_choice_within_a_step(
    stream: bool, seconds: float
) -> None:  # FAN-25, case disconnect-before-first-chunk
    body = json.dumps({"model": "tiny-chat", "prompt": "g" * 600, "n": 8, "max_tokens": 900, "stream": stream}).encode()
    async with serving() as server:
        async with server.client.open("POST", TEXT, body=body) as exchange:
            await trio.sleep(seconds)
            exchange.disconnect()
            # before the block is left, which would wait for the end of the request anyway
            await server.assert_idle()
        assert [access.status for access in server.accesses] == [499]


async def test_a_client_that_reads_nothing_stops_its_own_choices_only() -> None:  # FAN-29
    options = attrs.evolve(FAKE_OPTIONS, max_backlog=8)
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "n": 4, "max_tokens": 3000, "stream": True}).encode()
    async with serving(options=options) as server:
        async with server.client.open("POST", TEXT, body=body) as exchange:
            await exchange.receive()
            await trio.sleep(60)
            assert sum(len(plan.rows.tokens) for plan in server.device.plans) < 500
            other = await server.chat(max_tokens=50)
            assert other["usage"]["completion_tokens"] == 50
        await server.assert_idle()


async def test_a_full_queue_is_429_with_a_time_to_come_back() -> None:  # FAN-10
    options = attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=2)
    async with serving(options=options) as server:
        async with server.engine.generate("x") as running:
            await running.receive()
            for stream in (False, True):
                response = await server.post(TEXT, prompt="x", n=3, stream=stream)
                assert response.status == 429
                assert int(response.headers["retry-after"]) >= 1
                assert json.loads(response.body)["error"]["code"] == "queue_full"


async def test_a_draining_engine_is_503_with_a_time_to_come_back() -> None:  # FAN-10
    async with serving() as server:
        server.engine.begin_drain()
        for stream in (False, True):
            response = await server.post(TEXT, prompt="x", stream=stream)
            assert response.status == 503
            assert int(response.headers["retry-after"]) >= 1


async def test_silence_in_a_stream_is_filled_with_comments_that_are_no_events() -> None:
    async with serving(say("a"), step_seconds=40) as server:
        response = await server.post(TEXT, prompt="x", stream=True)
        assert response.body.count(b": ping\n\n") == 4
        assert response.body.endswith(b"data: [DONE]\n\n")


async def test_a_stream_longer_than_a_minute_is_not_cut() -> None:  # case stream-cut-at-60s
    async with serving(step_seconds=1) as server:
        chunks = await server.stream(TEXT, prompt="x", max_tokens=90)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "0123456789" * 9
        assert chunks[-1] == "[DONE]"


async def test_a_choice_that_fails_in_mid_stream_is_an_error_event_and_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # FAN-23, FAN-28, case mid-stream-error-visible
    async with serving(say(["abc", "abd"])) as server:
        real: Callable[..., bytes] = server.engine.tokenizer.token_bytes

        def fails(token_id: int, *, skip_special: bool = True) -> bytes:
            if token_id == 100:
                raise ValueError("broken parser")
            return real(token_id, skip_special=skip_special)

        monkeypatch.setattr(server.engine.tokenizer, "token_bytes", fails)
        events = await server.stream(TEXT, prompt="x", n=2)
        assert events[-1] == "[DONE]"
        assert "ValueError: broken parser" in events[-2]["error"]["message"]
        assert not any(choice["finish_reason"] for event in events[:-2] for choice in event["choices"])
        assert_logged_once(caplog, events[0]["id"], 1)
        response = await server.post(TEXT, prompt="x", n=2)
        assert response.status == 500
        assert "ValueError: broken parser" in json.loads(response.body)["error"]["message"]
        assert_logged_once(caplog, "cmpl-", 1)
        await server.assert_idle()


def assert_logged_once(caplog: pytest.LogCaptureFixture, request_id: str, index: int) -> None:
    """The failed choice is in the log, with its request and where it failed; and nothing else is."""
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith(f"request {request_id}")
    assert record.getMessage().endswith(f": choice {index} failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken parser"
    caplog.clear()


async def test_a_bug_in_mid_stream_is_told_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # FAN-28
    async def fail(_: Generation) -> None:
        await trio.lowlevel.checkpoint()
        raise InternalError("a bug")

    async with serving() as server:
        monkeypatch.setattr(Generation, "receive", fail)
        first, error, done = await server.stream(CHAT)
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        await server.assert_idle()
    assert (error["error"]["code"], done) == ("internal_error", "[DONE]")
    assert record.getMessage() == f"request {first['id']} failed"
    assert record.exc_info is not None


async def test_a_stream_that_a_shutdown_cuts_off_ends_with_an_error_event() -> None:  # case shutdown-inflight
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "max_tokens": 3000, "stream": True}).encode()
    async with serving() as server:
        async with server.client.open("POST", TEXT, body=body) as exchange:
            await exchange.receive()
            server.state.begin_closing()
            response = await exchange.response()
        *_, error, done = response.body.decode().strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "server_stopping"
        assert done == "data: [DONE]"
        await server.assert_idle()


@pytest.mark.parametrize(("given", "echoed"), [("abc-1", True), ("x" * 128, True), ("x" * 129, False), ("\xff", False)])
async def test_a_plain_request_id_is_echoed(given: str, echoed: bool) -> None:  # FAN-12
    async with serving(say("ok")) as server:
        body = json.dumps({"model": "tiny-chat", "prompt": "x"}).encode()
        for stream in (False, True):
            response = await server.client.request("POST", TEXT, body=body, headers={"X-Request-Id": given})
            answered = response.headers["x-request-id"]
            assert answered == given if echoed else re.fullmatch("req-[0-9a-f]{32}", answered)
            body = json.dumps({"model": "tiny-chat", "prompt": "x", "stream": stream}).encode()


async def test_a_request_can_be_ended_by_its_id_or_by_the_callers() -> None:  # FAN-34
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "n": 3, "max_tokens": 900, "stream": True}).encode()
    async with serving() as server:
        for own_id in (True, False):
            async with server.client.open("POST", TEXT, body=body, headers={"X-Request-Id": "mine"}) as exchange:
                first = json.loads((await exchange.receive()).split(b"\n\n")[0].removeprefix(b"data: "))
                name = first["id"] if own_id else "mine"
                deleted = await server.client.request("DELETE", f"/v1/requests/{name}/choices/1")
                assert json.loads(deleted.body) == {
                    "id": name,
                    "object": "request.cancelled",
                    "index": 1,
                    "cancelled": True,
                }
                assert (await server.client.request("DELETE", f"/v1/requests/{name}/choices/3")).status == 404
                await trio.sleep(0.1)
                assert (await server.client.request("DELETE", f"/v1/requests/{name}")).status == 200
                rest = (await exchange.response()).body
            assert rest.count(b'"finish_reason":"cancelled"') == 3
            assert rest.endswith(b"data: [DONE]\n\n")
            gone = await server.client.request("DELETE", f"/v1/requests/{name}")
            assert (gone.status, json.loads(gone.body)["error"]["code"]) == (404, "request_not_found")
        await server.assert_idle()


async def test_extensions_are_reached_through_the_body() -> None:  # FAN-24, FAN-31, FAN-33
    async with serving(say({5: "a" * 50, 9: "bb", 7: "c" * 50})) as server:
        answer = await server.chat(
            n=3, seed=5, choice_params=[{}, {"seed": 9}, {"max_tokens": 40}], stop_when={"finished": 1},
            choice_errors="isolate",
        )  # fmt: skip
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["cancelled", "stop", "cancelled"]
        for fields, param in [
            ({"choice_params": [{"top_p": 2}]}, "choice_params.0.top_p"),
            ({"choice_params": [{"seed": "x"}]}, "choice_params.0.seed"),
            ({"choice_params": [{"best": 1}]}, "choice_params.0.best"),
            ({"choice_params": [{}, {}]}, "choice_params"),
            ({"choice_params": 3}, "choice_params"),
            ({"stop_when": {"finished": 2}}, "stop_when"),
            ({"stop_when": {"finished": 0}}, "stop_when.finished"),
            ({"stop_when": {"agree": 1, "pattern": "("}}, "stop_when.pattern"),
            ({"stop_when": {"agree": 1, "pattern": "a", "more": 1}}, "stop_when.more"),
            ({"choice_errors": "x"}, "choice_errors"),
        ]:
            response = await server.post(TEXT, prompt="x", **fields)
            assert (response.status, json.loads(response.body)["error"]["param"]) == (400, param)


async def test_an_isolated_failure_is_told_with_its_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # FAN-24
    async with serving(say(["aa", "b!", "cc"])) as server:
        real: Callable[..., bytes] = server.engine.tokenizer.token_bytes

        def fails(token_id: int, *, skip_special: bool = True) -> bytes:
            if token_id == ord("!"):
                raise ValueError("broken parser")
            return real(token_id, skip_special=skip_special)

        monkeypatch.setattr(server.engine.tokenizer, "token_bytes", fails)
        answer = await server.chat(n=3, choice_errors="isolate")
        assert_logged_once(caplog, answer["id"], 1)
        chunks = await server.stream(CHAT, n=3, choice_errors="isolate")
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "error", "stop"]
    assert "broken parser" in answer["choices"][1]["error"]["message"]
    assert "error" not in answer["choices"][0]
    told = [choice for chunk in chunks[:-1] for choice in chunk["choices"] if "error" in choice]
    assert [choice["index"] for choice in told] == [1]


async def test_an_answer_that_a_shutdown_cuts_off_is_a_503_with_a_time_to_come_back() -> None:  # case shutdown-inflight
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "max_tokens": 3000}).encode()
    async with serving() as server:
        async with server.client.open("POST", TEXT, body=body) as exchange:
            await trio.sleep(0.1)
            server.state.begin_closing()
            response = await exchange.response()
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert json.loads(response.body)["error"]["code"] == "server_stopping"
        await server.assert_idle()


async def test_a_callers_id_with_a_slash_can_be_used_to_end_a_request() -> None:  # FAN-34
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "max_tokens": 900, "stream": True}).encode()
    async with serving() as server:
        async with server.client.open("POST", TEXT, body=body, headers={"X-Request-Id": "a/b"}) as exchange:
            await exchange.receive()
            assert (await server.client.request("DELETE", "/v1/requests/a/b/choices/0")).status == 200
            assert b'"finish_reason":"cancelled"' in (await exchange.response()).body


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_best_of_answers_with_the_likeliest_and_counts_all(path: str) -> None:  # FAN-32
    logprobs = (-3.0, -1.0, -2.0, -4.0)
    block: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    async with serving(say(["zero", "one", "two", "three"]), score=lambda draw, token: logprobs[draw.seed]) as server:
        response = await server.post(path, **block, n=2, best_of=4)
        assert response.status == 200, response.body
        answer = json.loads(response.body)
        for stream in (False, True):
            plain = await server.post(path, **block, n=2, best_of=2, stream=stream)
            assert plain.status == 200
            assert b"mean_logprob" not in plain.body
            assert b"discarded_tokens" not in plain.body
        refused = await server.post(path, **block, n=2, best_of=4, stream=True)
        assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "best_of")
        await server.assert_idle()
    choices, usage = answer["choices"], answer["usage"]
    said = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices]
    assert said == ["one", "two"]
    assert [(choice["index"], choice["seed"], choice["mean_logprob"]) for choice in choices] == [
        (0, 1, -1.0),
        (1, 2, -2.0),
    ]
    discarded = usage["completion_tokens_details"]["discarded_tokens"]
    assert discarded == 5 + 6
    assert usage["completion_tokens"] == discarded + sum(choice["usage"]["completion_tokens"] for choice in choices)
