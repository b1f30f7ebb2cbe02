"""The document against what it describes: fields against those that are read, bounds against those that hold."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import openai.types
import openai.types.chat
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

import trioserve.web
from trioserve.errors import ERRORS, ParamError
from trioserve.params import INT32_MAX, INT64_MAX, INT64_MIN, Limits
from trioserve.testing.schemas import Schemas, put
from trioserve.text.agreement import MAX_PATTERN_LENGTH
from trioserve.wire import neutral
from trioserve.wire.calls import Call
from trioserve.wire.decode import check_model, parse_chat, parse_completion
from trioserve.wire.embeddings import EmbeddingsCall, parse_embeddings
from trioserve.wire.fields import Fields
from trioserve.wire.generate import parse_generate
from trioserve.wire.openapi.document import Served, build_document
from trioserve.wire.prompts import MAX_TOKEN_ID
from trioserve.wire.tokenizing import DetokenizeCall, TokenizeCall, parse_detokenize, parse_tokenize

MODEL = "tiny-chat"
LIMITS = Limits()


@attrs.frozen
class Snapshot:
    """Stands in for the class of /v1/engine, which is the engine's."""

    model: str


def document(limits: Limits = LIMITS, *, empty_prompts: bool = True, embedding_dim: int | None = None) -> Any:
    served = Served(
        version="1.2",
        models=(MODEL,),
        limits=limits,
        # what the parser takes before it is compared with a model
        context_length=INT32_MAX,
        vocab_size=MAX_TOKEN_ID + 1,
        empty_prompts=empty_prompts,
        embedding_dim=embedding_dim,
        slow_reader_timeout_s=30.0,
        engine=Snapshot,
    )
    return json.loads(json.dumps(build_document(served)))


DOCUMENT = document()
SCHEMAS = Schemas(DOCUMENT)

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TALK = [{"role": "user", "content": "x"}]
NAMED = {"type": "function", "function": {"name": "f"}}
FULLEST: dict[str, Any] = {
    "ChatRequest": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "x"}], "name": "a"},
            {"role": "developer", "content": "x"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_call_id": "1"},
        ],
        "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "description": "x", "schema": {}, "strict": True},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop_when": {"finished": 1},
        "choice_params": [{}],
        "logprobs": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
    },
    "CompletionRequest": {
        "model": MODEL,
        "prompt": "x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop_when": {"finished": 1},
        "choice_params": [{}],
    },
    "GenerateRequest": {
        "model": MODEL,
        "token_ids": [1],
        "sampling_params": {
            "stop_when": {"finished": 1},
            "choice_params": [{}],
            "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "EmbeddingsRequest": {"model": MODEL, "input": "x"},
    "TokenizeRequest": {"model": MODEL, "prompt": "x"},
    "DetokenizeRequest": {"model": MODEL, "tokens": [1]},
}
STRUCTURED = {"structured_outputs": {"choice": ["x"]}}
# what not every value of another field goes with
SEPARATE = {"stop_when", "choice_params", "response_format"}
# what a conversation is rendered with is the same for both
CHAT_TO_TOKENIZE: dict[str, Any] = {
    name: value for name, value in FULLEST["ChatRequest"].items() if name in SCHEMAS["TokenizeRequest"]["properties"]
}
PARSE: dict[str, Callable[[bytes, Limits], Call | EmbeddingsCall | TokenizeCall | DetokenizeCall]] = {
    "ChatRequest": parse_chat,
    "CompletionRequest": parse_completion,
    "GenerateRequest": parse_generate,
    "EmbeddingsRequest": parse_embeddings,
    "TokenizeRequest": parse_tokenize,
    "DetokenizeRequest": parse_detokenize,
}
ALL = tuple(PARSE)
BOTH = ("ChatRequest", "CompletionRequest")

both = pytest.mark.parametrize("kind", BOTH)
every = pytest.mark.parametrize("kind", ALL)


def parse(kind: str, body: object) -> Call | EmbeddingsCall | TokenizeCall | DetokenizeCall:
    call = PARSE[kind](json.dumps(body).encode(), LIMITS)
    if call.model:
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
    for kind in ALL
}


def is_valid(kind: str, body: object) -> bool:
    return bool(VALIDATORS[kind].is_valid(body))


