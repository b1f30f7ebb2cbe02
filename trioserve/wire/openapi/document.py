"""The document: every path, what it reads and what it answers, with the bounds of the server that serves it.

Owns: how the parts are put together, and the bounds. Must not know: handlers, the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import attrs
import msgspec

from trioserve.params import Limits
from trioserve.wire import neutral
from trioserve.wire.openapi import answers, message_requests, requests, response_requests, tokens
from trioserve.wire.openapi.marks import extension_marks
from trioserve.wire.openapi.operations import Operation, operations_of
from trioserve.wire.openapi.refusals import ANTHROPIC, OPENAI, RETRY_AFTER, Schema, error_responses, http_error_response

_SCHEMA: Final = "#/components/schemas/{name}"
_JSON_TYPES: Final = {dict: "object", list: "array", bool: "boolean", int: "integer", str: "string"}
_CHUNKS: Final = """\
With "stream": an event of the stream. Each is about one choice, those of different choices come in turn. What goes
wrong half way is an error in place of the rest. The last event is [DONE], which is no JSON. A long silence is filled
with comment lines. A client that reads nothing for the --slow-reader-timeout is cut off."""
_INTRODUCTION: Final = """\
Answers of a language model, in the format of OpenAI's API. All n choices of a request come from one computation of its
prompt.

What goes beyond that API is marked with `x-extension: true`; `x-contract` names the line of the fan-out contract that
it serves. `x-options` has the bounds that this server was started with; they stand in the schemas too.

A request is one JSON object, whatever its content type says. Nothing is ignored: a field that is not known, a value of
the wrong type or out of range, and a feature that is not served, are refused with 400 and the name of the field in
`error.param`. Null is the same as leaving a field out. An integer has no fraction and no exponent: 2.0 is none."""


@attrs.frozen(kw_only=True)
class Served:
    """What differs between servers."""

    version: str
    models: tuple[str, ...]
    limits: Limits
    context_length: int
    """Tokens of a prompt and its answer at most."""
    vocab_size: int
    empty_prompts: bool
    """An empty text is a prompt: it begins with the model's BOS."""
    slow_reader_timeout_s: float
    """``math.inf`` for no limit."""
    engine: type[attrs.AttrsInstance]
    """The class that /v1/engine gives the fields of."""
    embedding_dim: int | None = None
    """Numbers in a vector; None: the model makes none."""
    root_path: str = ""
    """The prefix of all paths, as clients see them."""
    wants_key: bool = False
    """Whether a request must show an API key."""


def build_document(served: Served) -> Schema:
    """The document, to be encoded as JSON."""
    operations = operations_of(served.engine)
    paths: dict[str, dict[str, Schema]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trioserve",
            "version": served.version,
            "description": _INTRODUCTION,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": served.root_path or "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}] if served.wants_key else [],
        "x-options": _options(served),
        "paths": paths,
        "components": {
            "schemas": _schemas(operations, served),
            "parameters": _parameters(),
            "headers": {"Retry-After": RETRY_AFTER, "X-Request-Id": _request_id_header()},
            "responses": {envelope.http_response: http_error_response(envelope) for envelope in (OPENAI, ANTHROPIC)},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(operation: Operation) -> Schema:
    said: Schema = {"summary": operation.summary, **operation.marks}
    # the last one is for whatever is asked
    names = (*operation.parameters, "X-Request-Timeout")
    said["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if operation.keyless:
        said["security"] = []
    if operation.request is not None:
        said["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.request)}},
        }
    said["responses"] = {"200": _answer(operation), **error_responses(operation.refusals, operation.envelope)}
    return said


def _answer(operation: Operation) -> Schema:
    content: dict[str, Schema] = {}
    if operation.answer is None:
        content["text/plain"] = {"schema": {"type": "string"}}
    else:
        schema = _reference(operation.answer)
        content["application/json"] = {"schema": {"type": "array", "items": schema} if operation.many else schema}
    if operation.chunk is not None:
        chunk = _json_text([operation.chunk, answers.Error])
        fields: dict[str, Schema] = {"data": {"type": "string", "if": {"const": "[DONE]"}, "else": chunk}}
        content["text/event-stream"] = {"schema": _event(_CHUNKS, fields)}
    if operation.events:
        fields = {"event": {"type": "string"}, "data": {"type": "string", **_json_text(operation.events)}}
        content["text/event-stream"] = {"schema": _event(operation.stream, fields)}
    return {
        "description": "The answer.",
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}},
        "content": content,
    }


