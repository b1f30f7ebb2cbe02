"""Hypercorn, h11, Quart and Quart-Trio still have the insides that trioserve.web overrides, calls or relies on.

They are pinned, so this fails when a pin is moved: then read what has changed before changing this.
"""

from __future__ import annotations

import inspect
from typing import Any

import h11
import pytest
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from quart import Quart
from quart.asgi import ASGIHTTPConnection
from quart.wrappers import Request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest

from trioserve.web.body import CountedRequest, RequestBody
from trioserve.web.connection import _ExchangeTasks
from trioserve.web.exchange import Exchange
from trioserve.web.options import ServeOptions
from trioserve.web.protocol import HTTP1Protocol
from trioserve.web.server import hypercorn_config


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (HTTP1Protocol, H11Protocol, "_handle_events"),
        (HTTP1Protocol, H11Protocol, "stream_send"),
        (_ExchangeTasks, TaskGroup, "spawn_app"),
        (Exchange, TrioASGIHTTPConnection, "__init__"),
        (Exchange, TrioASGIHTTPConnection, "__call__"),
    ],
)
def test_what_is_overridden_is_there_and_takes_the_same_arguments(ours: type, theirs: type, name: str) -> None:
    assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (
            H11Protocol.__init__,
            "self app config context task_group connection_state ssl client server send",
        ),
        (HTTPStream.__init__, "self app config context task_group ssl client server send stream_id"),
        (HTTPStream.handle, "self event"),
        (HTTPStream.app_send, "self message"),
        (TaskGroup.spawn, "self func args"),
        (WorkerContext.__init__, "self max_requests"),
        (Config.response_headers, "self protocol"),
        (ASGIHTTPConnection._create_request_from_scope, "self send"),
        (Quart.handle_request, "self request"),
    ],
)
def test_what_is_called_takes_these_arguments(function: Any, names: str) -> None:
    assert parameters(function) == names.split()


def test_the_app_makes_its_connections_and_requests_from_classes_that_can_be_replaced() -> None:
    assert QuartTrio.asgi_http_class is TrioASGIHTTPConnection
    assert QuartTrio.request_class is TrioRequest
    assert hasattr(Request, "body_class")
    source = inspect.getsource(Request.__init__)
    assert "self.body_class(self.content_length, max_content_length)" in source


def test_the_app_has_the_lists_of_hooks_that_are_refused() -> None:
    app = QuartTrio("test")
    assert app.before_serving_funcs == app.after_serving_funcs == app.while_serving_gens == []


def test_what_quart_does_with_a_body_is_what_ours_can_do() -> None:
    source = inspect.getsource(TrioRequest.get_data)
    assert "await self.body" in source
    assert "self.body.clear()" in source
    assert parameters(RequestBody) == ["announced_size", "max_size"]
    assert CountedRequest.body_class is RequestBody  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("name", ["accesslog", "errorlog", "h11_max_incomplete_size", "include_server_header"])
def test_the_configuration_has_what_is_set(name: str) -> None:
    assert hasattr(Config, name)


def test_hypercorn_logs_nothing_of_its_own_and_does_not_introduce_itself() -> None:
    config = hypercorn_config(ServeOptions())
    assert config.log.access_logger is None
    assert config.log.error_logger is None
    assert [name for name, _ in config.response_headers("h11")] == [b"date"]


def test_a_stream_tells_the_app_of_the_end_of_its_own_response() -> None:
    # why Exchange must not take every http.disconnect for the client's
    assert "StreamClosed" in inspect.getsource(HTTPStream._send_closed)
    assert "http.disconnect" in inspect.getsource(HTTPStream.handle)


def test_h11_frames_what_has_no_length_in_chunks_and_says_so() -> None:
    # what HTTP1Protocol finds out from the head, to frame the chunks itself
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_event()
    head = connection.send(h11.Response(status_code=200, headers=[]))
    assert b"transfer-encoding: chunked\r\n" in head.lower()
    assert connection.send(h11.Data(data=b"abc")) == b"3\r\nabc\r\n"
    assert connection.send(h11.EndOfMessage()) == b"0\r\n\r\n"


def test_h11_stays_idle_until_a_head_is_complete() -> None:
    # what HTTP1Protocol.phase is made of
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost:")
    assert connection.next_event() is h11.NEED_DATA
    assert connection.their_state is h11.IDLE
    assert connection.trailing_data == (b"GET / HTTP/1.1\r\nHost:", False)
