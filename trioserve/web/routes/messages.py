"""Anthropic's Messages API.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.web.dialects import MESSAGES_PATH
from trioserve.web.routes.running import head_of, run_chat
from trioserve.web.routes.service import Rule, Service, as_written, json_response
from trioserve.wire.anthropic.answer import MessageBuilder, count_body
from trioserve.wire.anthropic.call import MessagesCall
from trioserve.wire.anthropic.decode import parse_count, parse_message
from trioserve.wire.anthropic.stream import MessageStreamBuilder


@attrs.frozen
class _Builders:
    """What makes messages of the events of a call."""

    call: MessagesCall

    def answer_builder(self, generation: Generation) -> MessageBuilder:
        return MessageBuilder(head_of(generation, self.call, "message"))

    def chunk_builder(self, generation: Generation) -> MessageStreamBuilder:
        return MessageStreamBuilder(head_of(generation, self.call, "message"))


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
        return await run_chat(self._service, call, "msg_", _Builders(call))

    async def count_message_tokens(self) -> TrioResponse:
        call = await self._service.decode(parse_count)
        self._service.check_model(call.model)
        with as_written(call.names):
            tokens = await self._engine.tokenize_chat(call.messages, tools=call.tools, rendering=call.rendering)
        return json_response(count_body(len(tokens)))
