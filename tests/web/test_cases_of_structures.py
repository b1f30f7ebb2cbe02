"""Complaints about other servers: answers that are not what they had to be. Each test names its case."""

from __future__ import annotations

import json
import math
import re
from random import Random
from typing import Any

import pytest

from trioserve.testing.device import Draw
from trioserve.testing.server import CHAT, TEXT, FakeServer, serving

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"enum": ["é", 'q"', None]}},
    "required": ["x", "label"],
    "additionalProperties": False,
}


def draw_anything(draw: Draw) -> int:
    """A script of random tokens; the device draws the next one that is allowed."""
    return Random(f"{draw.seed} {draw.generated}").randrange(259)


def named(schema: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


async def texts(server: FakeServer, path: str, **fields: Any) -> dict[int, str]:
    """The text of every choice, which must end with "stop"."""
    answer = await server.whole(path, **fields)
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    return {c["index"]: c["message"]["content"] if path == CHAT else c["text"] for c in answer["choices"]}


async def streamed_texts(server: FakeServer, path: str, **fields: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    *chunks, done = await server.stream(path, **fields)
    assert done == "[DONE]"
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") if path == CHAT else choice["text"]
            found[choice["index"]] = found.get(choice["index"], "") + (text or "")
            assert choice["finish_reason"] in (None, "stop")
    return found


async def test_every_choice_is_valid_streamed_or_not() -> None:  # case schema-semantics, FAN-22
    async with serving(draw_anything) as server:
        for path, form in (
            (CHAT, {"response_format": named(POINT, strict=True)}),
            (CHAT, {"structured_outputs": {"json": POINT}}),
            (TEXT, {"structured_outputs": {"json": json.dumps(POINT)}, "prompt": "p"}),
        ):
            fields = {**form, "n": 6, "seed": 5, "max_tokens": 300}
            whole = await texts(server, path, **fields)
            assert len(whole) == 6
            for text in whole.values():
                value = json.loads(text)
                assert set(value) == {"x", "label"}
                assert type(value["x"]) is int
                assert value["label"] in ("é", 'q"', None)
            assert await streamed_texts(server, path, **fields) == whole
        await server.assert_idle()


async def test_a_regular_expression_a_choice_and_a_grammar_are_kept() -> None:
    async with serving(draw_anything) as server:
        for outputs, pattern in (
            ({"regex": "[a-c]{2}-[0-9]{3}"}, "[a-c]{2}-[0-9]{3}"),
            ({"choice": ["yes", "no", "nobody"]}, "yes|no|nobody"),
            ({"grammar": 'start: "a" start "b" | "c"'}, "a*cb*"),
        ):
            for text in (await texts(server, CHAT, n=4, seed=1, structured_outputs=outputs)).values():
                assert re.fullmatch(pattern, text)
        objects = await texts(server, CHAT, n=4, seed=1, max_tokens=1000, response_format={"type": "json_object"})
        assert all(isinstance(json.loads(text), dict) for text in objects.values())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"pattern": "(", "type": "string"},
        {"$ref": "#/missing"},
        {"$ref": "#"},
        {"minItems": 5, "maxItems": 2},
        {"enum": []},
        {"uniqueItems": True},
        {"not": {}},
        {"maxItems": 10**9},
    ],
)
async def test_a_schema_that_cant_be_enforced_is_refused_streamed_or_not(schema: dict[str, Any]) -> None:
    # cases grammar-bad-schema, error-before-first-byte-is-http-status
    async with serving() as server:
        bodies = []
        for stream in (False, True):
            response = await server.post(CHAT, stream=stream, n=2, response_format=named(schema))
            assert response.status == 400
            assert response.headers["content-type"] == "application/json"
            bodies.append(json.loads(response.body))
        assert bodies[0] == bodies[1]
        assert bodies[0]["error"]["param"] == "response_format"
        assert server.device.plans == []
        assert (await server.chat(max_tokens=3))["choices"][0]["finish_reason"] == "length"
        await server.assert_idle()


async def test_the_part_at_fault_is_named_as_the_request_has_it() -> None:
    async with serving() as server:
        for outputs in ({"regex": "("}, {"grammar": "start: nope"}, {"json": {"type": "nope"}}):
            response = await server.post(TEXT, prompt="p", structured_outputs=outputs)
            assert json.loads(response.body)["error"]["param"] == f"structured_outputs.{next(iter(outputs))}"


async def test_a_recursive_schema_is_served() -> None:  # case grammar-bad-schema
    tree = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}, "required": ["c"], "additionalProperties": False}  # fmt: skip

    def check(value: Any) -> int:
        return 1 + sum(map(check, value["c"]))

    async with serving(draw_anything) as server:
        sizes = [
            check(json.loads(text))
            for text in (await texts(server, CHAT, n=16, seed=1, response_format=named(tree))).values()
        ]
    assert max(sizes) > 1


async def test_log_probabilities_of_a_structured_choice_are_finite() -> None:  # case logprobs-shape-and-inf
    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    async with serving(draw_anything) as server:
        response = await server.post(
            CHAT,
            logprobs=True,
            top_logprobs=5,
            temperature=1.5,
            top_k=1,
            seed=1,
            response_format=named({"enum": ["x", "y"]}),
        )
    (choice,) = json.loads(response.body, parse_constant=fail)["choices"]
    assert choice["message"]["content"] in ('"x"', '"y"')
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 5
        assert all(math.isfinite(likely["logprob"]) for likely in [entry, *entry["top_logprobs"]])


async def test_bias_and_penalties_choose_among_what_is_allowed() -> None:  # case schema-semantics
    async with serving(lambda draw: ord("a")) as server:
        for fields in ({"logit_bias": {str(ord("z")): 100, str(ord("c")): 100}}, {"presence_penalty": 2}):
            for text in (await texts(server, CHAT, structured_outputs={"regex": "[abc]{3}"}, **fields)).values():
                assert re.fullmatch("[abc]{3}", text)
                assert text == "ccc" or "presence_penalty" in fields