def _event(description: str, fields: dict[str, Schema]) -> Schema:
    """The schema of one event of a stream. OpenAPI 3.1 says nothing of streams; this is how 3.2 describes an event."""
    return {"description": description, "type": "object", "properties": fields, "required": list(fields)}


def _json_text(classes: Iterable[type]) -> Schema:
    """What a text is that is one of these in JSON."""
    return {
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_reference(cls) for cls in classes]},
    }


def _reference(cls: type) -> Schema:
    return {"$ref": _SCHEMA.format(name=cls.__name__)}


# ---- parameters and options


def _parameters() -> Schema:
    text: Schema = {"type": "string"}
    return {
        "X-Request-Id": {
            "name": "X-Request-Id",
            "in": "header",
            "description": "An id of the caller's, up to 128 printable ASCII characters; any other is ignored. It "
            "comes back with the response, and DELETE takes it in place of the answer's id.",
            "schema": text,
        },
        "X-Request-Timeout": {
            "name": "X-Request-Timeout",
            "in": "header",
            "description": "Seconds after which the request is ended, if the server's own --request-timeout is not "
            "shorter: with 504, or with an error event in a stream.",
            "schema": {"type": "string", "pattern": r"^(?=.*[1-9])\d{1,9}(\.\d{1,9})?$"},
        },
        "model": {"name": "id", "in": "path", "required": True, "schema": text},
        "request": {
            "name": "id",
            "in": "path",
            "required": True,
            "description": "The id of the answer, or the X-Request-Id of the request; then all that have it are ended.",
            "schema": text,
        },
        "index": {
            "name": "index",
            "in": "path",
            "required": True,
            "description": "That of the choice in the answer.",
            "schema": {"type": "integer", "minimum": 0},
        },
    }


def _request_id_header() -> Schema:
    return {"description": "The request's own, or one that the server has made.", "schema": {"type": "string"}}


def _options(served: Served) -> Schema:
    """The options that bound what a client may do."""
    limits, timeout = served.limits, served.slow_reader_timeout_s
    return {
        "--max-n": {"value": limits.max_n, "description": "Choices of a prompt at most."},
        "--max-choices": {"value": limits.max_choices, "description": "Prompts times n at most."},
        "--greedy-n": {
            "value": limits.greedy_n,
            "description": "What n above 1 means with a temperature of 0: refused, or decoded once and given n times.",
            **extension_marks(6),
        },
        "--slow-reader-timeout": {
            "value": None if timeout == float("inf") else timeout,
            "description": "Seconds that a client may read nothing of what it is sent, before it is cut off.",
            **extension_marks(29),
        },
    }


# ---- schemas


