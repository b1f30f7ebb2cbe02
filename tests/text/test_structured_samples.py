"""Structures against random logits: whatever is drawn, what is complete is valid (case schema-semantics).

Random logits are far harder than a model, which mostly writes what is expected: here every allowed token is as likely
as any other, but that in three draws of ten only what ends or divides something may be drawn, if it is allowed, since
texts would hardly ever end otherwise.
"""

from __future__ import annotations

import json
import random
import re
from array import array
from typing import Any

import jsonschema.validators
import numpy as np
import pytest

from trioserve.structure import Structure, StructureKind
from trioserve.testing.tokenizer import EOS, ByteTokenizer
from trioserve.text.grammar import GrammarMatcher, GrammarTokens, compile_structure

SAMPLES = 200
MAX_TOKENS = 400
PIECES = [
    b'":',
    b'","',
    b'{"',
    b'"}',
    b"}}",
    b"],",
    b'": "',
    b"null",
    b"true",
    b", ",
    b"\n  ",
    b"ab",
    "é😀".encode(),
    b"-1",
    b"\\n",
]
TOKENIZER = ByteTokenizer(PIECES)
TOKENS = GrammarTokens(TOKENIZER, 320)
CLOSING = [*b'"}],:', EOS, 260, 262, 263, 264]

TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["value"],
    "additionalProperties": False,
}


def closed(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


SCHEMAS: dict[str, Any] = {
    "anything": {},
    "an object": {"type": "object"},
    "a string": {"type": "string"},
    "an integer": {"type": "integer"},
    "a number": {"type": "number"},
    "a boolean or null": {"type": ["boolean", "null"]},
    "flat": closed({"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}}),
    "optional fields": closed({f"p{i}": {"type": "integer"} for i in range(6)}, ["p1", "p4"]),
    "all optional": closed({"a": {"type": "null"}, "b": {"type": "boolean"}}, []),
    "no fields": closed({}),
    "nested": closed({"a": closed({"b": closed({"c": {"type": "array", "items": closed({"d": {"type": "null"}})}})})}),
    "free names of one type": {"type": "object", "additionalProperties": {"type": "integer"}},
    "free names beside named ones": {
        "type": "object",
        "properties": {"ab": {"type": "integer"}, 'q"\\\n/': {"type": "null"}},
        "required": ["ab"],
        "additionalProperties": {"type": "string"},
    },
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}, "^y_": {"type": "null"}},
        "additionalProperties": False,
    },
    "at least one name": {"type": "object", "minProperties": 1},
    "at most two names": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
    "required but not described": {"type": "object", "required": ["a", "b"], "additionalProperties": {"type": "null"}},
    "array": {"type": "array", "items": {"type": "integer"}},
    "array of bounded length": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "array of arrays": {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False, "minItems": 2},
    "tuple with a tail": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}},
    "tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "boolean"}],
        "additionalItems": False,
    },
    "enum of many types": {"enum": [1, 1.5, True, None, 'é"', "", [1, "a"], {"a": {"b": []}}]},
    "const": {"const": {"x": [1, "😀", None], "y": {}}},
    "reference to an enum": closed(
        {"c": {"$ref": "#/$defs/colour"}}, **{"$defs": {"colour": {"enum": ["red", "green"]}}}
    ),
    "recursive": {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    "recursive from the root": closed({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "any of": {"anyOf": [{"type": "integer"}, closed({"a": {"type": "string"}}), {"type": "array", "maxItems": 1}]},
    "one of by type": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}, {"type": "null"}]},
    "one of by tag": {
        "type": "array",
        "items": {
            "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "discriminator": {"propertyName": "kind"},
        },
        "$defs": {
            "cat": {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
                "required": ["kind"],
            },
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "puppy"]}}, "required": ["kind"]},
        },
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 7}, "b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "integer in a range": {"type": "integer", "minimum": -120, "maximum": 1045},
    "integer outside of bounds": {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 13},
    "number in a range": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    "multiple of": closed(
        {"a": {"type": "integer", "multipleOf": 7, "minimum": 0}, "b": {"type": "number", "multipleOf": 0.25}}
    ),
    "string of bounded length": {"type": "string", "minLength": 2, "maxLength": 5},
    "string of one character": closed({"é😀": {"type": "string", "minLength": 1, "maxLength": 1}}),
    "pattern": {"type": "string", "pattern": "^[a-f]{2,5}-\\d+(\\.x)?$"},
    "pattern that is not anchored": {"type": "string", "pattern": "(ab|c)d", "maxLength": 6},
    "pattern and length": {"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 8},
    "format date": {"type": "string", "format": "date"},
    "format date in leap years": {"type": "string", "format": "date", "pattern": "-02-29$"},
    "format time": {"type": "string", "format": "time"},
    "format date-time": {"type": "string", "format": "date-time"},
    "format duration": {"type": "string", "format": "duration"},
    "format email": {"type": "string", "format": "email", "maxLength": 30},
    "format hostname": {"type": "string", "format": "hostname"},
    "format ipv4": {"type": "string", "format": "ipv4"},
    "format ipv6": {"type": "string", "format": "ipv6"},
    "format uuid": {"type": "string", "format": "uuid"},
    "format uri": {"type": "string", "format": "uri", "maxLength": 60},
    "formats of numbers": closed({"a": {"type": "integer", "format": "int32"}}),
    "keywords that ask for nothing": {
        "type": "array",
        "uniqueItems": False,
        "items": {"type": "integer", "title": "x", "default": 3},
    },
}


