"""The document of the newer dialects against the server: real answers, streamed or not, against their schemas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from jsonschema import Draft202012Validator

from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.schemas import Schemas
from trioserve.testing.server import FakeServer, serving
from trioserve.testing.tokenizer import BrokenTokenizer

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": HI, "max_tokens": 200},
    COUNT: {"messages": HI},
}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    RESPONSES: [{"type": "function", "name": "f", "parameters": SCHEMA}],
    MESSAGES: [{"name": "f", "input_schema": SCHEMA}],
}
WORK = '<think>hm</think>See.\n<tool_call>\n{"name": "f", "arguments": {"q":"b"}}\n</tool_call>'
THINKING = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")


def closed(schema: Any) -> Any:
    """A schema by which nothing is valid that it does not mention."""
    if isinstance(schema, list):
        return [closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {name: closed(inner) for name, inner in schema.items()}
    return {"additionalProperties": False, **inside} if "properties" in schema else inside


def field_paths(value: Any) -> Iterator[str]:
    """The name of every field in an answer, wherever it stands."""
    if isinstance(value, list):
        for item in value:
            yield from field_paths(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from field_paths(inner)


@attrs.define(eq=False)
class Reader:
    """Asks, and compares each answer and each event with the document."""

    server: FakeServer
    frames: Any
    document: Any
    seen: set[str] = attrs.field(factory=set)

    async def ask(self, path: str, **fields: Any) -> None:
        response = await self.server.post(path, **LEAST[path], **fields)
        documented = self.document["paths"][path]["post"]["responses"][str(response.status)]["content"]
        media, _, _ = response.headers["content-type"].partition(";")
        schema = documented[media]["schema"]
        if media == "application/json":
            self._compare(json.loads(response.body), schema)
        else:
            assert set(schema["properties"]) == {"event", "data"}
            for event in self.frames(response.body):
                self._compare(event, schema["properties"]["data"]["contentSchema"])

    def _compare(self, value: Any, schema: Any) -> None:
        components = {"schemas": closed(self.document["components"]["schemas"])}
        Draft202012Validator({**schema, "components": components}).validate(value)
        self.seen |= set(field_paths(value))


@pytest.fixture
def reading(frames: Any) -> Any:
    @asynccontextmanager
    async def reading(texts: list[str], **settings: Any) -> AsyncIterator[Reader]:
        async with serving(say(texts), **settings) as server:
            response = await server.client.request("GET", "/openapi.json")
            yield Reader(server, frames, json.loads(response.body))

    return reading


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_answers_and_events_are_as_the_document_says(path: str, reading: Any) -> None:
    wanted: set[str] = set()
    async with reading([WORK, "", "<think>", "grx"], options=THINKING, tokenizer=BrokenTokenizer()) as reader:
        for stream in (False, True):
            await reader.ask(path, stream=stream, n=3, seed=0, tools=TOOLS[path])
            await reader.ask(path, stream=stream, n=4, seed=0, choice_errors="isolate")
            # fails half way
            await reader.ask(path, stream=stream, n=4, seed=0)
        await reader.ask(path, n=1, best_of=2, seed=0)
        if path == RESPONSES:
            await reader.ask(path, max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=2)
        schemas = Schemas(reader.document)
        for operation in reader.document["paths"][path]["post"]["responses"]["200"]["content"].values():
            for schema in (operation["schema"], operation["schema"].get("properties", {}).get("data", {})):
                found = schema.get("contentSchema", schema)
                wanted |= {name.rpartition(".")[2] for name in schemas.field_paths(found)} - {"event", "data"}
        missing = wanted - reader.seen
    # what only repeats a request that has it
    assert missing <= {"tools", "name", "mode", "schema", "json_schema", "discarded_tokens"}, missing


async def test_a_count_is_as_the_document_says(reading: Any) -> None:
    async with reading([""]) as reader:
        await reader.ask(COUNT)
        await reader.ask(COUNT, max_tokens=5)
    assert reader.seen == {"input_tokens", "type", "error", "message", "param", "code"}