def _schemas(operations: list[Operation], served: Served) -> dict[str, Schema]:
    found = [
        [operation.request, operation.answer, operation.chunk, *operation.events, *operation.parts]
        for operation in operations
    ]
    types: list[type] = [cls for classes in found for cls in classes if cls is not None]
    _, made = msgspec.json.schema_components([*types, answers.Error], ref_template=_SCHEMA)
    schemas = cast("dict[str, Schema]", made)
    schemas["TokenIds"] = requests.token_ids(served.vocab_size)
    schemas[served.engine.__name__] = _named(schemas[served.engine.__name__], "engine")
    for name, table, labels in (
        ("ChatRequest", neutral.CHAT, neutral.CHAT_LABELS),
        ("CompletionRequest", neutral.COMPLETION, neutral.COMPLETION_LABELS),
        ("AssistantMessage", neutral.MESSAGE, {}),
        ("StreamOptions", neutral.STREAM_OPTIONS, {}),
        ("EmbeddingsRequest", {}, neutral.EMBEDDING_LABELS),
        ("GenerateRequest", neutral.GENERATE, {}),
        ("GenerateParams", neutral.GENERATE_PARAMS, {}),
        *response_requests.UNSERVED,
        *message_requests.UNSERVED,
    ):
        _add_unserved(_properties(schemas[name]), table, labels)
    names = ("ChatRequest", "CompletionRequest", "EmbeddingsRequest")
    for name in (*names, "ResponsesRequest", "MessagesRequest", "CountRequest"):
        _properties(schemas[name])["model"]["enum"] = list(served.models)
    for name in ("TokenizeRequest", "DetokenizeRequest", "GenerateRequest"):
        _given(_properties(schemas[name])["model"])["enum"] = list(served.models)
    for name, ids in (("DetokenizeRequest", "tokens"), ("GenerateRequest", "token_ids")):
        cast("Schema", _properties(schemas[name])[ids]["items"])["maximum"] = served.vocab_size - 1
    for name in ("ChatRequest", "CompletionRequest", "GenerateParams", "ResponsesRequest", "MessagesRequest"):
        _set_bounds(_properties(schemas[name]), served)
    schemas["TokenizeRequest"]["oneOf"] = tokens.EITHER
    _bound_prompts(_properties(schemas["CompletionRequest"]), "prompt", served)
    _bound_prompts(_properties(schemas["EmbeddingsRequest"]), "input", served)
    if served.embedding_dim is not None:
        dimensions = _given(_properties(schemas["EmbeddingsRequest"])["dimensions"])
        dimensions.update(minimum=served.embedding_dim, maximum=served.embedding_dim)
    # only a chat of OpenAI's knows no best_of
    _properties(schemas["ChatRequest"])["best_of"].update(extension_marks(32))
    _given(_properties(schemas["ChoiceParams"])["max_tokens"])["maximum"] = served.context_length
    for name in ("ResponsesRequest", "MessagesRequest"):
        for field, marks in response_requests.EXTENSIONS.items():
            _properties(schemas[name])[field].update(marks)
    for name in ("finished", "agree"):
        _given(_properties(schemas["StopWhen"])[name])["maximum"] = served.limits.max_choices
    return schemas


def _named(schema: Schema, name: str) -> Schema:
    """The schema of an object that tells its name in the field "object"."""
    return {
        **schema,
        "properties": {"object": {"enum": [name]}, **_properties(schema)},
        "required": ["object", *cast("list[str]", schema["required"])],
    }


def _add_unserved(properties: dict[str, Schema], table: neutral.Neutral, labels: neutral.Labels) -> None:
    for name, accepted in table.items():
        properties[name] = {
            "description": "Not served: any value that asks for something is refused.",
            "enum": [None, *accepted],
        }
    for name, (kind, _) in labels.items():
        properties[name] = {"description": "Accepted, and of no effect.", "type": [_JSON_TYPES[kind], "null"]}


def _set_bounds(properties: dict[str, Schema], served: Served) -> None:
    limits = served.limits
    for name in ("n", "best_of"):
        _given(properties[name])["maximum"] = limits.max_n
    _given(properties["choice_params"])["maxItems"] = limits.max_n
    for name in {"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"} & set(properties):
        _given(properties[name])["maximum"] = served.context_length
    cast("Schema", _given(properties["stop_token_ids"])["items"])["maximum"] = served.vocab_size - 1


def _bound_prompts(properties: dict[str, Schema], name: str, served: Served) -> None:
    text: Schema = {"type": "string"} if served.empty_prompts else {"type": "string", "minLength": 1}
    _, ids, several = cast("list[Schema]", properties[name]["anyOf"])
    several = {**several, "items": {"anyOf": [text, ids]}, "maxItems": served.limits.max_choices}
    properties[name] = {**properties[name], "anyOf": [text, ids, several]}


def _properties(schema: Schema) -> dict[str, Schema]:
    return cast("dict[str, Schema]", schema["properties"])


def _given(schema: Schema) -> Schema:
    """What a field may be if it is not null, which some can't be."""
    return cast("list[Schema]", schema.get("anyOf", [schema]))[0]