def test_an_empty_text_is_a_prompt_only_where_it_has_a_token() -> None:
    for empty_prompts in (True, False):
        components = document(empty_prompts=empty_prompts)["components"]
        for request, name in (("CompletionRequest", "prompt"), ("EmbeddingsRequest", "input")):
            schema = {**components["schemas"][request]["properties"][name], "components": components}
            valid = Draft202012Validator(schema).is_valid
            assert (valid(""), valid(["x", ""])) == (empty_prompts, empty_prompts)
            assert valid("x")
            assert valid(["x", [1]])
            assert not valid(["x"] * (LIMITS.max_choices + 1))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prompt": "x"},
        {"prompt": ""},
        {"messages": TALK},
        {"prompt": "x", "messages": TALK},
        {"prompt": "x", "messages": None},
        {"prompt": None, "messages": TALK},
        {"prompt": None},
        {"prompt": "x", "tools": None},
        {"prompt": "x", "add_special_tokens": True},
        {"prompt": "x", "add_generation_prompt": True},
        {"prompt": "x", "chat_template_kwargs": {}},
        {"prompt": "x", "parallel_tool_calls": False},
        {"messages": TALK, "add_special_tokens": True},
        {"messages": TALK, "add_special_tokens": False},
        {"messages": TALK, "add_generation_prompt": False},
    ],
)
def test_a_text_and_a_conversation_have_each_their_own_fields(given: dict[str, Any]) -> None:
    assert is_valid("TokenizeRequest", given) == is_served("TokenizeRequest", given)


def test_the_document_is_valid() -> None:
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


@every
def test_the_fields_that_are_documented_are_those_that_are_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    take = Fields.take

    def noting(fields: Fields, name: str) -> object:
        read.add(re.sub(r"\b\d+\b", "*", fields.path(name)))
        return take(fields, name)

    monkeypatch.setattr(Fields, "take", noting)
    parse(kind, FULLEST[kind])
    if kind == "ChatRequest":
        # the other form of a field
        parse(kind, {**FULLEST[kind], "tool_choice": NAMED, "response_format": None, **STRUCTURED})
    if kind == "CompletionRequest":
        parse(kind, {**FULLEST[kind], **STRUCTURED})
    if kind == "GenerateRequest":
        parse(kind, {**FULLEST[kind], "sampling_params": STRUCTURED})
    if kind == "TokenizeRequest":
        parse(kind, CHAT_TO_TOKENIZE)
        parse(kind, {**CHAT_TO_TOKENIZE, "tool_choice": NAMED})
    assert set(SCHEMAS.field_paths(SCHEMAS[kind])) == read


# What a field may be tried with; 1.0 is left out, which is an integer for JSON Schema only.
VALUES: list[object] = [
    *[None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-6, 2.1, -2],
    *[INT32_MAX, INT32_MAX + 1, INT64_MAX, INT64_MAX + 1, INT64_MIN, INT64_MIN - 1],
    *[
        "",
        "x",
        "auto",
        "none",
        "text",
        "content",
        "medium",
        "fail",
        "isolate",
        "system",
        "function",
        MODEL,
        "x" * 1024,
        "x" * 1025,
    ],
    *[[], [""], ["x"], ["x", ""], ["x"] * 64, ["x"] * 65, [1], [-1], [True], [0.5], [1, "x"], ["x", [1]], [[1], [2]]],
    *[[[]], [[[1]]], [INT32_MAX], [INT32_MAX + 1], [None], ["text"], [{}], [{"type": "text", "text": "x"}], [CALL]],
    *[[{"type": "text"}], [{"type": "image"}], [{"seed": 1}], [{"x": 1}]],
    *[{}, {"type": "text"}, {"a": 1}, {"include_usage": True}, {"include_usage": 1}, {"name": "f", "arguments": ""}],
    *[{"5": 100}, {"5": 101}, {"05": 1}, {"5": "1"}],
    *[{"type": "content"}, {"type": "content", "content": "x"}, {"type": "text", "content": "x"}],
]
UNSETTLED = {"model": "of any other type than text, by test_decode"}


TOP = [(kind, name) for kind in ALL for name in SCHEMAS[kind]["properties"] if name not in UNSETTLED]


@pytest.mark.parametrize(("kind", "name"), TOP)
def test_a_field_takes_what_the_document_says_and_nothing_else(kind: str, name: str) -> None:
    least = {key: value for key, value in FULLEST[kind].items() if key not in SEPARATE}
    if name in ("stream", "best_of"):
        least.pop("stream_options", None)
    if name == "best_of":
        del least["stream"]
    if kind == "TokenizeRequest" and name not in ("prompt", "add_special_tokens"):
        least = dict(CHAT_TO_TOKENIZE)
    if name == "tools":
        least.pop("tool_choice", None)
    if name == "logprobs":
        least["top_logprobs"] = None
    whole = {0, 1, 2}
    for value in [*VALUES, *SCHEMAS.bounds(SCHEMAS[kind]["properties"][name])]:
        if isinstance(value, float) and value in whole:
            continue
        if (name, value) in (("stop_when", {}), ("structured_outputs", {}), ("choice_params", [{}] * 2)):
            continue
        if (name, value) == ("sampling_params", {"stop_when": {}}):
            continue
        body = {**least, name: value}
        assert is_valid(kind, body) == is_served(kind, body), value


