"""What a request says its answers must be, from JSON to a Structure."""

from __future__ import annotations

import json

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.structure import Structure
from trioserve.wire.decode import parse_chat, parse_completion

CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def chat(**fields: object) -> Structure | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), Limits()).params.structure


def completion(**fields: object) -> Structure | None:
    body = {"model": "m", "prompt": "hi", **fields}
    return parse_completion(json.dumps(body).encode(), Limits()).params.structure


def named(schema: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


def refusal(**fields: object) -> ParamError:
    with pytest.raises(ParamError) as caught:
        chat(**fields)
    return caught.value


def test_a_response_format_becomes_a_structure() -> None:
    assert chat(response_format=None) is None
    assert chat(response_format={"type": "text"}) is None
    assert chat(response_format={"type": "json_object"}) == Structure(
        kind="json_object", text="", param="response_format"
    )
    # in the order in which it was written, which is that of the answer
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    structure = chat(response_format=named(schema, description="x", strict=False))
    assert structure == Structure(
        kind="json_schema", text='{"type":"object","properties":{"b":{},"a":{}}}', param="response_format"
    )


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("json", {"type": "null"}, "json_schema", '{"type":"null"}'),
        ("json", '{"type": "null"}', "json_schema", '{"type": "null"}'),
        ("regex", "a+", "regex", "a+"),
        ("choice", ["é", "b"], "choice", '["é","b"]'),
        ("grammar", 'start: "a"', "lark", 'start: "a"'),
    ],
)
def test_structured_outputs_become_a_structure(ask: object, name: str, value: object, kind: str, text: str) -> None:
    assert callable(ask)
    structure = ask(structured_outputs={name: value})
    assert structure == Structure(kind=kind, text=text, param=f"structured_outputs.{name}")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json_object", "response_format"),
        ({}, "response_format.type"),
        ({"type": "yaml"}, "response_format.type"),
        ({"type": "text", "x": 1}, "response_format.x"),
        ({"type": "json_object", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        (named(None), "response_format.json_schema.schema"),
        (named(False), "response_format.json_schema.schema"),
        (named({}, name="no spaces"), "response_format.json_schema.name"),
        (named({}, name="x" * 65), "response_format.json_schema.name"),
        (named({}, strict="yes"), "response_format.json_schema.strict"),
        (named({}, schemas={}), "response_format.json_schema.schemas"),
    ],
)
def test_a_response_format_that_is_not_well_formed_is_refused_by_the_path_of_its_fault(
    value: object, param: str
) -> None:  # case grammar-bad-schema
    assert refusal(response_format=value).param == param


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("a+", "structured_outputs"),
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"json": [1]}, "structured_outputs.json"),
        ({"json": True}, "structured_outputs.json"),
        ({"regex": 1}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice"),
        ({"grammar": {}}, "structured_outputs.grammar"),
        ({"structural_tag": "x"}, "structured_outputs.structural_tag"),
    ],
)
def test_structured_outputs_that_are_not_well_formed_are_refused(value: object, param: str) -> None:
    assert refusal(structured_outputs=value).param == param


@pytest.mark.parametrize("name", ["json", "regex", "choice", "grammar"])
def test_the_older_names_of_other_servers_are_refused_with_the_new_one(name: str) -> None:
    error = refusal(**{f"guided_{name}": None})
    assert error.param == f"guided_{name}"
    assert f"structured_outputs.{name}" in str(error)


def test_only_one_of_the_two_can_be_given() -> None:
    assert refusal(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}).param == (
        "structured_outputs"
    )
    assert chat(response_format={"type": "text"}, structured_outputs={"regex": "a"}) is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": "}"}, "stop"),
        ({"stop": ["a"]}, "stop"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"stop_token_ids": [1]}, "stop_token_ids"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
    ],
)
def test_what_would_cut_it_off_is_refused(fields: dict[str, object], param: str) -> None:  # case schema-semantics
    error = refusal(response_format={"type": "json_object"}, **fields)
    assert error.param == param
    assert "response_format" in str(error)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}},
        {"type": ["object", "null"], "additionalProperties": True},
        {"type": "array", "items": {"type": "object"}},
        {"anyOf": [{"type": "null"}, {"type": "object"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        CLOSED | {"properties": {"a": {"type": "object", "additionalProperties": {}}}},
    ],
)
def test_a_strict_schema_has_no_free_names(schema: dict[str, object]) -> None:  # case grammar-bad-schema
    error = refusal(response_format=named(schema, strict=True))
    assert error.param == "response_format"
    assert "additionalProperties" in str(error)
    assert chat(response_format=named(schema)) is not None


def test_a_strict_schema_may_have_optional_properties() -> None:
    schema = {"type": "array", "items": CLOSED, "$defs": {"properties": CLOSED}}
    assert chat(response_format=named(schema, strict=True)) is not None
