"""OpenAI's Responses API, without its store.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.abc import Tokenizer
from trioserve.engine.generation import Generation
from trioserve.web.routes.running import head_of, run_chat
from trioserve.web.routes.service import Rule, Service
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
        head = head_of(generation, self.call, "response")
        return ResponseBuilder(head, self._shapes(head, generation))

    def chunk_builder(self, generation: Generation) -> ResponseStreamBuilder:
        head = head_of(generation, self.call, "response")
        return ResponseStreamBuilder(head, self._shapes(head, generation))

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
        return await run_chat(self._service, call, "resp_", builders)
