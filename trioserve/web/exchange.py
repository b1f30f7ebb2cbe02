"""One request and its response, from the app's side.

Owns: the nursery of the exchange, what a disconnect and a deadline cancel, what becomes of failures, the entry in the
access log.
Must not know: connections, routes.

Everything that a request sets in motion runs in the nursery of its exchange::

    admission = await exchange().nursery.start(pump, ...)

What the child raises before ``started()`` is raised there, in the handler, and is answered by the app's error
handlers like anything else that a handler raises. If a child fails later, the exchange is cancelled and answers
with a plain 500, or, when the response has begun, cuts it off. Leaving the handler does not end the children;
the end of the response does, and so does the client if it leaves before.
"""

from __future__ import annotations

import logging
import math
from typing import Final, cast

import structlog
import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from quart import Quart, Request, request
from quart.typing import ResponseTypes
from quart.utils import encode_headers
from quart.wrappers.response import DataBody, ResponseBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.wrappers import Response as WerkzeugResponse

from trioserve.errors import DeadlineError
from trioserve.web.body import CountedRequest, RequestBody
from trioserve.web.front import Front, PlainAnswer, given_request_id, new_request_id
from trioserve.web.options import ServeOptions
from trioserve.web.state import CLIENT_LEFT, CUT_OFF, STATE_KEY, Access, ServerState

SCOPE_KEY: Final = "trioserve.exchange"
"""Where a request's ASGI scope has its Exchange."""
FRONT_KEY: Final = "trioserve.front"
"""Where an app's extensions have the Front of its requests."""

logger = logging.getLogger(__name__)


def prepare_app(app: QuartTrio, options: ServeOptions) -> None:
    """Make ``app`` run its requests as exchanges, within the limits of ``options``."""
    app.asgi_http_class = Exchange
    app.request_class = CountedRequest
    app.extensions[FRONT_KEY] = Front.of(options)
    app.config.update(
        BODY_TIMEOUT=options.body_timeout,
        MAX_CONTENT_LENGTH=options.max_body_size,
        # error handlers answer, in tests too
        PROPAGATE_EXCEPTIONS=False,
    )


def exchange() -> Exchange:
    """The exchange of the request that is being handled."""
    scope = cast("dict[str, object]", request.scope)
    return cast(Exchange, scope[SCOPE_KEY])


