"""What is served, what runs, and what ran.

Owns: the paths that change nothing. Must not know: formats.
"""

from __future__ import annotations

from quart import request
from quart_trio.wrappers import TrioResponse

from trioserve.engine.snapshot import EngineSnapshot
from trioserve.version import __version__
from trioserve.web.routes.service import Rule, Service, json_response
from trioserve.wire.line import json_line
from trioserve.wire.models import HEALTH, engine_body, model_body, models_body, version_body
from trioserve.wire.openapi.document import Served, build_document


class Looking:
    """The handlers of GET."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # made when somebody asks for it
        self._document: bytes | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule("/health", "GET", self.health),
            Rule("/version", "GET", self.version),
            Rule("/metrics", "GET", self.scrape),
            Rule("/openapi.json", "GET", self.openapi),
            Rule("/v1/engine", "GET", self.snapshot),
            Rule("/v1/models", "GET", self.models),
            Rule("/v1/models/<name:name>", "GET", self.model),
        )

    async def health(self) -> TrioResponse:
        return json_response(HEALTH)

    async def version(self) -> TrioResponse:
        return json_response(version_body(__version__))

    async def scrape(self) -> TrioResponse:
        body, content_type = self._service.metrics.exposition(request.headers.get("accept", ""))
        return TrioResponse(body, content_type=content_type)

    async def openapi(self) -> TrioResponse:
        if self._document is None:
            served = Served(
                version=__version__,
                models=(self._service.card.id,),
                limits=self._service.engine.options.limits,
                context_length=self._service.engine.info.context_length,
                vocab_size=self._service.engine.info.vocab_size,
                empty_prompts=bool(self._service.engine.tokenizer.encode("", add_special=True)),
                slow_reader_timeout_s=self._service.options.send_stall_timeout,
                engine=EngineSnapshot,
                embedding_dim=self._service.engine.info.embedding_dim or None,
                root_path=self._service.options.root_path,
                wants_key=self._service.options.api_keys is not None,
            )
            self._document = json_line(build_document(served))
        return json_response(self._document)

    async def snapshot(self) -> TrioResponse:
        return json_response(engine_body(self._service.engine.snapshot()))

    async def models(self) -> TrioResponse:
        return json_response(models_body([self._service.card]))

    async def model(self, name: str) -> TrioResponse:
        self._service.check_model(name)
        return json_response(model_body(self._service.card))
