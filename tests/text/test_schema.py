"""Schemas: what is refused, by name and place, and what only looks like something that can't be enforced."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trioserve.errors import ParamError
from trioserve.structure import Structure
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.text.grammar import GrammarTokens, compile_structure
from trioserve.text.references import Comparison, Document, can_end, longest_chain
from trioserve.text.schema import MAX_COUNT, MAX_LENGTH, MAX_REFERENCES, MAX_SCHEMA_DEPTH, MAX_SCHEMAS

TOKENS = GrammarTokens(ByteTokenizer(), 259)


def enforce(schema: object) -> None:
    compile_structure(Structure(kind="json_schema", text=json.dumps(schema), param="response_format"), TOKENS)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth - 1):
        schema = {"type": "array", "items": schema}
    return schema


TAGGED = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
OTHER = {"type": "object", "properties": {"k": {"enum": ["b", 1]}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nope"}, "nope"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "string", "pattern": "^a{0,3}$", "minLength": 5}, "empty"),
        ({"$ref": "#/missing"}, "missing"),
        ({"$ref": "https://example.org/x"}, "example.org"),
        ({"$ref": "#"}, "contains itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "contains itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "contains itself"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "contains itself"),
        ({"minItems": 5, "maxItems": 2}, "minItems 5 is greater than maxItems 2"),
        ({"minLength": 2, "maxLength": 1}, "minLength 2 is greater"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "greater than maximum"),
        ({"type": "integer", "minimum": 10**30}, "response_format"),
        ({"enum": []}, "anyOf is empty"),
        ({"enum": ["\x01"]}, "control characters"),
        ({"const": {"a": ["\x7f"]}}, "control characters"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, r"uniqueItems .*\(at \$\.properties\.a\.items\)"),
        ({"$defs": {"a": {"not": {}}}}, "not can't be enforced"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if can't"),
        ({"anyOf": [{"dependentRequired": {"a": ["b"]}}]}, "dependentRequired"),
        ({"contains": {"type": "integer"}}, "contains"),
        ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$dynamicRef": "#a"}, "dynamicRef"),
        ({"uniqueItems": 0}, "uniqueItems"),
        ({"type": "string", "format": "regex"}, "regex"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": "object", "minProperties": 2}, "minProperties above 1"),
        ({"type": "object", "patternProperties": {"a": {}}, "additionalProperties": False, "minProperties": 2}, "may repeat"),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "may overlap"),
        ({"oneOf": [TAGGED, {"type": "object"}]}, "may overlap"),
        ({"items": [{}]}, "prefixItems"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "draft-04"),
        ({"$schema": 7}, "draft"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"maxItems": -1}, "0 or more"),
        ({"maxItems": 1.5}, "0 or more"),
        ({"maxItems": True}, "0 or more"),
        ({"maxItems": 10**9}, f"at most {MAX_COUNT}"),
        ({"maxLength": MAX_LENGTH + 1}, f"at most {MAX_LENGTH}"),
        ({"properties": {"a": 1}}, "must be an object"),
        ({"properties": []}, "properties must be an object"),
        ({"required": "a", "type": "object"}, "Expected array"),
        (nested(MAX_SCHEMA_DEPTH + 1), "nested more than"),
        ({"anyOf": [{}] * MAX_SCHEMAS}, "more than 10000 parts"),
        ({"anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(MAX_REFERENCES + 1)]}, "references"),
        ([], "must be an object"),
        (None, "must be an object"),
        (False, "allows nothing"),
    ],
)  # fmt: skip
def test_what_cant_be_enforced_is_refused_by_name(schema: object, words: str) -> None:  # case grammar-bad-schema
    with pytest.raises(ParamError, match=words) as caught:
        enforce(schema)
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("keyword", ["not", "const", "default"])
@pytest.mark.parametrize("depth", [200, 900, 950, 20_000])
def test_json_that_is_nested_too_deeply_is_refused(keyword: str, depth: int) -> None:
    text = f'{{"{keyword}":{{"a":' * (depth // 2) + "{}" + "}}" * (depth // 2)
    with pytest.raises(ParamError, match=r"nested too deeply|recursion limit|not can't be enforced"):
        compile_structure(Structure(kind="json_schema", text=text), TOKENS)


def chain(length: int, link: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
    """Definitions of which each refers to the next."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {}}}


