"""The end of what runs, on demand (FAN-34).

Owns: the paths of DELETE. Must not know: formats.
"""

from __future__ import annotations

from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.errors import RequestNotFoundError
from trioserve.web.routes.service import Rule, Service, json_response
from trioserve.wire.models import cancelled_body


class Cancelling:
    """The handlers of DELETE."""

    def __init__(self, service: Service) -> None:
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule("/v1/requests/<name:name>", "DELETE", self.cancel_request),
            Rule("/v1/requests/<name:name>/choices/<int:index>", "DELETE", self.cancel_choice),
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
