"""The document of the newer dialects against what it describes: fields, extensions and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import attrs
import openai.types.responses as theirs
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from trioserve.errors import ParamError
from trioserve.params import INT32_MAX, INT64_MAX, Limits
from trioserve.testing.schemas import Schemas, put
from trioserve.wire.anthropic.decode import parse_count, parse_message
from trioserve.wire.decode import check_model
from trioserve.wire.fields import Fields
from trioserve.wire.openapi.document import Served, build_document
from trioserve.wire.responses import decode
from trioserve.wire.responses.decode import parse_response

MODEL = "tiny-chat"
LIMITS = Limits()


@attrs.frozen
class Snapshot:
    """Stands in for the class of /v1/engine, which is the engine's."""

    model: str


SERVED = Served(
    version="1.2",
    models=(MODEL,),
    limits=LIMITS,
    slow_reader_timeout_s=30.0,
    context_length=INT32_MAX,
    vocab_size=INT32_MAX,
    empty_prompts=True,
    engine=Snapshot,
)
DOCUMENT: Any = json.loads(json.dumps(build_document(SERVED)))
SCHEMAS = Schemas(DOCUMENT)

MARK = {"type": "ephemeral", "ttl": "5m"}
TEXT = {"type": "text", "text": "x", "cache_control": MARK}
MESSAGES = {
    "messages": [
        {"role": "user", "content": [TEXT]},
        {
            "role": "assistant",
            "content": [
                TEXT,
                {"type": "thinking", "thinking": "x", "cache_control": MARK},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}, "cache_control": MARK},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT], "cache_control": MARK}],
        },
        {"role": "system", "content": [TEXT]},
    ],
    "system": [TEXT],
    "tools": [{"name": "f", "input_schema": {}, "cache_control": MARK}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 1},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "cache_control": MARK,
}
FULLEST: dict[str, Any] = {
    "ResponsesRequest": {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "x"}]},
        ],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "description": "x", "strict": True}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "stream": True,
        "stream_options": {},
        "stop_when": {"finished": 1},
        "choice_params": [{}],
    },
    "MessagesRequest": {
        "model": MODEL,
        "max_tokens": INT32_MAX,
        **MESSAGES,
        "metadata": {"user_id": "x"},
        "stream": True,
        "stop_when": {"finished": 1},
        "choice_params": [{}],
    },
    "CountRequest": {"model": MODEL, **MESSAGES},
}
FORMATS = ("text", "output_config")
"""What goes with none of the fields that end a choice elsewhere."""
PARSE: dict[str, Callable[[bytes, Limits], Any]] = {
    "ResponsesRequest": parse_response,
    "MessagesRequest": parse_message,
    "CountRequest": parse_count,
}
every = pytest.mark.parametrize("kind", PARSE)


def parse(kind: str, body: object) -> Any:
    call = PARSE[kind](json.dumps(body).encode(), LIMITS)
    check_model(call.model, [MODEL])
    return call


def is_served(kind: str, body: object) -> bool:
    try:
        parse(kind, body)
    except ParamError:
        return False
    return True


VALIDATORS = {
    kind: Draft202012Validator({"$ref": f"#/components/schemas/{kind}", "components": DOCUMENT["components"]})
    for kind in PARSE
}


def is_valid(kind: str, body: object) -> bool:
    return bool(VALIDATORS[kind].is_valid(body))


@every
def test_the_fields_that_are_documented_are_those_that_are_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    take = Fields.take

    def noting(fields: Fields, name: str) -> object:
        read.add(re.sub(r"\b\d+\b", "*", fields.path(name)))
        return take(fields, name)

    monkeypatch.setattr(Fields, "take", noting)
    parse(kind, FULLEST[kind])
    if kind != "CountRequest":
        outputs = {"structured_outputs": {"choice": ["x"]}}
        parse(kind, {**{name: value for name, value in FULLEST[kind].items() if name not in FORMATS}, **outputs})
    if kind == "ResponsesRequest":
        parse(kind, {**FULLEST[kind], "tool_choice": {"type": "function", "name": "f"}})
    assert set(SCHEMAS.field_paths(SCHEMAS[kind])) == read


# What a field may be tried with; 1.0 is left out, which is an integer for JSON Schema only.
VALUES: list[object] = [
    *[None, True, False, 0, 1, -1, 2, 0.5, -0.5, 2.1, INT32_MAX, INT32_MAX + 1, INT64_MAX + 1],
    *["", "x", "auto", "none", "text", "low", "f", MODEL, "x" * 200],
    *[[], [""], ["x"], [1], [None], [{}], [{"type": "text", "text": "x"}], [{"type": "image"}], [{"x": 1}]],
    *[{}, {"type": "text"}, {"a": 1}, {"a": "x"}, {"type": "none"}, {"type": "direct"}, {"type": "adaptive"}],
]
OWN = [
    (kind, name)
    for kind in PARSE
    for name, schema in SCHEMAS[kind]["properties"].items()
    # one that a completion has too is tried there, and the model in test_decode
    if name != "model" and SCHEMAS["CompletionRequest"]["properties"].get(name) != schema
]


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_a_field_takes_what_the_document_says_and_nothing_else(kind: str, name: str) -> None:
    separate = {"stop_when", "choice_params", *FORMATS}
    least = {key: value for key, value in FULLEST[kind].items() if key not in separate}
    if name in ("stream", "best_of"):
        least.pop("stream_options", None)
    if name == "best_of":
        del least["stream"]
    if name == "tools":
        del least["tool_choice"]
    for value in [*VALUES, *SCHEMAS.bounds(SCHEMAS[kind]["properties"][name])]:
        # there are no more tools than can have a name, which is said in words
        if name == "tools" and isinstance(value, list) and len(value) > 1:
            continue
        body = {**least, name: value}
        assert is_valid(kind, body) == is_served(kind, body), value


