"""The whole server but its sockets and its model, in virtual time, and a client of it.

Owns: FakeServer and how to start it. Must not know: what a test asks.
"""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final

import attrs
import trio

from trioserve.engine.engine import Engine
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.testing.device import FakeDevice, Script
from trioserve.testing.engine import FAKE_MODEL, FAKE_OPTIONS, count_for_ever, open_fake_engine
from trioserve.testing.http import AsgiClient, AsgiExchange, HttpResponse
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.options import ServeOptions
from trioserve.web.state import STATE_KEY, Access, ServerState

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
SERVE_OPTIONS: Final = ServeOptions(max_body_size=100_000)


@attrs.define(eq=False)
class FakeServer:
    """An engine over a FakeDevice, its app, and a client of it. Without messages, a chat says "hi"."""

    engine: Engine
    device: FakeDevice
    client: AsgiClient
    state: ServerState
    accesses: list[Access]

    def open(self, path: str, /, **fields: Any) -> AsgiExchange:
        """A request with these fields, to be read piece by piece or left."""
        return self.client.open("POST", path, body=_body(path, fields))

    async def post(self, path: str, /, **fields: Any) -> HttpResponse:
        """The response to these fields, whatever it is."""
        return await self.client.request("POST", path, body=_body(path, fields))

    async def whole(self, path: str, /, **fields: Any) -> Any:
        """The answer to these fields."""
        response = await self.post(path, **fields)
        assert response.status == 200, response.body
        return json.loads(response.body)

    async def chat(self, text: str = "hi", **fields: Any) -> Any:
        """The answer to a message."""
        return await self.whole(CHAT, messages=[{"role": "user", "content": text}], **fields)

    async def stream(self, path: str, /, **fields: Any) -> list[Any]:
        """The data of every event, [DONE] as a string."""
        response = await self.post(path, stream=True, **fields)
        assert response.status == 200, response.body
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events_of(response.body)

    async def assert_idle(self) -> None:  # FAN-27
        """Within one step of now, nothing of any request is left."""
        await trio.sleep(self.device.step_seconds * 1.1)
        statistics = self.engine.statistics()
        assert statistics.requests == 0
        assert (statistics.scheduler.running, statistics.scheduler.waiting) == (0, 0)
        assert statistics.scheduler.pages_held == 0
        self.engine.check()


def _body(path: str, fields: dict[str, Any]) -> bytes:
    least: dict[str, Any] = {"model": FAKE_MODEL}
    if path == CHAT:
        least["messages"] = [{"role": "user", "content": "hi"}]
    return json.dumps({**least, **fields}).encode()


def events_of(body: bytes) -> list[Any]:
    """The data of the server-sent events in ``body``, [DONE] as a string."""
    events = [event for event in body.decode().split("\n\n") if event and not event.startswith(":")]
    return [event[6:] if event == "data: [DONE]" else json.loads(event.removeprefix("data: ")) for event in events]


class _ServerBlock(AbstractAsyncContextManager[FakeServer]):
    def __init__(self, block: EngineBlock, device: FakeDevice, options: ServeOptions) -> None:
        self._block = block
        self._device = device
        self._options = options

    async def __aenter__(self) -> FakeServer:
        engine = await self._block.__aenter__()
        app = create_app(engine, self._options)
        prepare_app(app, self._options)
        accesses: list[Access] = []
        state = ServerState(accesses.append)
        return FakeServer(engine, self._device, AsgiClient(app, state={STATE_KEY: state}), state, accesses)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        # an async with in two halves, so no shield is wanted
        return await self._block.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102


def serving(
    script: Script = count_for_ever,
    *,
    options: EngineOptions = FAKE_OPTIONS,
    serve_options: ServeOptions = SERVE_OPTIONS,
    **settings: Any,
) -> AbstractAsyncContextManager[FakeServer]:
    """A block that holds a server over a fake engine; ``settings`` are those of open_fake_engine."""
    block, device = open_fake_engine(script, options=options, **settings)
    return _ServerBlock(block, device, serve_options)