NESTED = [
    *[("CompletionRequest", f"choice_params.0.{name}") for name in SCHEMAS["ChoiceParams"]["properties"]],
    *[("ChatRequest", f"stream_options.{name}") for name in ("continuous_usage_stats", "include_obfuscation")],
    ("ChatRequest", "stream_options.include_usage"),
    ("CompletionRequest", "stop_when.finished"),
    ("CompletionRequest", "stop_when"),
    ("ChatRequest", "messages.0"),
    ("ChatRequest", "messages"),
    *[("ChatRequest", f"messages.{i}.{name}") for i in range(5) for name in ("role", "content", "name", "x")],
    *[("ChatRequest", f"messages.3.{name}") for name in ("tool_calls", "annotations", "refusal", "audio")],
    *[("ChatRequest", f"messages.3.tool_calls.0.{name}") for name in ("id", "type", "function", "x")],
    *[("ChatRequest", f"messages.3.tool_calls.0.function.{name}") for name in ("name", "arguments", "x")],
    *[("ChatRequest", f"messages.{i}.tool_call_id") for i in (2, 4)],
    *[("ChatRequest", f"messages.0.content.0.{name}") for name in ("type", "text", "x")],
    *[("GenerateRequest", f"sampling_params.{name}") for name in SCHEMAS["GenerateParams"]["properties"]],
    ("GenerateRequest", "sampling_params.x"),
    *[("ChatRequest", f"response_format.{name}") for name in ("type", "json_schema", "x")],
    *[
        ("ChatRequest", f"response_format.json_schema.{name}")
        for name in ("name", "description", "schema", "strict", "x")
    ],
    *[("ChatRequest", f"prediction.{name}") for name in ("type", "content", "content.0.type", "content.0.text", "x")],
]


@pytest.mark.parametrize(("kind", "path"), NESTED)
def test_a_field_inside_takes_what_the_document_says_and_nothing_else(kind: str, path: str) -> None:
    # as many choices as there may be, so that stop_when may ask for them
    prompts = LIMITS.max_choices // LIMITS.max_n
    if path.startswith("sampling_params."):
        body: Any = {"token_ids": [1], "sampling_params": {}}
    elif path.startswith("stop_when"):
        body = {"model": MODEL, "prompt": ["x"] * prompts, "n": LIMITS.max_n, "stop_when": {}}
    else:
        body = FULLEST[kind]
    for value in [*VALUES, LIMITS.max_choices, LIMITS.max_choices + 1]:
        # which of the rules is given is said in words, and so is what role goes with what
        if path.startswith("stop_when") and value in (None, {}):
            continue
        if path in ("sampling_params.stop_when", "sampling_params.structured_outputs") and value == {}:
            continue
        # as many as there are choices, which is said in words
        if path == "sampling_params.choice_params" and value not in ([{}], [{"seed": 1}]):
            continue
        changed = put(body, path, value)
        assert is_valid(kind, changed) == is_served(kind, changed), value


@every
def test_leaving_a_field_out_is_its_default(kind: str) -> None:
    fullest = CHAT_TO_TOKENIZE if kind == "TokenizeRequest" else FULLEST[kind]
    least = {name: fullest[name] for name in SCHEMAS[kind]["required"] or ["messages"]}
    for name, schema in SCHEMAS[kind]["properties"].items():
        if name in least:
            continue
        assert parse(kind, {**least, name: None}) == parse(kind, least), name
        assert parse(kind, {**least, name: schema.get("default")}) == parse(kind, least), name


def test_every_field_that_is_read_says_what_it_means() -> None:
    for kind in ALL:
        for name, schema in SCHEMAS[kind]["properties"].items():
            assert any(one.get("description") for one in SCHEMAS.alternatives(schema)), name
    pattern = SCHEMAS["StopWhen"]["properties"]["pattern"]
    assert f"up to {MAX_PATTERN_LENGTH} characters" in pattern["description"]


def test_the_bounds_are_those_of_the_server() -> None:  # FAN-2, FAN-3, FAN-6, FAN-29
    served = document(Limits(max_n=300, max_choices=3000, greedy_n="replicate"))
    schemas = served["components"]["schemas"]
    for kind in BOTH:
        assert schemas[kind]["properties"]["n"]["anyOf"][0]["maximum"] == 300
        assert schemas[kind]["properties"]["choice_params"]["anyOf"][0]["maxItems"] == 300
        assert schemas[kind]["properties"]["model"]["enum"] == [MODEL]
    assert schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"][-1]["maxItems"] == 3000
    options = {name: option["value"] for name, option in served["x-options"].items()}
    assert options == {
        "--max-n": 300,
        "--max-choices": 3000,
        "--greedy-n": "replicate",
        "--slow-reader-timeout": 30.0,
    }
    assert served["info"]["version"] == "1.2"


