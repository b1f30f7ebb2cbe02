"""The responses that are errors, as the document shows them: one for each status, with an example of each error.

Owns: when each error comes. Must not know: its status, type and code (trioserve.errors), nor how it is written
(wire.errors): the examples are made by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import attrs
import msgspec

from trioserve.errors import (
    AuthenticationError,
    ContextLengthError,
    DeadlineError,
    DeviceError,
    EngineClosedError,
    EngineFailedError,
    EngineStoppingError,
    GenerationError,
    InternalError,
    ModelError,
    ModelNotFoundError,
    ParamError,
    QueueFullError,
    RequestCancelledError,
    RequestNotFoundError,
    StructureError,
    TrioserveError,
    error_row,
)
from trioserve.wire import errors as openai_errors
from trioserve.wire.anthropic import errors as anthropic_errors

Schema = dict[str, object]


@attrs.frozen
class Envelope:
    """What errors look like."""

    schema: str
    """The schema of the body."""
    http_response: str
    """The response for what HTTP itself refuses."""
    error_body: Callable[[BaseException], tuple[int, bytes]]
    http_error_body: Callable[[int, str], bytes]


OPENAI: Final = Envelope("Error", "HttpError", openai_errors.error_body, openai_errors.http_error_body)
ANTHROPIC: Final = Envelope(
    "MessagesError", "MessagesHttpError", anthropic_errors.error_body, anthropic_errors.http_error_body
)


@attrs.frozen
class Refusal:
    """An error that a client may get."""

    when: str
    error: TrioserveError
    """An example."""


def _generating() -> list[Refusal]:
    return [
        Refusal(
            "A field is wrong, and param names it; or the body is no JSON object.",
            ParamError("top_p must be between 0 and 1, got 7.", "top_p"),
        ),
        Refusal(
            "The prompt, or the prompt and the tokens that are asked for, do not fit the context.",
            ContextLengthError(2048, 2100, "messages"),
        ),
        Refusal("The model is not the one that is served.", ModelNotFoundError("gpt", ("smollm2",))),
        Refusal(
            "There is no room in the queue for all choices of the request; none was queued.",
            QueueFullError("The queue is full."),
        ),
        Refusal("The server is shutting down.", EngineStoppingError()),
        Refusal("The engine has ended.", EngineClosedError()),
        Refusal("This request failed; others did not.", GenerationError("The tokenizer failed.", "cmpl-1")),
        Refusal(
            "It was ended before there was anything to answer; embeddings only.",
            RequestCancelledError("The request was cancelled before its vectors were computed.", "embd-1"),
        ),
        Refusal(
            "A choice could not become what its structure says; those of other requests go on.",
            StructureError("No token may follow: all are forbidden."),
        ),
        Refusal(
            "An error ended the engine, which the message tells; the server ends.",
            EngineFailedError(DeviceError("The device failed in step 7: RuntimeError: out of memory")),
        ),
        Refusal("A step failed on the device; the server ends.", DeviceError("The device failed.")),
        Refusal("The model can't be read.", ModelError("The file is not a model.")),
    ]


def _anywhere() -> list[Refusal]:
    return [
        Refusal("The server wants an API key, and the request shows none of its keys.", AuthenticationError()),
        Refusal("The request did not end within its deadline.", DeadlineError()),
        Refusal("A bug of ours; the log has the details.", InternalError("Something impossible happened.")),
    ]


def refusals_of_generating() -> list[Refusal]:
    """What may come of asking for an answer."""
    return [*_generating(), *_anywhere()]


def refusals_of_tokenizing() -> list[Refusal]:
    """What may come of asking for tokens, of which nothing is computed."""
    about_request = (ParamError, ContextLengthError, ModelNotFoundError)
    return [*[refusal for refusal in _generating() if type(refusal.error) in about_request], *_anywhere()]


def refusals_of_models() -> list[Refusal]:
    """What may come of asking for a model by its id."""
    return [
        *[refusal for refusal in _generating() if isinstance(refusal.error, ModelNotFoundError)],
        *_anywhere(),
    ]


def refusals_of_cancelling() -> list[Refusal]:
    """What may come of ending a request."""
    return [
        Refusal(
            'No such request runs (param "id"), or it has no such choice (param "index").',
            RequestNotFoundError("No request 'cmpl-1' is running.", "id"),
        ),
        *_anywhere(),
    ]


def refusals_of_looking() -> list[Refusal]:
    """What may come of asking for anything else."""
    return _anywhere()


HTTP_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request is not valid HTTP/1.1, or X-Request-Timeout is no number of seconds.",
    403: "A browser asks for a page of an origin that is not among the server's --cors-origin.",
    404: "There is no such path.",
    405: "The method is not one of the path's.",
    408: "The head or the body of the request did not arrive in time.",
    413: "The body of the request is too large.",
    431: "The head of the request is too large.",
    500: "The request failed for a reason that is in the log.",
    501: "The request asks for something that only proxies do, or for an unknown transfer coding.",
    505: "The request is in another version of HTTP than 1.1 or 1.0.",
}
"""What is refused whatever the path is, by status."""

RETRY_AFTER: Final[Schema] = {
    "description": "When to come back.",
    "schema": {"type": "integer", "minimum": 1, "description": "Seconds."},
}


def error_responses(refusals: Iterable[Refusal], envelope: Envelope) -> dict[str, Schema]:
    """The responses by status: an example and the type and code of each error, and what HTTP itself refuses."""
    by_status: dict[int, list[Refusal]] = {}
    for refusal in refusals:
        by_status.setdefault(error_row(refusal.error).status, []).append(refusal)
    responses = {str(status): _response(by_status[status], envelope) for status in sorted(by_status)}
    return {**responses, "default": {"$ref": f"#/components/responses/{envelope.http_response}"}}


def _response(refusals: list[Refusal], envelope: Envelope) -> Schema:
    examples: dict[str, Schema] = {
        type(refusal.error).__name__: {
            "summary": refusal.when,
            "value": _decode(envelope.error_body(refusal.error)[1]),
        }
        for refusal in refusals
    }
    response: Schema = {
        "description": " ".join(refusal.when for refusal in refusals),
        "content": {"application/json": {"schema": _narrowed(examples, envelope), "examples": examples}},
    }
    if any(isinstance(refusal.error, (QueueFullError, EngineStoppingError)) for refusal in refusals):
        response["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
    return response


def _narrowed(examples: Mapping[str, Mapping[str, object]], envelope: Envelope) -> Schema:
    """The schema of an error with one of the types and codes of these."""
    errors = [cast("dict[str, dict[str, object]]", example["value"])["error"] for example in examples.values()]
    narrowed: dict[str, Schema] = {
        name: {"enum": list(dict.fromkeys(error[name] for error in errors))} for name in ("type", "code")
    }
    return {
        "$ref": f"#/components/schemas/{envelope.schema}",
        "type": "object",
        "properties": {"error": {"type": "object", "properties": narrowed}},
    }


def http_error_response(envelope: Envelope) -> Schema:
    """The response for what HTTP itself refuses."""
    examples = {
        str(status): {"summary": when, "value": _decode(envelope.http_error_body(status, when))}
        for status, when in HTTP_REFUSALS.items()
    }
    return {
        "description": "What HTTP itself refuses, whatever the path is: "
        + " ".join(f"{status}: {when}" for status, when in HTTP_REFUSALS.items()),
        "content": {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{envelope.schema}"}, "examples": examples}
        },
    }


def _decode(body: bytes) -> dict[str, object]:
    return msgspec.json.decode(body, type=dict[str, object])
