"""Deadlines, ids and prefixes: what is read from the head of every request, and said in the head of every answer."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import attrs
import pytest
import structlog
import trio

from trioserve.errors import ParamError
from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.server import CHAT, SERVE_OPTIONS, TEXT, events_of, serving
from trioserve.web.front import Front
from trioserve.web.options import ServeOptions

LONG: dict[str, Any] = {"model": "tiny-chat", "prompt": "x", "n": 3, "max_tokens": 3000}


def long_body(**fields: object) -> bytes:
    return json.dumps({**LONG, **fields}).encode()


# ---- deadlines


@pytest.mark.parametrize(("option", "header", "seconds"), [(5.0, None, 5), (5.0, "2.5", 2.5), (5.0, "60", 5)])
async def test_a_request_over_its_deadline_is_ended_and_told_so(
    option: float, header: str | None, seconds: float
) -> None:  # FAN-27
    options = attrs.evolve(SERVE_OPTIONS, request_timeout=option)
    async with serving(serve_options=options) as server:
        began = trio.current_time()
        headers = {} if header is None else {"X-Request-Timeout": header}
        response = await server.client.request("POST", TEXT, body=long_body(), headers=headers)
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
        assert response.status == 504
        assert json.loads(response.body)["error"] == {
            "message": "The request did not end within its deadline.",
            "type": "timeout_error",
            "param": None,
            "code": "deadline_exceeded",
        }
        assert [access.status for access in server.accesses] == [504]
        await server.assert_idle()


async def test_a_stream_over_its_deadline_ends_with_an_error_event() -> None:  # FAN-23, FAN-27
    async with serving() as server:
        began = trio.current_time()
        response = await server.client.request(
            "POST", TEXT, body=long_body(stream=True), headers={"X-Request-Timeout": "3"}
        )
        assert trio.current_time() - began == pytest.approx(3, abs=0.1)
        *chunks, error, done = events_of(response.body)
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1, 2}
        assert (error["error"]["code"], done) == ("deadline_exceeded", "[DONE]")
        await server.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_in_the_queue_is_ended_too(stream: bool) -> None:
    async with serving(options=attrs.evolve(FAKE_OPTIONS, max_running=3)) as server:
        async with server.open(TEXT, **LONG) as first:
            await trio.sleep(0.1)
            response = await server.client.request(
                "POST", TEXT, body=long_body(n=1, stream=stream), headers={"X-Request-Timeout": "1"}
            )
            assert b"deadline_exceeded" in response.body
            first.disconnect()
        await server.assert_idle()


async def test_a_body_that_does_not_come_is_not_waited_for_longer() -> None:
    async with serving() as server:
        began = trio.current_time()
        async with server.client.open("POST", TEXT, body=None, headers={"X-Request-Timeout": "2"}) as exchange:
            assert (await exchange.response()).status == 504
        assert trio.current_time() - began == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_ends_in_time_does_not_notice(stream: bool) -> None:
    async with serving(say("ok")) as server:
        response = await server.client.request(
            "POST", TEXT, body=long_body(stream=stream), headers={"X-Request-Timeout": "1000"}
        )
        assert (response.status, b"error" in response.body) == (200, False)


async def test_a_shutdown_before_the_deadline_is_told_as_one() -> None:
    async with serving() as server:
        for stream in (False, True):
            body = long_body(stream=stream)
            async with server.client.open("POST", TEXT, body=body, headers={"X-Request-Timeout": "9"}) as exchange:
                await trio.sleep(1)
                server.state.begin_closing()
                assert b"server_stopping" in (await exchange.response()).body


@pytest.mark.parametrize("value", ["soon", "0", "0.0", "-1", "inf", "nan", "1e3", "", "1,2", "9" * 10, "1s"])
async def test_a_deadline_that_is_no_number_is_refused_by_name(value: str) -> None:
    async with serving(say("ok")) as server:
        headers = {"X-Request-Timeout": value}
        async with server.client.open("POST", CHAT, body=None, headers=headers) as exchange:
            response = await exchange.response()
    error = json.loads(response.body)["error"]
    assert (response.status, error["param"], error["type"]) == (400, "X-Request-Timeout", "invalid_request_error")


def test_two_deadlines_are_refused() -> None:
    with pytest.raises(ParamError):
        Front().timeout([(b"x-request-timeout", b"1"), (b"x-request-timeout", b"1")])


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(ParamError, match="request_timeout"):
        ServeOptions(request_timeout=seconds)


# ---- ids


async def test_every_answer_has_an_id_which_stands_in_the_log() -> None:  # FAN-12
    async with serving(say("ok")) as server:
        answered = [
            (await server.client.request(method, path, body=body)).headers["x-request-id"]
            for method, path, body in (
                ("GET", "/health", b""),
                ("GET", "/nope", b""),
                ("POST", TEXT, b"{"),
                ("POST", TEXT, long_body()),
                ("POST", TEXT, long_body(stream=True)),
            )
        ]
        assert [access.request_id for access in server.accesses] == answered
    assert len(set(answered)) == 5
    assert all(re.fullmatch("req-[0-9a-f]{32}", name) for name in answered)


async def test_what_is_logged_for_a_request_has_its_id() -> None:
    ids = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ids.append(structlog.contextvars.get_contextvars().get("request_id"))

    handler = Noting()
    logging.getLogger("trioserve").addHandler(handler)
    try:
        async with serving(say("ok")) as server:
            # in the handler, and in the task of a stream
            for stream in (False, True):
                server.engine.begin_drain()
                await server.client.request(
                    "POST", TEXT, body=long_body(stream=stream), headers={"X-Request-Id": f"mine-{stream}"}
                )
    finally:
        logging.getLogger("trioserve").removeHandler(handler)
    assert ids == ["mine-False", "mine-True"]
    assert structlog.contextvars.get_contextvars() == {}


# ---- prefixes


@pytest.mark.parametrize("path", ["/llm/v1/models", "/v1/models", "/llm/v1/models/tiny-chat", "/llm/health", "/health"])
async def test_a_proxy_may_keep_the_prefix_or_strip_it(path: str) -> None:
    async with serving(say("ok"), serve_options=attrs.evolve(SERVE_OPTIONS, root_path="/llm")) as server:
        assert (await server.client.request("GET", path)).status == 200
        # as it came
        assert server.accesses[0].path == path


@pytest.mark.parametrize("path", ["/llm", "/llm/", "/llmv1/models", "/llm/llm/v1/models", "/other/v1/models"])
async def test_a_prefix_is_a_whole_segment_and_comes_once(path: str) -> None:
    async with serving(say("ok"), serve_options=attrs.evolve(SERVE_OPTIONS, root_path="/llm")) as server:
        assert (await server.client.request("GET", path)).status == 404


async def test_the_document_has_the_prefix() -> None:
    async with serving(say("ok"), serve_options=attrs.evolve(SERVE_OPTIONS, root_path="/a/llm/")) as server:
        document = json.loads((await server.client.request("GET", "/openapi.json")).body)
    assert document["servers"] == [{"url": "/a/llm"}]


@pytest.mark.parametrize("path", ["llm", "/a b", "/a//b", "//", "/a?b", "/é", "https://x/llm"])
def test_a_prefix_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ParamError, match="root_path"):
        ServeOptions(root_path=path)


def test_a_slash_is_no_prefix() -> None:
    assert ServeOptions(root_path="/").root_path == ""