class Exchange(TrioASGIHTTPConnection):
    """The connection class of the app, which Quart makes one of for every request.

    Quart's RESPONSE_TIMEOUT, by which a response would be cut off after a minute, has no effect with it.
    """

    given_request_id: str | None
    """The caller's X-Request-Id, if it may be used (FAN-12)."""
    request_id: str
    """That, or one of our own: it comes back with the answer, and stands in the log."""
    nursery: trio.Nursery
    """For everything that belongs to the request. Cancelled when the client leaves and when the response has ended."""

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        super().__init__(app, scope)
        self._front: Front = app.extensions[FRONT_KEY]
        self._path = scope["path"]
        # as ASGI has it: the path includes the prefix, whether the proxy has kept it or not
        self._local_path = local_path = self._front.local_path(self._path)
        scope["path"], scope["root_path"] = self._front.root_path + local_path, self._front.root_path
        self.given_request_id = given_request_id(scope["headers"])
        self.request_id = self.given_request_id or new_request_id()
        self._early_answer = self._front.early_answer(scope["method"], local_path, list(scope["headers"]))
        self._deadline = math.inf
        extended = cast("dict[str, object]", scope)
        extended[SCOPE_KEY] = self
        state = cast("dict[str, object]", scope.get("state", {})).get(STATE_KEY)
        # there is none when a test calls the app without a server
        self._state = cast(ServerState, state) if state is not None else ServerState()
        self._closing_scopes: list[trio.CancelScope] = []
        self._send: ASGISendCallable
        self._status: int | None = None
        self._sent_bytes = 0
        # the last message is being sent, or has been: a disconnect is no news now
        self._ending = False
        self._ended = False
        self._client_left = False
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.scope['method']} {self._path}, status {self._status}, {self._sent_bytes} bytes sent>"

    def closing_scope(self) -> trio.CancelScope:
        """A cancel scope for the part of the work that must end before the server closes all connections.

        It is cancelled about a second before, or at once if that time has come already; and it has the deadline of
        the request. Code that finds ``cancelled_caught`` can still tell its client.
        """
        scope = self._state.add_scope()
        scope.deadline = self._deadline
        self._closing_scopes.append(scope)
        return scope

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the exchange. Raises nothing but what cancels or interrupts it from outside."""
        began = trio.current_time()
        self._send = send
        try:
            # for all that is logged by the tasks of the exchange
            with structlog.contextvars.bound_contextvars(request_id=self.request_id):
                await self._run(receive)
                if self._failure is not None and self._status is None:
                    await self._answer(PlainAnswer.to_error(_innermost(self._failure), self._local_path))
        finally:
            for scope in self._closing_scopes:
                self._state.discard_scope(scope)
            self._state.log(
                Access(
                    request_id=self.request_id,
                    method=self.scope["method"],
                    path=self._path,
                    status=self._final_status(),
                    sent_bytes=self._sent_bytes,
                    seconds=trio.current_time() - began,
                    client=self.scope["client"],
                )
            )

    async def _run(self, receive: ASGIReceiveCallable) -> None:
        """Everything up to the end of the response, of the client's patience, or a failure."""
        incoming = self._create_request_from_scope(self._send)
        body = cast(RequestBody, incoming.body)
        try:
            async with trio.open_nursery() as self.nursery:
                if self._early_answer is None:
                    self.nursery.start_soon(self._watch, receive, body)
                    await self._handle(incoming)
                else:
                    await self._answer(self._early_answer)
                self.nursery.cancel_scope.cancel()
        except* Exception as group:
            # The whole group: this is the one place where nothing of it gets lost.
            logger.error("%s %s failed", self.scope["method"], self._path, exc_info=group)
            self._failure = group

    async def _handle(self, incoming: Request) -> None:
        """Let the app answer, or say that it took too long."""
        self._deadline = trio.current_time() + self._front.timeout(self.scope["headers"])
        with trio.CancelScope(deadline=self._deadline) as scope:
            response = await self.app.handle_request(incoming)
        if scope.cancelled_caught:
            await self._answer(PlainAnswer.to_error(DeadlineError(), self._local_path))
        else:
            await self._respond(response)

    async def _watch(self, receive: ASGIReceiveCallable, body: RequestBody) -> None:
        """Take what the client sends, until it leaves."""
        while (message := await receive())["type"] == "http.request":
            body.feed(message.get("body", b""))
            if not message.get("more_body", False):
                body.end()
        # The end of a response makes a disconnect too, while its last message is still on the way through the
        # connection; cancelling that would keep the connection from being closed or used again.
        if not self._ending:
            self._leave()

    def _leave(self) -> None:
        self._client_left = True
        self.nursery.cancel_scope.cancel()

    # ---- the response

    async def _respond(self, response: ResponseTypes) -> None:
        if isinstance(response, WerkzeugResponse):
            # what Quart makes of an HTTPException that has no handler
            body: ResponseBody = DataBody(b"".join(response.iter_encoded()))
        else:
            body = response.response
        async with body as chunks:
            async for chunk in chunks:
                # The head waits for the first chunk: what fails until then can still be answered with a status.
                if self._status is None:
                    await self._begin(response.status_code, encode_headers(response.headers))
                await self._send_body(chunk, more=True)
        if self._status is None:
            await self._begin(response.status_code, encode_headers(response.headers))
        await self._end()

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        # a child that failed closed its channel first, which must not pass for the end of the body
        await trio.lowlevel.checkpoint_if_cancelled()
        self._status = status
        headers = [*headers, *self._front.answer_headers(self._local_path, self.scope["headers"], self.request_id)]
        await self._send_message({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        self._sent_bytes += len(data)
        await self._send_message({"type": "http.response.body", "body": data, "more_body": more})

    async def _send_message(self, message: HTTPResponseStartEvent | HTTPResponseBodyEvent) -> None:
        try:
            await self._send(message)
        except BrokenPipeError:
            # the same news as a disconnect, and perhaps earlier
            self._leave()
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _end(self) -> None:
        # as in _begin()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._ending = True
        await self._send_body(b"", more=False)
        self._ended = True

    async def _answer(self, answer: PlainAnswer) -> None:
        await self._begin(answer.status, answer.headers)
        if answer.body:
            await self._send_body(answer.body, more=True)
        await self._end()

    def _final_status(self) -> int:
        """The status for the access log."""
        if self._client_left:
            return CLIENT_LEFT
        if self._ended and self._status is not None:
            return self._status
        return CUT_OFF if self._failure is None else 500


def _innermost(failure: BaseException) -> BaseException:
    """The only exception of a group, however deep it is."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure
