"""Vectors of texts.

Owns: the order of the checks. Must not know: formats, how vectors are made.
"""

from __future__ import annotations

import uuid

from quart_trio.wrappers import TrioResponse

from trioserve.errors import EngineStoppingError
from trioserve.web.exchange import exchange
from trioserve.web.routes.service import Rule, Service, as_written, given_request_id, json_response
from trioserve.wire.embeddings import embeddings_body, parse_embeddings


class Embedding:
    """The handler of OpenAI's embeddings."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (Rule("/v1/embeddings", "POST", self.embeddings),)

    async def embeddings(self) -> TrioResponse:
        call = await self._service.decode(parse_embeddings)
        self._service.check_model(call.model)
        with as_written(call.names), exchange().closing_scope():
            if self._engine.pooling is not None:
                call.check_dimensions(self._engine.info.embedding_dim)
            answer = await self._engine.embed(
                call.prompts, request_id=f"embd-{uuid.uuid4().hex}", alias=given_request_id()
            )
            return json_response(embeddings_body(call, answer.vectors, answer.prompt_tokens))
        raise EngineStoppingError
