"""The document against the server: its paths, and real answers, streamed or not, against their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from quart_trio import QuartTrio

from trioserve.engine.engine import Engine
from trioserve.errors import ParamError
from trioserve.params import Limits, SamplingParams
from trioserve.testing.device import Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.http import AsgiClient, HttpResponse
from trioserve.testing.tokenizer import BrokenTokenizer
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.front import OPEN_PATHS, Front
from trioserve.web.options import ServeOptions

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
GENERATE = "/inference/v1/generate"
EMBEDDINGS = "/v1/embeddings"
PROMPTS: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"prompt": "hi"},
    GENERATE: {"token_ids": [97]},
    EMBEDDINGS: {"input": ["hi", "ho"]},
}
SERVE_OPTIONS = ServeOptions(max_body_size=100_000)
USAGE_OF_ALL = {"include_usage": True, "continuous_usage_stats": True}

both = pytest.mark.parametrize("path", [CHAT, TEXT])


def closed(schema: Any) -> Any:
    """A schema by which nothing is valid that it does not mention."""
    if isinstance(schema, list):
        return [closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {name: closed(inner) for name, inner in schema.items()}
    return {"additionalProperties": False, **inside} if "properties" in schema else inside


@attrs.define(eq=False)
class Server:
    """An engine, its app, and a client of it that compares each answer with the document."""

    engine: Engine
    app: QuartTrio
    client: AsgiClient
    document: Any = None
    components: Any = None
    """Those of the document, closed."""
    seen: set[str] = attrs.field(factory=set)
    """The fields of all answers: "ChatCompletion.choices.*.seed"."""

    async def read_document(self) -> None:
        response = await self.client.request("GET", "/openapi.json")
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        self.document = json.loads(response.body)
        self.components = {**self.document["components"], "schemas": closed(self.document["components"]["schemas"])}

    async def ask(self, method: str, path: str, **fields: object) -> HttpResponse:
        """The response, which is one that the document has for the path."""
        body = json.dumps({"model": "tiny-chat", **PROMPTS.get(path, {}), **fields}).encode() if fields else b""
        response = await self.client.request(method, path, body=body)
        documented = self._operation(method, path)["responses"][str(response.status)]
        if "retry-after" in response.headers:
            assert "Retry-After" in documented["headers"]
        media, _, _ = response.headers["content-type"].partition(";")
        schema = documented["content"][media]["schema"]
        if media == "application/json":
            self._compare(json.loads(response.body), schema)
        elif media == "text/event-stream":
            *events, done = [line for line in response.body.decode().split("\n\n") if line and line[0] != ":"]
            assert done == "data: [DONE]"
            content = schema["properties"]["data"]["else"]
            assert content["contentMediaType"] == "application/json"
            for event in events:
                self._compare(json.loads(event.removeprefix("data: ")), content["contentSchema"])
        return response

    def _operation(self, method: str, path: str) -> Any:
        patterns = {
            re.sub("{[^}]*}", ".+", pattern): operations for pattern, operations in self.document["paths"].items()
        }
        # a parameter may have slashes in it: the longest pattern counts
        found = max((pattern for pattern in patterns if re.fullmatch(pattern, path)), key=len)
        return patterns[found][method.lower()]

    def missing(self, name: str) -> set[str]:
        """The fields that the schema ``name`` has and no answer had."""
        schemas = self.document["components"]["schemas"]
        return set(schema_paths(schemas, schemas[name], f"{name}.")) - self.seen

    def _compare(self, value: Any, schema: Any) -> None:
        Draft202012Validator({**schema, "components": self.components}).validate(value)
        if schema.get("type") == "array":
            for item in value:
                self._compare(item, schema["items"])
            return
        reference = schema.get("$ref") or schema["anyOf"]["error" in value]["$ref"]
        self.seen |= set(value_paths(value, reference.rpartition("/")[2] + "."))


@asynccontextmanager
async def serving(script: Script = count_for_ever, **settings: Any) -> AsyncIterator[Server]:
    block, _ = open_fake_engine(script, **settings)
    async with block as engine:
        app = create_app(engine, SERVE_OPTIONS)
        prepare_app(app, SERVE_OPTIONS)
        server = Server(engine, app, AsgiClient(app))
        await server.read_document()
        yield server


def value_paths(value: Any, prefix: str) -> Iterator[str]:
    """The path of every field of an answer."""
    if isinstance(value, list):
        for item in value:
            yield from value_paths(item, f"{prefix}*.")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield prefix + name
            yield from value_paths(inner, f"{prefix}{name}.")


def schema_paths(schemas: Any, schema: Any, prefix: str) -> Iterator[str]:
    """The path of every field that an answer may have."""
    if "$ref" in schema:
        yield from schema_paths(schemas, schemas[schema["$ref"].rpartition("/")[2]], prefix)
    for inner in schema.get("anyOf", []):
        yield from schema_paths(schemas, inner, prefix)
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name
        yield from schema_paths(schemas, inner, f"{prefix}{name}.")
    if "items" in schema:
        yield from schema_paths(schemas, schema["items"], f"{prefix}*.")


async def test_the_served_document_is_valid_and_has_the_bounds_of_this_server() -> None:
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(max_n=7))
    async with serving(options=options) as server:
        assert list(OpenAPIV31SpecValidator(server.document).iter_errors()) == []
        properties = server.document["components"]["schemas"]["ChatRequest"]["properties"]
        assert properties["n"]["anyOf"][0]["maximum"] == 7
        assert properties["model"]["enum"] == ["tiny-chat"]
        assert (await server.ask("POST", CHAT, n=8)).status == 400


@pytest.mark.parametrize(
    "value",
    ["30", "2.5", "0.1", "000000001", "0", "0.0", "000", "1e3", "-1", "+1", ".5", "5.", "1 ", "", "1" * 10, "x"],
)
async def test_a_deadline_is_what_the_document_says(value: str) -> None:
    async with serving() as server:
        schema = server.document["components"]["parameters"]["X-Request-Timeout"]["schema"]
    try:
        Front().timeout([(b"x-request-timeout", value.encode())])
        taken = True
    except ParamError:
        taken = False
    assert Draft202012Validator(schema).is_valid(value) == taken


async def test_what_needs_no_key_is_documented() -> None:
    async with serving() as server:
        paths = server.document["paths"]
    operations = {path: operation for path, methods in paths.items() for operation in methods.values()}
    assert {path for path, operation in operations.items() if operation.get("security") == []} == OPEN_PATHS


async def test_the_document_has_the_bounds_of_the_model() -> None:
    async with serving(say("x"), context_length=64) as server:
        schemas = server.document["components"]["schemas"]
        last = schemas["TokenIds"]["items"]["maximum"]
        for prompt, status in (([last], 200), ([last + 1], 400)):
            assert (await server.ask("POST", TEXT, prompt=prompt)).status == status
        assert schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] == last
        assert schemas["GenerateRequest"]["properties"]["token_ids"]["items"]["maximum"] == last
        for name in ("max_tokens", "min_tokens"):
            assert schemas["CompletionRequest"]["properties"][name]["anyOf"][0]["maximum"] == 64
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            assert schemas["ChatRequest"]["properties"][name]["anyOf"][0]["maximum"] == 64
        assert schemas["ChoiceParams"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 64
        ids = schemas["ChatRequest"]["properties"]["stop_token_ids"]["anyOf"][0]
        for token_id, status in ((ids["items"]["maximum"], 200), (ids["items"]["maximum"] + 1, 400)):
            assert (await server.ask("POST", CHAT, stop_token_ids=[token_id])).status == status


async def test_the_paths_are_those_of_the_app() -> None:
    async with serving() as server:
        served = {
            (re.sub(r"<[^>]*>", "{}", rule.rule), method)
            for rule in server.app.url_map.iter_rules()
            for method in rule.methods - {"HEAD", "OPTIONS"}
        }
    documented = {
        (re.sub(r"{[^}]*}", "{}", path), method.upper())
        for path, methods in server.document["paths"].items()
        for method in methods
    }
    assert documented == served


async def test_what_is_served_and_what_runs_looks_as_documented() -> None:
    async with serving() as server:
        for path in (
            "/health",
            "/version",
            "/tokenizer_info",
            "/tokenizer_info",
            "/metrics",
            "/v1/models",
            "/v1/models/tiny-chat",
            "/openapi.json",
        ):
            assert (await server.ask("GET", path)).status == 200
        for name in ("Health", "Version", "Models", "Model", "TokenizerInfo"):
            assert server.missing(name) == set()


async def test_a_running_request_and_its_end_look_as_documented() -> None:  # FAN-34
    async with serving() as server:
        async with server.engine.generate("x", SamplingParams(n=3), request_id="cmpl-1", alias="a/b"):
            assert (await server.ask("GET", "/v1/engine")).status == 200
            assert (await server.ask("DELETE", "/v1/requests/cmpl-1/choices/1")).status == 200
            assert (await server.ask("DELETE", "/v1/requests/cmpl-1/choices/3")).status == 404
            assert (await server.ask("DELETE", "/v1/requests/a/b")).status == 200
        assert (await server.ask("DELETE", "/v1/requests/cmpl-1")).status == 404
        assert server.missing("EngineSnapshot") == server.missing("Cancelled") == server.missing("Error") == set()


@both
async def test_every_answer_looks_as_documented_and_no_field_is_documented_for_nothing(path: str) -> None:
    # FAN-16, FAN-21, FAN-24
    logprobs = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    details = {**logprobs, "prompt_logprobs": 2, "return_token_ids": True}
    called = '<think>hm</think>cc<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    options = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
    script = say(["aa", "bx", "cc", called])
    async with serving(script, tokenizer=BrokenTokenizer(), options=options) as server:
        tools = {"tools": [{"type": "function", "function": {"name": "f"}}], "seed": 3} if path == CHAT else {}
        for fields in (
            {"n": 1, **tools},
            {"n": 1, "stream": True, **tools},
            {"n": 1},
            {"n": 3, "choice_errors": "isolate"},
            {"n": 1, "best_of": 2, "choice_errors": "isolate"},
            {"n": 1, "stream": True},
            {"n": 3, "stream": True, "choice_errors": "isolate", "stream_options": {"include_usage": True}},
            {"n": 1, "stream": True, "stream_options": USAGE_OF_ALL},
            {"n": 1, **details},
            {"n": 1, "stream": True, **details},
            # fails half way
            {"n": 3, "stream": True},
        ):
            assert (await server.ask("POST", path, **fields)).status == 200
        whole, chunk = ("ChatCompletion", "ChatChunk") if path == CHAT else ("Completion", "CompletionChunk")
        assert server.missing(whole) == server.missing(chunk) == set()


async def test_answers_about_tokens_look_as_documented_and_no_field_is_documented_for_nothing() -> None:
    async with serving(say(["aa", "bx", "cc"]), tokenizer=BrokenTokenizer()) as server:
        details = {"logprobs": 1, "prompt_logprobs": 1}
        usage = {"stream": True, "stream_options": USAGE_OF_ALL}
        scope = {"priority": 1, "cache_salt": "x"}
        for path, fields in (
            ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
            ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/detokenize", {"tokens": [97]}),
            (CHAT + "/render", {**PROMPTS[CHAT], **scope, **usage}),
            (TEXT + "/render", {"prompt": ["a", "b"], **scope, **usage}),
            (GENERATE, {"sampling_params": {"n": 1, **details}}),
            (GENERATE, {"sampling_params": {"n": 1, "best_of": 2, "choice_errors": "isolate"}}),
            (GENERATE, {"sampling_params": {"n": 3, "choice_errors": "isolate"}}),
            (GENERATE, {"sampling_params": {"n": 1, **details}, **usage}),
            (GENERATE, {"sampling_params": {"n": 3, "choice_errors": "isolate"}, "stream": True}),
        ):
            assert (await server.ask("POST", path, **fields)).status == 200
        assert (await server.ask("POST", "/detokenize", tokens=["x"])).status == 400
        assert (await server.ask("POST", GENERATE, token_ids=[5000])).status == 400
        for name in ("Tokenized", "Detokenized", "RenderedPrompt", "Generated", "GeneratedChunk"):
            assert server.missing(name) == set()


async def test_embeddings_look_as_documented() -> None:
    options = attrs.evolve(FAKE_OPTIONS, pooling="mean")
    async with serving(options=options, embedding_dim=4) as server:
        for encoding in ("float", "base64"):
            assert (await server.ask("POST", EMBEDDINGS, encoding_format=encoding)).status == 200
        assert (await server.ask("POST", EMBEDDINGS, dimensions=3)).status == 400
        assert server.missing("EmbeddingList") == set()


@both
async def test_every_refusal_looks_as_documented(path: str) -> None:  # FAN-10, FAN-23
    options = attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=1)
    async with serving(say("x"), options=options, tokenizer=BrokenTokenizer(), context_length=64) as server:
        for status, fields in (
            (400, {"n": 129}),
            (400, {"max_tokens": 1000}),
            (404, {"model": "nope"}),
            (429, {"n": 5}),
            (500, {"n": 1}),
            # told in the stream
            (200, {"n": 1, "stream": True}),
        ):
            assert (await server.ask("POST", path, **fields)).status == status
        server.engine.begin_drain()
        assert (await server.ask("POST", path, n=1)).status == 503
        assert server.missing("Error") == set()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("PUT", CHAT, 405), ("POST", CHAT, 413)])
async def test_what_http_refuses_looks_as_documented(method: str, path: str, status: int) -> None:
    async with serving() as server:
        response = await server.client.request(method, path, body=b"x" * 100_001 if status == 413 else b"")
        content = server.document["components"]["responses"]["HttpError"]["content"]["application/json"]
        Draft202012Validator({**content["schema"], "components": server.components}).validate(json.loads(response.body))
    assert response.status == status
    assert str(status) in content["examples"]
