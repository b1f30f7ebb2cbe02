"""The routes of the OpenAI API: the bytes of a request in, a call to the engine, the bytes of a response out.

Owns: what happens for each path, and the order of the checks. Must not know: connections, formats, scheduling.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import attrs
import trio
from quart import request
from quart_trio.wrappers import TrioResponse

from trioserve.engine.engine import Engine
from trioserve.engine.generation import Generation
from trioserve.engine.prompts import Prompt
from trioserve.engine.snapshot import EngineSnapshot
from trioserve.errors import EngineStoppingError, ParamError, RequestNotFoundError
from trioserve.params import Limits
from trioserve.version import __version__
from trioserve.web.exchange import exchange
from trioserve.web.metrics import Metrics
from trioserve.web.options import ServeOptions
from trioserve.web.pump import WIRE_BATCHES, fold, pump
from trioserve.web.stream import event_stream
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.calls import Call
from trioserve.wire.chunks import ChunkBuilder
from trioserve.wire.decode import DEFAULT_COMPLETION_TOKENS, check_model, parse_chat, parse_completion
from trioserve.wire.line import json_line
from trioserve.wire.models import HEALTH, ModelCard, cancelled_body, engine_body, model_body, models_body, version_body
from trioserve.wire.openapi.document import Served, build_document
from trioserve.wire.tally import Head, Kind

# Decoding this much takes about a millisecond; more is done in a thread, so that the event loop stays free.
INLINE_BODY_BYTES = 100_000

MAX_REQUEST_ID = 128

AnyCall = TypeVar("AnyCall", bound=Call)


def json_response(body: bytes, status: int = 200) -> TrioResponse:
    """A response with ``body``, which is JSON."""
    return TrioResponse(body, status, content_type="application/json")


async def decode(parse: Callable[[bytes, Limits], AnyCall], limits: Limits) -> AnyCall:
    """The call that the current request makes, whatever its content type says."""
    body = await request.get_data(cache=False)
    assert isinstance(body, bytes)
    if len(body) <= INLINE_BODY_BYTES:
        return parse(body, limits)
    return await trio.to_thread.run_sync(parse, body, limits)


def given_request_id() -> str | None:
    """The caller's X-Request-Id if it is short and plain enough to be harmless in a log (FAN-12); else None."""
    given = request.headers.get("x-request-id", "")
    return given if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else None


@contextmanager
def as_written(names: Mapping[str, str]) -> Iterator[None]:
    """Let the errors of the body name the fields of a request by ``names``, as their caller wrote them."""
    try:
        yield
    except ParamError as error:
        error.rename(names)
        raise


@attrs.frozen(kw_only=True)
class _Job:
    """A call, ready for the engine."""

    call: Call
    kind: Kind
    id: str
    generation: Generation
    echo_texts: tuple[str, ...] = ()

    def head(self, generation: Generation) -> Head:
        return Head(
            kind=self.kind,
            id=self.id,
            created=int(time.time()),
            model=self.call.model,
            n=generation.n,
            prompt_tokens=tuple(prompt.prompt_tokens for prompt in generation.prompts),
            echo_texts=self.echo_texts,
            ranked=self.call.params.ranked,
        )

    def chunk_builder(self, generation: Generation) -> ChunkBuilder:
        return ChunkBuilder(
            self.head(generation),
            include_usage=self.call.include_usage,
            continuous_usage=self.call.continuous_usage,
        )


class Routes:
    """The handlers of one engine's API. Each is a method without arguments but those in its path."""

    def __init__(self, engine: Engine, options: ServeOptions, metrics: Metrics) -> None:
        self._engine = engine
        self._options = options
        self._metrics = metrics
        # made when somebody asks for it
        self._document: bytes | None = None
        self._card = ModelCard(id=engine.model.id, created=int(time.time()), max_model_len=engine.info.context_length)

    async def health(self) -> TrioResponse:
        return json_response(HEALTH)

    async def version(self) -> TrioResponse:
        return json_response(version_body(__version__))

    async def scrape(self) -> TrioResponse:
        body, content_type = self._metrics.exposition(request.headers.get("accept", ""))
        return TrioResponse(body, content_type=content_type)

    async def openapi(self) -> TrioResponse:
        if self._document is None:
            served = Served(
                version=__version__,
                models=(self._card.id,),
                limits=self._engine.options.limits,
                slow_reader_timeout_s=self._options.send_stall_timeout,
                engine=EngineSnapshot,
            )
            self._document = json_line(build_document(served))
        return json_response(self._document)

    async def snapshot(self) -> TrioResponse:
        return json_response(engine_body(self._engine.snapshot()))

    async def models(self) -> TrioResponse:
        return json_response(models_body([self._card]))

    async def model(self, name: str) -> TrioResponse:
        check_model(name, [self._card.id])
        return json_response(model_body(self._card))

    async def chat_completions(self) -> TrioResponse:
        call = await decode(parse_chat, self._engine.options.limits)
        check_model(call.model, [self._card.id])
        prompt = await self._engine.encode_chat(call.messages)
        job_id = f"chatcmpl-{uuid.uuid4().hex}"
        generation = self._engine.generate(prompt, call.params, request_id=job_id, alias=given_request_id())
        return await self._run(_Job(call=call, kind="chat", id=job_id, generation=generation))

    async def completions(self) -> TrioResponse:
        call = await decode(parse_completion, self._engine.options.limits)
        check_model(call.model, [self._card.id])
        job_id = f"cmpl-{uuid.uuid4().hex}"
        generation = self._engine.generate(
            call.prompts,
            call.params,
            request_id=job_id,
            alias=given_request_id(),
            default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        )
        echo_texts = tuple(self._text(prompt) for prompt in call.prompts) if call.echo else ()
        return await self._run(
            _Job(call=call, kind="completion", id=job_id, generation=generation, echo_texts=echo_texts)
        )

    async def cancel_request(self, name: str) -> TrioResponse:
        """FAN-34: end every choice of the running requests with this id, or this X-Request-Id."""
        for generation in self._running(name):
            generation.cancel()
        return json_response(cancelled_body(name, None))

    async def cancel_choice(self, name: str, index: int) -> TrioResponse:
        """FAN-34: end one choice."""
        for generation in self._running(name):
            try:
                generation.cancel_choice(index)
            except IndexError as error:
                raise RequestNotFoundError(str(error), "index") from None
        return json_response(cancelled_body(name, index))

    def _running(self, name: str) -> list[Generation]:
        found = self._engine.find(name)
        if not found:
            raise RequestNotFoundError(f"No request {name!r} is running.", "id")
        return found

    def _text(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self._engine.tokenizer.decode(prompt)

    async def _run(self, job: _Job) -> TrioResponse:
        with as_written(job.call.names):
            return await self._answer(job)

    async def _answer(self, job: _Job) -> TrioResponse:
        if not job.call.stream:
            with exchange().closing_scope():
                async with job.generation as generation:
                    return json_response(await fold(generation, AnswerBuilder(job.head(generation))))
            raise EngineStoppingError
        send, receive = trio.open_memory_channel[bytes](WIRE_BATCHES)
        here = exchange()
        await here.nursery.start(
            pump, job.generation, job.chunk_builder, send, here.closing_scope(), self._options.ping_interval
        )
        return event_stream(receive)
