"""OpenAI's Responses API, without its store.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import time
import uuid

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.abc import Tokenizer
from trioserve.engine.generation import Generation
from trioserve.web.routes.running import Job, run_job
from trioserve.web.routes.service import Rule, Service, as_written, given_request_id
from trioserve.wire.responses.answer import ResponseBuilder
from trioserve.wire.responses.call import ResponsesCall
from trioserve.wire.responses.decode import parse_response
from trioserve.wire.responses.shapes import Shapes
from trioserve.wire.responses.stream import ResponseStreamBuilder
from trioserve.wire.tally import Head
from trioserve.wire.token_texts import TokenTexts


@attrs.frozen(kw_only=True)
class _Builders:
    """What makes responses of the events of a call."""

    call: ResponsesCall
    tokenizer: Tokenizer

    def answer_builder(self, generation: Generation) -> ResponseBuilder:
        head = self._head(generation)
        return ResponseBuilder(head, self._shapes(head, generation))

    def chunk_builder(self, generation: Generation) -> ResponseStreamBuilder:
        head = self._head(generation)
        return ResponseStreamBuilder(head, self._shapes(head, generation))

    def _head(self, generation: Generation) -> Head:
        return Head(
            kind="response",
            id=generation.request_id,
            created=int(time.time()),
            model=self.call.model,
            n=generation.n,
            prompt_tokens=tuple(prompt.prompt_tokens for prompt in generation.prompts),
            ranked=self.call.params.ranked,
        )

    def _shapes(self, head: Head, generation: Generation) -> Shapes:
        return Shapes(
            head,
            self.call.repeated,
            # that of the model, if the request has none of its own
            temperature=generation.params.temperature,
            top_p=generation.params.top_p,
            texts=TokenTexts(self.tokenizer, skip_special=self.call.params.skip_special_tokens),
            top=self.call.params.logprobs or 0,
        )


class Responses:
    """The handler of /v1/responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (Rule("/v1/responses", "POST", self.responses),)

    async def responses(self) -> TrioResponse:
        call = await self._service.decode(parse_response)
        self._service.check_model(call.model)
        builders = _Builders(call=call, tokenizer=self._engine.tokenizer)
        with as_written(call.names):
            chat = await self._engine.prepare_chat(
                call.messages, call.params, tools=call.tools, rendering=call.rendering
            )
            generation = self._engine.generate(
                chat.prompt,
                chat.params,
                request_id=f"resp_{uuid.uuid4().hex}",
                alias=given_request_id(),
                output=chat.output,
            )
            job = Job(
                generation=generation,
                stream=call.stream,
                answer_builder=builders.answer_builder,
                chunk_builder=builders.chunk_builder,
            )
            return await run_job(job, self._service.options.ping_interval)