LINKS: dict[str, Callable[[object], dict[str, Any]]] = {
    "alone": lambda link: {"items": link},
    "merged": lambda link: {"allOf": [{"allOf": [link]}, {"type": "array"}]},
    "as an option": lambda link: {"anyOf": [link, {"type": "null"}]},
    "below": lambda link: {"type": "object", "properties": {"a": {"type": "array", "items": link}}},
}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_chains_of_references_that_would_use_up_the_stack_are_refused(link: Callable[[object], dict[str, Any]]) -> None:
    # less would pass by another limit; more has ended the process
    enforce(chain(60, link))
    with pytest.raises(ParamError, match="schemas inside each other"):
        enforce(chain(900, link))
    # a circle may be gone through in any order
    ring = chain(900, link)
    ring["$defs"]["d900"] = {"anyOf": [{"type": "null"}, link({"$ref": "#/$defs/d0"})]}
    with pytest.raises(ParamError, match="schemas inside each other"):
        enforce(ring)


def test_a_chain_is_as_long_as_its_deepest_way() -> None:
    assert longest_chain(document()) == 1
    assert longest_chain(document(a={"items": {"$ref": "#/$defs/b"}}, b={"items": {}})) == 3 + 2
    fork: dict[str, object] = {"anyOf": [{"$ref": "#/$defs/long"}, {"$ref": "#/$defs/short"}]}
    defs: dict[str, object] = {"long": {"items": {"items": {"$ref": "#/$defs/short"}}}, "short": {"items": {}}}
    assert longest_chain(Document({**fork, "$defs": defs})) == 4 + 3 + 2
    # each of a circle once: the root leads there by 4
    assert longest_chain(Document({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}})) > 3


def test_what_is_only_referred_to_is_a_schema_too() -> None:
    with pytest.raises(ParamError, match="uniqueItems"):
        enforce({"$ref": "#/components/schemas/a", "components": {"schemas": {"a": {"uniqueItems": True}}}})
    enforce({"$ref": "#/components/schemas/a", "components": {"schemas": {"a": {"uniqueItems": False}}}})
    deep: dict[str, Any] = {}
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        deep = {"allOf": [deep]}
    with pytest.raises(ParamError, match="nested more than"):
        enforce({"$ref": "#/default", "default": deep})


def test_options_beside_each_other_take_a_bounded_time_to_tell_apart() -> None:
    options = [{"const": i} for i in range(100)]
    enforce({"oneOf": options})
    many = {"anyOf": [{"oneOf": options} for _ in range(90)]}
    with pytest.raises(ParamError, match="oneOf"):
        enforce(many)


