"""Spans: one for each request, whatever becomes of it, under the parent that its caller names."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import attrs
import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from trioserve.errors import ParamError
from trioserve.params import SamplingParams
from trioserve.testing.device import Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.http import AsgiClient
from trioserve.testing.server import CHAT, TEXT
from trioserve.testing.tokenizer import BrokenTokenizer
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.options import ServeOptions
from trioserve.web.tracing import FLUSH_S, Tracing

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TRACEPARENT = f"00-{TRACE:032x}-{PARENT:016x}-01"


@attrs.define(eq=False)
class Traced:
    """A server with spans that stay in memory."""

    client: AsgiClient
    engine: Any
    _exporter: InMemorySpanExporter

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def attributes(self, name: str) -> list[object]:
        """An attribute of every span, None where it is not there."""
        return [(span.attributes or {}).get(name) for span in self.spans]

    async def post(self, path: str, headers: dict[str, str] | None = None, **fields: object) -> Any:
        least = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
        body = json.dumps({"model": "tiny-chat", **least, **fields}).encode()
        return await self.client.request("POST", path, body=body, headers=headers)


@asynccontextmanager
async def traced(script: Script = count_for_ever, **settings: Any) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    block, _ = open_fake_engine(script, **settings)
    async with block as engine:
        options = ServeOptions()
        app = create_app(engine, options, tracing=Tracing(provider))
        prepare_app(app, options)
        yield Traced(AsgiClient(app), engine, exporter)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_span_says_what_was_asked_and_what_it_took(stream: bool) -> None:
    async with traced(say(["a", "bb", "cccc"])) as server:
        settings = {"n": 3, "seed": 0, "temperature": 0.5, "top_p": 0.9, "max_tokens": 9}
        response = await server.post(CHAT, {"X-Request-Id": "mine"}, stream=stream, **settings)
        assert response.status == 200
        (span,) = server.spans
    assert (span.name, span.kind, span.status.status_code) == ("chat tiny-chat", SpanKind.SERVER, StatusCode.UNSET)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == pytest.approx(0.05e9, rel=1e-3)
    attributes = dict(span.attributes or {})
    assert attributes.pop("gen_ai.response.id").encode() in response.body  # type: ignore[union-attr]
    assert attributes.pop("trioserve.time_to_first_token_s") == pytest.approx(0.01)
    assert attributes.pop("gen_ai.usage.input_tokens") > 2  # type: ignore[operator]
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trioserve",
        "gen_ai.request.model": "tiny-chat",
        "gen_ai.response.model": "tiny-chat",
        "gen_ai.request.choice.count": 3,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 0,
        "gen_ai.response.finish_reasons": ("stop",) * 3,
        "gen_ai.usage.output_tokens": 2 + 3 + 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "trioserve.request_id": "mine",
        "trioserve.n": 3,
        "trioserve.best_of": 3,
        "trioserve.cached_tokens": 0,
        "trioserve.aborted_choices": 0,
    }


async def test_what_is_found_in_the_cache_is_told() -> None:
    async with traced(say("ok")) as server:
        for _ in range(2):
            await server.post(TEXT, prompt="x" * 100)
        first, second = server.attributes("trioserve.cached_tokens")
        assert server.attributes("gen_ai.usage.cache_read.input_tokens") == [first, second]
        assert server.attributes("gen_ai.usage.input_tokens") == [101, 101]
        assert server.attributes("gen_ai.operation.name") == ["text_completion"] * 2
    assert (first, second > 50) == (0, True)  # type: ignore[operator]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_parent_is_the_one_that_the_caller_names(stream: bool) -> None:
    async with traced(say("ok")) as server:
        async with trio.open_nursery() as nursery:
            for traceparent in (TRACEPARENT, "nonsense", None):
                headers = {} if traceparent is None else {"traceparent": traceparent, "tracestate": "a=1"}
                nursery.start_soon(lambda headers=headers: server.post(CHAT, headers, stream=stream))
        parents = [span.parent for span in server.spans]
    (parent,) = [parent for parent in parents if parent is not None]
    assert (parent.trace_id, parent.span_id, parent.is_remote) == (TRACE, PARENT, True)
    assert parent.trace_state.get("a") == "1"
    assert len(parents) == 3


async def test_a_client_that_leaves_ends_its_span() -> None:  # FAN-25
    async with traced() as server:
        body = json.dumps({"model": "tiny-chat", "prompt": "x", "n": 2, "stream": True, "max_tokens": 900}).encode()
        async with server.client.open("POST", TEXT, body=body, headers={"traceparent": TRACEPARENT}) as exchange:
            await exchange.receive()
            assert server.spans == ()
        (span,) = server.spans
        assert span.parent is not None
        assert server.attributes("trioserve.abort_cause") == ["left"]
        assert server.attributes("trioserve.aborted_choices") == [2]
    assert span.status.status_code is StatusCode.UNSET


async def test_a_failure_is_an_error_and_does_not_tell_what_was_said() -> None:  # FAN-23
    async with traced(say("secret x"), tokenizer=BrokenTokenizer()) as server:
        await server.post(TEXT, prompt="secret")
        (span,) = server.spans
        assert server.attributes("error.type") == ["generation_failed"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ChoiceFailedError")
    assert "secret" not in span.to_json()


async def test_a_request_that_finds_no_place_has_a_span_too() -> None:
    async with traced(options=attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=1)) as server:
        assert (await server.post(TEXT, {"traceparent": TRACEPARENT}, n=5)).status == 429
        (span,) = server.spans
        assert server.attributes("error.type") == ["queue_full"]
    assert span.parent is not None
    assert span.status.status_code is StatusCode.ERROR


async def test_a_program_without_http_has_spans_too() -> None:
    async with traced(say("ok")) as server:
        await server.engine.complete("go", SamplingParams(n=2))
        assert server.attributes("gen_ai.operation.name") == ["text_completion"]
        assert server.attributes("trioserve.request_id") == [None]


# ---- sending


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The address of a collector, and what it was sent."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("path", "posted"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/mine", "/mine")])
def test_the_last_spans_are_sent_when_it_ends(
    path: str, posted: str, collector: tuple[str, list[tuple[str, bytes]]]
) -> None:
    endpoint, got = collector

    async def main(tracing: Tracing) -> None:
        block, _ = open_fake_engine(say("ok"), step_seconds=0.0)
        async with block as engine:
            engine.add_observer(tracing.observer(engine.model.id))
            await engine.complete("go")

    with Tracing.to(endpoint + path) as tracing:
        trio.run(main, tracing)
    ((found, body),) = got
    assert found == posted
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    service = {item.key: item.value.string_value for item in of_resource.resource.attributes}
    assert service["service.name"] == "trioserve"
    assert of_resource.scope_spans[0].spans[0].name == "text_completion tiny-chat"


def test_a_collector_that_is_gone_does_not_hold_up_the_end() -> None:
    tracing = Tracing.to("http://127.0.0.1:9")
    tracing._tracer.start_span("lost").end()
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < FLUSH_S + 1
    for thread in threading.enumerate():
        if thread.name == "last spans":
            thread.join(5)
            assert not thread.is_alive()


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost:4317", "http://", ""])
def test_an_endpoint_is_an_address(endpoint: str) -> None:
    with pytest.raises(ParamError) as refused:
        Tracing.to(endpoint)
    assert refused.value.param == "otel_endpoint"


def test_nobody_who_wants_no_traces_imports_opentelemetry() -> None:
    code = "import sys, trioserve.cli.serve, trioserve.web.serve; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
