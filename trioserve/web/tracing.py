"""A span for every request that reaches an engine, for OpenTelemetry (docs/operations.rst lists its attributes).

Owns: the names of the attributes, and which span is the parent. Must not know: routes, flags.

This is the only module that imports OpenTelemetry, which is an extra; it is imported only by who wants traces. A span
is made when its request has ended, of measurements that are complete then: so nothing is kept for requests that run,
and a request that is cut off in any way has its span too. What prompts and answers say is in none of them.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import attrs
from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from quart import request

from trioserve.engine.observer import Observer, RequestReport
from trioserve.errors import ParamError, TrioserveError, error_row
from trioserve.params import SamplingParams
from trioserve.version import __version__
from trioserve.web.exchange import exchange

FLUSH_S: Final = 1.0
"""How long the end of a program waits for the last spans to be sent. A collector that is gone must not hold it up."""
OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
"""What requests are called, by their path; all others are "text_completion"."""

_TRACES_PATH: Final = "/v1/traces"
_OPERATION_KEY: Final = "trioserve.operation"
_REQUEST_ID_KEY: Final = "trioserve.request_id"
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Attributes = dict[str, AttributeValue]


class Tracing:
    """Where spans go. Leaving its ``with`` block, or ``close()``, sends the last ones."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter | None = None) -> None:
        """``exporter``: one of the provider's that may wait for a collector that is gone."""
        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("trioserve", __version__)

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Send spans to a collector by OTLP over HTTP.

        Args:
            endpoint: its address, such as "http://localhost:4318"; /v1/traces is added if it has no path.

        Raises:
            ParamError: that is no address.
        """
        found = urlsplit(endpoint)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ParamError(
                f'otel_endpoint must be an address such as "http://localhost:4318", got {endpoint!r}.', "otel_endpoint"
            )
        if found.path in ("", "/"):
            endpoint = found._replace(path=_TRACES_PATH).geturl()
        provider = TracerProvider(resource=_resource())
        exporter = OTLPSpanExporter(endpoint)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider, exporter)

    def close(self) -> None:
        """Send what there is, for as long as FLUSH_S. Idempotent; blocks, so not for an event loop."""
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        if closing.is_alive() and self._exporter is not None:
            # ends its attempts, and with them the thread
            self._exporter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def observer(self, model: str) -> Observer:
        """What makes the spans of an engine."""
        return _SpanMaker(self._tracer, model)

    async def begin_request(self) -> None:
        """Make the current request's spans children of the one that its ``traceparent`` names.

        To be called in its exchange's task: with that the setting ends, and it is inherited by the tasks it starts.
        """
        headers = {name: request.headers[name] for name in _PROPAGATOR.fields if name in request.headers}
        here = _PROPAGATOR.extract(headers)
        here = context.set_value(_OPERATION_KEY, OPERATIONS.get(request.path, "text_completion"), here)
        context.attach(context.set_value(_REQUEST_ID_KEY, exchange().request_id, here))


def _resource() -> Resource:
    """Who sends: as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, which OpenTelemetry reads, or "trioserve"."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "trioserve"}))
    return Resource({SERVICE_VERSION: __version__}).merge(found)


@attrs.frozen(eq=False)
class _SpanMaker(Observer):
    """Told of requests in the tasks that run them, whose context says what the parent is."""

    _tracer: Tracer
    _model: str

    def request_refused(self, error: TrioserveError) -> None:
        self._make(0.0, {}, error)

    def request_ended(self, report: RequestReport) -> None:
        self._make(report.duration_s, _measured(report) | _asked(report.params), report.error)

    def _make(self, seconds: float, attributes: Attributes, error: Exception | None) -> None:
        operation = context.get_value(_OPERATION_KEY)
        operation = operation if isinstance(operation, str) else "text_completion"
        request_id = context.get_value(_REQUEST_ID_KEY)
        attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "trioserve",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }
        if isinstance(request_id, str):
            attributes["trioserve.request_id"] = request_id
        if error is not None:
            attributes["error.type"] = error_row(error).code or type(error).__name__
        end = time.time_ns()
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=end - round(seconds * 1e9),
        )
        if error is not None:
            span.set_status(StatusCode.ERROR, type(error).__name__)
        span.end(end)


def _measured(report: RequestReport) -> Attributes:
    attributes: Attributes = {
        "gen_ai.response.id": report.request_id,
        "gen_ai.response.finish_reasons": report.finish_reasons,
        "gen_ai.usage.input_tokens": report.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": report.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": report.usage.cached_tokens,
        "trioserve.n": report.n,
        "trioserve.best_of": report.best_of,
        "trioserve.cached_tokens": report.usage.cached_tokens,
        "trioserve.aborted_choices": report.aborted_choices,
    }
    if report.first_token_s is not None:
        attributes["trioserve.time_to_first_token_s"] = report.first_token_s
    if report.abort_cause is not None:
        attributes["trioserve.abort_cause"] = report.abort_cause
    return attributes


def _asked(params: SamplingParams) -> Attributes:
    """What the request has asked for, defaults resolved; what it left open is not there."""
    asked = {
        "choice.count": params.n if params.n > 1 else None,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k if params.top_k > 0 else None,
        "seed": params.seed,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
    }
    return {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}
