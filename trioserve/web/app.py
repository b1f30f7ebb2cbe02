"""The Quart-Trio app: paths to handlers, and errors to answers.

Owns: the URL map and the error handlers. Must not know: what the handlers do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quart import request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from trioserve.engine.engine import Engine
from trioserve.errors import EngineStoppingError, GenerationError, InternalError, QueueFullError, TrioserveError
from trioserve.web.dialects import error_format
from trioserve.web.metrics import Metrics
from trioserve.web.options import ServeOptions
from trioserve.web.routes.cancelling import Cancelling
from trioserve.web.routes.embedding import Embedding
from trioserve.web.routes.generating import Generating
from trioserve.web.routes.looking import Looking
from trioserve.web.routes.messages import Messages
from trioserve.web.routes.responses import Responses
from trioserve.web.routes.service import Service, json_response
from trioserve.web.routes.tokens import Tokens

if TYPE_CHECKING:
    # imports OpenTelemetry, which need not be there
    from trioserve.web.tracing import Tracing

logger = logging.getLogger(__name__)


class NameConverter(BaseConverter):
    """The part of a path that is the name of a model or a request: any text, with slashes and line feeds too.

    Werkzeug's own "path" matches no line feed, and nothing that begins with a slash.
    """

    part_isolating = False
    regex = "(?s:.+?)"
    weight = 200


def create_app(engine: Engine, options: ServeOptions = ServeOptions(), *, tracing: Tracing | None = None) -> QuartTrio:
    """The app that serves ``engine``. Run it with web.serve, which gives it the connection class it needs."""
    app = QuartTrio("trioserve", static_folder=None)
    app.url_map.converters["name"] = NameConverter
    # a redirect, which is what merging means, would be an answer that no client of the API expects
    app.url_map.merge_slashes = False
    metrics = Metrics(engine)
    engine.add_observer(metrics)
    if tracing is not None:
        engine.add_observer(tracing.observer(engine.model.id))
        app.before_request(tracing.begin_request)
    service = Service.of(engine, options, metrics)
    themes = (
        *(Looking(service), Generating(service), Responses(service), Messages(service)),
        *(Tokens(service), Embedding(service), Cancelling(service)),
    )
    for theme in themes:
        for rule in theme.rules:
            app.add_url_rule(rule.path, rule.handler.__name__, rule.handler, methods=[rule.method])
    app.register_error_handler(TrioserveError, refuse)
    app.register_error_handler(HTTPException, refuse_http)
    app.register_error_handler(Exception, fail)
    return app


async def refuse(error: TrioserveError) -> TrioResponse:
    """The answer to a request that one of our own errors ended before its response began."""
    status, body = error_format(request.path).error_body(error)
    response = json_response(body, status)
    if isinstance(error, (QueueFullError, EngineStoppingError)):
        response.headers["retry-after"] = str(error.retry_after)
    # the engine has logged a choice that failed, with its traceback
    if status >= 500 and not isinstance(error, GenerationError):
        bug = error if isinstance(error, InternalError) else None
        logger.error("%s %s: %s", request.method, request.path, error, exc_info=bug)
    return response


async def refuse_http(error: HTTPException) -> TrioResponse:
    """The answer to an unknown path, a wrong method, a body that is too large, ..."""
    status = error.code or 500
    messages = {
        404: f"There is no {request.path}.",
        405: f"{request.method} is not allowed for {request.path}.",
        408: "The body of the request did not arrive in time.",
        413: "The body of the request is too large.",
    }
    body = error_format(request.path).http_error_body(status, messages.get(status, error.description or error.name))
    response = json_response(body, status)
    # what belongs to the status, such as Allow, but not what belongs to Werkzeug's HTML
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


async def fail(error: Exception) -> TrioResponse:
    """The answer to a bug of ours. Its text is for the log, not for the client."""
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    status, body = error_format(request.path).error_body(error)
    return json_response(body, status)