def test_whether_a_schema_can_end_is_found_in_linear_time() -> None:
    # with rounds over all references this takes an hour
    ends: dict[str, object] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(400)}
    wide: dict[str, object] = {f"w{i}": {"allOf": [*[{}] * 20, {"$ref": "#/$defs/d0"}]} for i in range(400)}
    assert can_end(document(**wide, **ends, d400={}))
    assert can_end(Document({"$ref": "#/$defs/w0", "$defs": {**wide, **ends, "d400": {}}}))
    assert not can_end(Document({"$ref": "#/$defs/w0", "$defs": {**wide, **ends, "d400": {"$ref": "#/$defs/d1"}}}))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        nested(MAX_SCHEMA_DEPTH),
        {"uniqueItems": False, "not": False, "unevaluatedItems": True, "dependencies": {}},
        {"type": "integer", "format": "int64"},
        {"type": "object", "properties": {"not": {}, "uniqueItems": {}, "x-guidance": {}}},
        {"enum": ["not"], "title": "x", "nullable": True, "discriminator": {"propertyName": "x"}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"type": "object", "minProperties": 2, "required": ["a", "b"], "properties": {"a": {}, "b": {}}},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"type": "null"}]},
        {"oneOf": [TAGGED, OTHER], "anyOf": [{"type": "object"}, {"type": "null"}]},
        {"type": "string", "format": "date", "pattern": "^2", "allOf": [{"minLength": 1}]},
        {"type": "array", "maxItems": MAX_COUNT, "items": {"type": "array", "maxItems": MAX_COUNT}},
        {"type": "string", "maxLength": MAX_LENGTH},
        {"type": "string", "pattern": "(a{1,9999}){9999}"},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
    ],
)
def test_what_can_be_enforced_is_taken(schema: object) -> None:
    enforce(schema)


def document(**definitions: object) -> Document:
    return Document({"$defs": definitions})


def test_references_are_followed_inside_the_document_only() -> None:
    root: dict[str, object] = {"a/b": {"~c": [True, {"x": 1}]}, "ü": 5}
    found = Document(root)
    assert found.resolve("#") is root
    assert found.resolve("#/a~1b/~0c/1/x") == 1
    assert found.resolve("#/%C3%BC") == 5
    for missing in (
        "#/a~1b/~0c/7",
        f"#/a~1b/~0c/{'1' * 5000}",
        "#/a~1b/~0c/01",
        "#/a~1b/~0c/x",
        "#/nope/x",
        "#anchor",
        "other.json#/ü",
    ):
        assert found.resolve(missing) is None


def test_a_chain_of_references_ends_if_its_last_does() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(50)}
    assert can_end(document(**chain, d50={"type": "null"}))
    root: dict[str, object] = {"$defs": {**chain, "d50": {"$ref": "#/$defs/d0"}}, "$ref": "#/$defs/d3"}
    assert not can_end(Document(root))
    # what does not end is no harm where nothing demands it
    assert can_end(Document({"$defs": {**chain, "d50": {"$ref": "#/$defs/d0"}}}))


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ({"type": "string"}, {"type": ["null", "integer"]}, True),
        ({"type": "number"}, {"type": "integer"}, False),
        ({"type": "string"}, {}, False),
        ({"const": 1}, {"enum": [2, True, "1"]}, True),
        ({"const": 1}, {"enum": [1.0]}, False),
        ({"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}, False),
        (False, {}, True),
        (True, True, False),
        (TAGGED, OTHER, True),
        (TAGGED, {**OTHER, "required": []}, True),
        ({**TAGGED, "required": []}, {**OTHER, "required": []}, False),
        (TAGGED, {**OTHER, "type": ["object", "null"]}, False),
        (TAGGED, {"type": "object", "required": ["k"]}, False),
        ({"$ref": "#/$defs/tagged"}, {"$ref": "#/$defs/other"}, True),
        ({"$ref": "#/$defs/loop"}, {"type": "null"}, False),
    ],
)
def test_two_schemas_are_told_apart_only_where_it_is_certain(one: object, other: object, apart: bool) -> None:
    found = document(tagged=TAGGED, other=OTHER, loop={"$ref": "#/$defs/loop"})
    assert Comparison(found).all_exclude([one, other]) == apart
    assert Comparison(found).all_exclude([other, one]) == apart


def test_telling_schemas_apart_gives_up_at_some_point() -> None:
    names = [f"n{i}" for i in range(12)]
    # each of them demands twelve of its own kind
    wide = {side: {"type": "object", "required": names, "properties": {name: {"$ref": f"#/$defs/{side}"} for name in names}} for side in "ab"}  # fmt: skip
    found = document(**wide)
    assert not Comparison(found).all_exclude([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}])