def sample(matcher: GrammarMatcher, rng: random.Random, max_tokens: int = MAX_TOKENS) -> tuple[bytes, bool]:
    """A text, and whether it is complete."""
    matcher = matcher.copy()
    mask = array("I", bytes(4 * TOKENS.width // 32))
    ids: list[int] = []
    for _ in range(max_tokens):
        matcher.fill_mask(memoryview(mask))
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        closing = [token_id for token_id in CLOSING if bits[token_id]] if rng.random() < 0.3 else []
        token_id = rng.choice(closing or np.flatnonzero(bits).tolist())
        if token_id != EOS:
            ids.append(token_id)
        if matcher.advance(token_id):
            return b"".join(map(TOKENIZER.token_bytes, ids)), True
    return b"".join(map(TOKENIZER.token_bytes, ids)), False


def samples(kind: StructureKind, text: str, count: int = SAMPLES) -> list[tuple[bytes, bool]]:
    matcher = compile_structure(Structure(kind=kind, text=text), TOKENS)
    rng = random.Random(text)
    return [sample(matcher, rng) for _ in range(count)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_complete_text_is_valid(name: str) -> None:
    schema = SCHEMAS[name]
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    texts = [text.decode() for text, is_complete in samples("json_schema", json.dumps(schema)) if is_complete]
    for text in texts:
        validator.validate(json.loads(text))
    assert len(texts) > SAMPLES * 0.9
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    "regex",
    [
        "[a-c]{2,4}|x",
        r"\d{3}-\d{2}",
        r"(?i)ja|no",
        r"\w+@\w+\.(com|org)",
        "a?b*c+",
        "[^a-z]{3}",
        r"é+😀?|[α-ω]",
        r"\W\D\S",
        "/\\\"'",
    ],
)
def test_every_complete_text_is_matched(regex: str) -> None:
    pattern = re.compile(regex, re.ASCII)
    texts = [text.decode() for text, is_complete in samples("regex", regex, 100) if is_complete]
    assert len(texts) > 90
    for text in texts:
        assert pattern.fullmatch(text), text


def test_every_complete_text_is_a_choice_and_each_comes() -> None:
    choices = ["a", "ab", "abc", "é😀", 'q"\\\n\t/', "", "%json {", "<|eos|>", "null", "\x01\x7f"]
    texts = {text.decode() for text, is_complete in samples("choice", json.dumps(choices), 400) if is_complete}
    assert texts == set(choices)


def test_every_complete_text_is_of_the_grammar() -> None:
    grammar = 'start: item ("," item)*\nitem: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,2}/'
    texts = [text.decode() for text, is_complete in samples("lark", grammar) if is_complete]
    assert len(texts) > 150
    for text in texts:
        assert not re.sub(r"[0-9(),]", "", text)
        # 0 is no number in Python if another digit follows
        assert eval(re.sub(r"\b0+([0-9])", r"\1", text)) is not None
