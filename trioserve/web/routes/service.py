"""What all handlers share: the engine and its options, and how a request is read and a response made.

Owns: Service, the decoding of a body, the id that a caller gives. Must not know: any path, formats.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeVar

import attrs
import trio
from quart import request
from quart_trio.wrappers import TrioResponse

from trioserve.engine.engine import Engine
from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.web.exchange import exchange
from trioserve.web.metrics import Metrics
from trioserve.web.options import ServeOptions
from trioserve.wire.decode import check_model
from trioserve.wire.models import ModelCard

# Decoding this much takes about a millisecond; more is done in a thread, so that the event loop stays free.
INLINE_BODY_BYTES = 100_000

AnyCall = TypeVar("AnyCall")


@attrs.frozen
class Rule:
    """Who answers a path. The handler's name must differ from those of all others."""

    path: str
    method: Literal["GET", "POST", "DELETE"]
    handler: Callable[..., Awaitable[TrioResponse]]
    """Given the parameters in the path."""


@attrs.frozen
class Service:
    """What is served, and how."""

    engine: Engine
    options: ServeOptions
    metrics: Metrics
    card: ModelCard

    @classmethod
    def of(cls, engine: Engine, options: ServeOptions, metrics: Metrics) -> Service:
        card = ModelCard(id=engine.model.id, created=int(time.time()), max_model_len=engine.info.context_length)
        return cls(engine, options, metrics, card)

    def check_model(self, name: str) -> None:
        """Raise ModelNotFoundError unless the model ``name`` is served."""
        check_model(name, [self.card.id])

    async def decode(self, parse: Callable[[bytes, Limits], AnyCall]) -> AnyCall:
        """The call that the current request makes, whatever its content type says."""
        body = await request.get_data(cache=False)
        assert isinstance(body, bytes)
        limits = self.engine.options.limits
        if len(body) <= INLINE_BODY_BYTES:
            return parse(body, limits)
        return await trio.to_thread.run_sync(parse, body, limits)


def json_response(body: bytes, status: int = 200) -> TrioResponse:
    """A response with ``body``, which is JSON."""
    return TrioResponse(body, status, content_type="application/json")


def given_request_id() -> str | None:
    """The caller's X-Request-Id, if it may be used: an alias for DELETE, and no key of the engine (FAN-12)."""
    return exchange().given_request_id


@contextmanager
def as_written(names: Mapping[str, str]) -> Iterator[None]:
    """Let the errors of the body name the fields of a request by ``names``, as their caller wrote them."""
    try:
        yield
    except ParamError as error:
        error.rename(names)
        raise