def inside(kind: str, path: str, *names: str) -> list[tuple[str, str]]:
    return [(kind, f"{path}.{name}") for name in (*names, "x")]


NESTED = [
    *inside("ResponsesRequest", "input.0", "type", "role", "content", "id", "status", "choice"),
    *inside("ResponsesRequest", "input.0.content.0", "type", "text", "annotations", "logprobs"),
    *inside("ResponsesRequest", "input.1", "content", "summary", "encrypted_content"),
    *inside("ResponsesRequest", "input.1.content.0", "type", "text"),
    *inside("ResponsesRequest", "input.2", "call_id", "name", "arguments", "caller", "async"),
    *inside("ResponsesRequest", "input.3", "call_id", "output", "name"),
    *inside("ResponsesRequest", "text", "format", "verbosity"),
    *inside("ResponsesRequest", "text.format", "name", "schema", "description", "strict"),
    *inside("ResponsesRequest", "reasoning", "effort", "summary"),
    *inside("ResponsesRequest", "tools.0", "type", "description", "parameters", "strict", "async"),
    *inside("ResponsesRequest", "tool_choice", "mode", "type"),
    *inside("ResponsesRequest", "tool_choice.tools.0", "type"),
    *inside("ResponsesRequest", "stream_options", "include_obfuscation"),
    *[each for i in range(4) for each in inside("MessagesRequest", f"messages.{i}", "role", "content")],
    *inside("MessagesRequest", "messages.0.content.0", "type", "text", "citations", "choice"),
    *inside("MessagesRequest", "messages.1.content.1", "thinking", "signature"),
    *inside("MessagesRequest", "messages.1.content.2", "id", "name", "input", "caller"),
    *inside("MessagesRequest", "messages.2.content.0", "tool_use_id", "content", "is_error"),
    *inside("MessagesRequest", "system.0.cache_control", "type", "ttl"),
    *inside("MessagesRequest", "tools.0", "type", "description", "input_schema", "strict", "input_examples"),
    *inside("MessagesRequest", "tool_choice", "type", "disable_parallel_tool_use"),
    *inside("MessagesRequest", "thinking", "budget_tokens", "display"),
    *inside("MessagesRequest", "output_config", "format", "effort", "format.schema"),
    *inside("MessagesRequest", "metadata", "user_id"),
]


@pytest.mark.parametrize(("kind", "path"), NESTED)
def test_a_field_inside_takes_what_the_document_says_and_nothing_else(kind: str, path: str) -> None:
    for value in VALUES:
        body = put(FULLEST[kind], path, value)
        assert is_valid(kind, body) == is_served(kind, body), value


@every
def test_leaving_a_field_out_is_its_default(kind: str) -> None:
    least = {name: FULLEST[kind][name] for name in SCHEMAS[kind]["required"]}
    for name, schema in SCHEMAS[kind]["properties"].items():
        if name not in SCHEMAS[kind]["required"]:
            assert parse(kind, {**least, name: None}) == parse(kind, least), name
            assert parse(kind, {**least, name: schema.get("default")}) == parse(kind, least), name


@every
def test_every_field_that_is_read_says_what_it_means(kind: str) -> None:
    for name, schema in SCHEMAS[kind]["properties"].items():
        assert any(one.get("description") for one in SCHEMAS.alternatives(schema)), name


def marked(schema: Any) -> bool:
    return any(one.get("x-extension", False) for one in SCHEMAS.alternatives(schema))


def test_a_field_of_a_response_s_request_is_an_extension_if_openai_does_not_know_it() -> None:
    known = get_type_hints(theirs.response_create_params.ResponseCreateParamsStreaming)
    for name, schema in SCHEMAS["ResponsesRequest"]["properties"].items():
        if name not in {**decode.NEUTRAL, **decode.STATELESS}:
            assert marked(schema) == (name not in known), name


# of anthropic.types
MESSAGE_FIELDS = {
    *("model", "max_tokens", "messages", "cache_control", "container", "diagnostics", "inference_geo", "metadata"),
    *("output_config", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature", "thinking"),
    *("tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id", "mcp_servers"),
}


def test_a_field_of_a_message_s_request_is_an_extension_if_anthropic_does_not_know_it() -> None:
    for name, schema in SCHEMAS["MessagesRequest"]["properties"].items():
        assert marked(schema) == (name not in MESSAGE_FIELDS), name
    assert set(SCHEMAS["CountRequest"]["properties"]) <= MESSAGE_FIELDS


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Response", theirs.Response),
        ("ResponseUsage", theirs.ResponseUsage),
        ("MessageItem", theirs.ResponseOutputMessage),
        ("ReasoningItem", theirs.ResponseReasoningItem),
        ("CallItem", theirs.ResponseFunctionToolCall),
        ("OutputText", theirs.ResponseOutputText),
        ("RepeatedTool", theirs.FunctionTool),
    ],
)
def test_a_field_of_a_response_is_an_extension_if_openai_does_not_know_it(name: str, model: type[BaseModel]) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        assert schema.get("x-extension", False) == (field not in model.model_fields), field


def examples(responses: Any, status: str) -> Iterator[Any]:
    for media in responses[status]["content"].values():
        for example in media["examples"].values():
            yield example["value"]["error"]


def test_the_errors_of_messages_are_those_of_chats_in_another_envelope() -> None:
    chats = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]
    messages = DOCUMENT["paths"]["/v1/messages"]["post"]["responses"]
    assert messages["default"] == {"$ref": "#/components/responses/MessagesHttpError"}
    for status in chats.keys() - {"200", "default"}:
        for ours, other in zip(examples(chats, status), examples(messages, status), strict=True):
            assert {**ours, "type": other["type"]} == other
