"""Anthropic's Messages API.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import time
import uuid

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.web.dialects import MESSAGES_PATH
from trioserve.web.routes.running import Job, run_job
from trioserve.web.routes.service import Rule, Service, as_written, given_request_id, json_response
from trioserve.wire.anthropic.answer import MessageBuilder, count_body
from trioserve.wire.anthropic.call import MessagesCall
from trioserve.wire.anthropic.decode import parse_count, parse_message
from trioserve.wire.anthropic.stream import MessageStreamBuilder
from trioserve.wire.tally import Head


@attrs.frozen
class _Builders:
    """What makes messages of the events of a call."""

    call: MessagesCall

    def answer_builder(self, generation: Generation) -> MessageBuilder:
        return MessageBuilder(self._head(generation))

    def chunk_builder(self, generation: Generation) -> MessageStreamBuilder:
        return MessageStreamBuilder(self._head(generation))

    def _head(self, generation: Generation) -> Head:
        return Head(
            kind="message",
            id=generation.request_id,
            created=int(time.time()),
            model=self.call.model,
            n=generation.n,
            prompt_tokens=tuple(prompt.prompt_tokens for prompt in generation.prompts),
            ranked=self.call.params.ranked,
        )


class Messages:
    """The handlers of /v1/messages."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule(MESSAGES_PATH, "POST", self.messages),
            Rule(f"{MESSAGES_PATH}/count_tokens", "POST", self.count_message_tokens),
        )

    async def messages(self) -> TrioResponse:
        call = await self._service.decode(parse_message)
        self._service.check_model(call.model)
        builders = _Builders(call)
        with as_written(call.names):
            chat = await self._engine.prepare_chat(
                call.messages, call.params, tools=call.tools, rendering=call.rendering
            )
            generation = self._engine.generate(
                chat.prompt,
                chat.params,
                request_id=f"msg_{uuid.uuid4().hex}",
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

    async def count_message_tokens(self) -> TrioResponse:
        call = await self._service.decode(parse_count)
        self._service.check_model(call.model)
        with as_written(call.names):
            tokens = await self._engine.tokenize_chat(call.messages, tools=call.tools, rendering=call.rendering)
        return json_response(count_body(len(tokens)))