def marked(schema: Any) -> bool:
    return any(one.get("x-extension", False) for one in SCHEMAS.alternatives(schema))


@pytest.mark.parametrize(
    ("kind", "theirs", "unserved"),
    [
        (
            "ChatRequest",
            openai.types.chat.completion_create_params.CompletionCreateParamsStreaming,
            neutral.CHAT,
        ),
        (
            "CompletionRequest",
            openai.types.completion_create_params.CompletionCreateParamsStreaming,
            neutral.COMPLETION,
        ),
        ("StreamOptions", openai.types.chat.ChatCompletionStreamOptionsParam, neutral.STREAM_OPTIONS),
        ("EmbeddingsRequest", openai.types.EmbeddingCreateParams, {}),
    ],
)
def test_a_field_of_a_request_is_an_extension_if_openai_does_not_know_it(
    kind: str, theirs: type, unserved: neutral.Neutral
) -> None:
    known = get_type_hints(theirs)
    for name, schema in SCHEMAS[kind]["properties"].items():
        if name not in unserved:
            assert marked(schema) == (name not in known), name


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("ChatCompletion", openai.types.chat.ChatCompletion),
        ("ChatChoice", openai.types.chat.chat_completion.Choice),
        ("ChatChunk", openai.types.chat.ChatCompletionChunk),
        ("ChatChunkChoice", openai.types.chat.chat_completion_chunk.Choice),
        ("Completion", openai.types.Completion),
        ("CompletionChoice", openai.types.CompletionChoice),
        ("Usage", openai.types.CompletionUsage),
        ("StreamUsage", openai.types.CompletionUsage),
        ("CandidateDetails", openai.types.completion_usage.CompletionTokensDetails),
        ("Model", openai.types.Model),
        ("EmbeddingList", openai.types.CreateEmbeddingResponse),
        ("EmbeddingVector", openai.types.Embedding),
    ],
)
def test_a_field_of_an_answer_is_an_extension_if_openai_does_not_know_it(name: str, theirs: type[BaseModel]) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        assert schema.get("x-extension", False) == (field not in theirs.model_fields), field


def found(key: str, value: Any = DOCUMENT) -> Iterator[Any]:
    """Everything in the document under a key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from found(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from found(key, inner)


def test_every_extension_of_the_contract_is_marked_with_its_line() -> None:
    lines = {int(line.removeprefix("FAN-")) for line in found("x-contract")}
    assert lines == {1, 6, 14, 16, 17, 20, 21, 24, 29, 31, 32, 33, 34}


def test_every_error_has_its_status_type_and_code_in_the_document() -> None:
    documented = {
        (int(status), example["error"]["type"], example["error"]["code"])
        for path, operations in DOCUMENT["paths"].items()
        # in an envelope of their own, by test_openapi_dialects
        if not path.startswith("/v1/messages")
        for operation in found("responses", operations)
        for status, response in operation.items()
        if status.startswith(("4", "5"))
        for example in found("value", response)
    }
    assert documented == {(row.status, row.type, row.code) for row in ERRORS.values()}
    for path, operations in DOCUMENT["paths"].items():
        name = "MessagesHttpError" if path.startswith("/v1/messages") else "HttpError"
        for responses in found("responses", operations):
            assert responses["default"] == {"$ref": f"#/components/responses/{name}"}


def test_every_status_that_the_web_layer_names_is_in_the_document() -> None:
    named = {
        node.value
        for path in Path(trioserve.web.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and 400 <= node.value < 600
    }
    refused = {
        int(status)
        for status in DOCUMENT["components"]["responses"]["HttpError"]["content"]["application/json"]["examples"]
    }
    # 499 is for the log, 503 for the log and for errors of ours, which are in the test above
    assert named - {499, 503} == refused


def test_every_example_is_valid() -> None:
    for media in found("application/json", DOCUMENT):
        schema = {**media["schema"], "components": DOCUMENT["components"]}
        for example in media.get("examples", {}).values():
            Draft202012Validator(schema).validate(example["value"])


@pytest.mark.parametrize(("embedding_dim", "taken"), [(None, {1, 5, 6}), (5, {5})])
def test_vectors_have_the_dimensions_of_the_model(embedding_dim: int | None, taken: set[int]) -> None:
    components = document(embedding_dim=embedding_dim)["components"]
    schema = {**components["schemas"]["EmbeddingsRequest"]["properties"]["dimensions"], "components": components}
    valid = Draft202012Validator(schema).is_valid
    assert {dimensions for dimensions in (1, 5, 6) if valid(dimensions)} == taken
    assert valid(None)
