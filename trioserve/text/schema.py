"""A JSON schema as its caller wrote it, made ready for llguidance, or refused.

Owns: what of JSON Schema is enforced beyond llguidance's own word for it, and the limits of a schema.
Must not know: tokens, requests.

llguidance turns a schema into a grammar, or says what it can't do. A few schemas it takes allow texts that are not
valid, and a few valid ones it could take it refuses; this stands in between:

- Keywords that assert something and are not enforced are refused here by name. ``uniqueItems: false`` and the like
  assert nothing.
- The formats of dates, times and host names are written as patterns: llguidance's allow the 29th of February in every
  year, and names of any length.
- Names that are free may be repeated in an object, so at least two of them can't be demanded.
- Strings have no ``\\u`` escapes: with them a free name could be one of the named ones in disguise. What then can't be
  written (most control characters) is refused where it is demanded.
- ``oneOf`` whose options exclude each other is ``anyOf``, also when they are references.
- A schema that only endless texts would satisfy is refused.
- White space is one space, or a line feed and its indentation; a model can't write it for ever.
"""

from __future__ import annotations

from typing import Final

import attrs
import msgspec

from trioserve.errors import ParamError
from trioserve.text.formats import FORMATS, LONGEST_HOSTNAME
from trioserve.text.references import Comparison, Document, can_end, children, longest_chain

Schema = dict[str, object]

MAX_SCHEMA_DEPTH: Final = 64
"""Schemas inside schemas."""
MAX_SCHEMAS: Final = 10_000
"""Schemas in a schema, all together."""
MAX_REFERENCES: Final = 1000
"""Different references in a schema."""
MAX_CHAIN: Final = 256
"""Schemas inside schemas where references are followed. llguidance does that by recursion, and a stack of 8 MiB, which
threads usually have, is at its end at some 1600 of them; the process would be too."""
MAX_COUNT: Final = 1000
"""Of items or properties that a schema may count."""
MAX_LENGTH: Final = 1_000_000
"""Of a string that a schema may count, in characters."""

WHITE_SPACE: Final = r" |\n[ \t]{0,24}"
"""What may stand between two tokens of JSON, as a regular expression; or nothing."""

_OPTIONS: Final[Schema] = {
    "whitespace_pattern": WHITE_SPACE,
    "json_allowed_escapes": 'nrbtf\\"',
    "coerce_one_of": False,
    "lenient": False,
}
"""llguidance's own options; a schema of a request can't set them."""

_NOT_ENFORCED: Final[dict[str, object]] = {
    "$dynamicRef": None,
    "$recursiveRef": None,
    "contains": True,
    "dependencies": {},
    "dependentRequired": {},
    "dependentSchemas": {},
    "disallow": [],
    "divisibleBy": None,
    "else": True,
    "extends": None,
    "if": True,
    "maxContains": None,
    "minContains": None,
    "not": False,
    "propertyNames": True,
    "then": True,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
    "uniqueItems": False,
}
"""Keywords of any draft that are not enforced, each with the value that asserts nothing; None: there is none."""

_DRAFTS: Final = {
    "http://json-schema.org/draft-06/schema": True,
    "http://json-schema.org/draft-07/schema": True,
    "https://json-schema.org/draft/2019-09/schema": True,
    "https://json-schema.org/draft/2020-12/schema": False,
}
"""The drafts that are read, and whether their ``items`` may be a list."""

_BOUNDS: Final = (
    ("minItems", "maxItems", MAX_COUNT),
    ("minProperties", "maxProperties", MAX_COUNT),
    ("minLength", "maxLength", MAX_LENGTH),
)


def prepare_schema(text: str, param: str) -> str:
    """``text``, a JSON schema, as a grammar of llguidance takes it after ``%json``.

    Raises:
        ParamError: it is no schema, over a limit, or can't be enforced; ``param`` is the one given.
    """
    try:
        return _prepare(text, param)
    except RecursionError:
        # of the decoder; of the encoder too, to which less of Python's stack may be left
        raise ParamError(f"{param}: the schema is nested too deeply.", param) from None


def _prepare(text: str, param: str) -> str:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ParamError(f"{param}: the schema is not valid JSON: {error}.", param) from None
    if value is True:
        value = {}
    if not isinstance(value, dict):
        what = "allows nothing at all" if value is False else "must be an object"
        raise ParamError(f"{param}: the schema {what}.", param)
    _Preparation(value, param).run()
    value["x-guidance"] = _OPTIONS
    return msgspec.json.encode(value).decode()


@attrs.define(eq=False)
class _Preparation:
    """One schema, changed in place."""

    root: Schema
    param: str
    item_lists: bool = attrs.field(default=False, init=False)
    """``items`` may be a list."""
    visited: set[int] = attrs.field(factory=set, init=False)
    """The ids of the schemas."""
    one_ofs: list[tuple[Schema, str]] = attrs.field(factory=list, init=False)
    """Every schema with oneOf, and where it is."""

    def run(self) -> None:
        if "x-guidance" in self.root:
            raise self.refusal("x-guidance can't be set in a schema", "$")
        self.read_draft()
        self.visit(self.root, "$", 1)
        document = Document(self.root)
        if len(document.references()) > MAX_REFERENCES:
            raise self.refusal(f"the schema has more than {MAX_REFERENCES} references", "$")
        self.visit_elsewhere(document)
        if longest_chain(document) > MAX_CHAIN:
            raise self.refusal(f"its references may lead to more than {MAX_CHAIN} schemas inside each other", "$")
        comparison = Comparison(document)
        for schema, path in self.one_ofs:
            self.settle_one_of(comparison, schema, path)
        if not can_end(document):
            raise self.refusal("no finite text satisfies the schema, since it contains itself", "$")

    def refusal(self, what: str, path: str) -> ParamError:
        where = "" if path == "$" else f" (at {path if len(path) <= 120 else path[:120] + '...'})"
        return ParamError(f"{self.param}: {what}{where}.", self.param)

    def read_draft(self) -> None:
        draft = self.root.get("$schema")
        if draft is None:
            return
        known = _DRAFTS.get(draft.rstrip("#")) if isinstance(draft, str) else None
        if known is None:
            raise self.refusal(f"the draft {_quoted(draft)} is not supported; 2020-12 to draft-06 are", "$.$schema")
        self.item_lists = known

    def visit(self, value: object, path: str, depth: int) -> None:
        """Check and change one schema and all inside it."""
        if isinstance(value, bool):
            return
        if not isinstance(value, dict):
            raise self.refusal("a schema must be an object, true or false", path)
        self.visited.add(id(value))
        if len(self.visited) > MAX_SCHEMAS:
            raise self.refusal(f"the schema has more than {MAX_SCHEMAS} parts", "$")
        if depth > MAX_SCHEMA_DEPTH:
            raise self.refusal(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep", "$")
        self.check_keywords(value, path)
        self.check_counts(value, path)
        self.check_literals(value, path)
        for child, child_path in children(value, path):
            if isinstance(child, list):
                raise self.refusal("items must be one schema; several are prefixItems", child_path)
            self.visit(child, child_path, depth + 1)
        # last: what it adds needs no check
        self.write_format(value)
        if isinstance(value.get("oneOf"), list):
            self.one_ofs.append((value, path))

    def visit_elsewhere(self, document: Document) -> None:
        """Visit the schemas that stand where no keyword wants one, and are only referred to."""
        for name in sorted(document.references()):
            schema = document.resolve(name)
            if isinstance(schema, dict) and id(schema) not in self.visited:
                self.visit(schema, name, 1)

    def check_keywords(self, schema: Schema, path: str) -> None:
        for name in [name for name in schema if name in _NOT_ENFORCED]:
            neutral = _NOT_ENFORCED[name]
            # in Python, unlike in JSON, 0 equals false
            if neutral is None or schema[name] != neutral or type(schema[name]) is not type(neutral):
                raise self.refusal(f"the keyword {name} can't be enforced", path)
            del schema[name]
        items = schema.get("items")
        if isinstance(items, list):
            if not self.item_lists:
                raise self.refusal("items must be one schema; several are prefixItems", path)
            # as the later drafts write it
            rest = schema.pop("additionalItems", True)
            schema["prefixItems"], schema["items"] = items, rest
        else:
            # it only goes with a list
            schema.pop("additionalItems", None)

    def check_counts(self, schema: Schema, path: str) -> None:
        for low_name, high_name, most in _BOUNDS:
            low, high = schema.get(low_name, 0), schema.get(high_name)
            for name, value in ((low_name, low), (high_name, high)):
                if value is None:
                    continue
                if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                    raise self.refusal(f"{name} must be an integer, 0 or more, got {_quoted(value)}", path)
                if value > most:
                    raise self.refusal(f"{name} must be at most {most}, got {value}", path)
            if isinstance(low, int) and isinstance(high, int) and low > high:
                raise self.refusal(f"{low_name} {low} is greater than {high_name} {high}", path)
        least, required = schema.get("minProperties", 0), schema.get("required", [])
        are_free = schema.get("additionalProperties") is not False or schema.get("patternProperties")
        named = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int) and least > max(1, named) and are_free:
            raise self.refusal("minProperties above 1 can't be enforced where names are free: they may repeat", path)

    def check_literals(self, schema: Schema, path: str) -> None:
        """Refuse demands of characters that can't be written."""
        rest = [schema[name] for name in ("const", "enum") if name in schema]
        while rest:
            value = rest.pop()
            if isinstance(value, str):
                if any(ord(char) == 0x7F or (char < " " and char not in "\b\f\n\r\t") for char in value):
                    raise self.refusal("a text with control characters can't be enforced", path)
            elif isinstance(value, list):
                rest += value
            elif isinstance(value, dict):
                rest += value.values()

    def write_format(self, schema: Schema) -> None:
        types = schema.get("type", "string")
        if types != "string" and not (isinstance(types, list) and "string" in types):
            # formats say something of strings alone
            schema.pop("format", None)
        name = schema.get("format")
        pattern = FORMATS.get(name) if isinstance(name, str) else None
        if pattern is None:
            return
        del schema["format"]
        if name == "hostname":
            longest = schema.get("maxLength", LONGEST_HOSTNAME)
            schema["maxLength"] = min(longest, LONGEST_HOSTNAME) if isinstance(longest, int) else longest
        if "pattern" not in schema:
            schema["pattern"] = pattern
        else:
            others = schema.get("allOf", [])
            schema["allOf"] = [*(others if isinstance(others, list) else []), {"pattern": pattern}]

    def settle_one_of(self, comparison: Comparison, schema: Schema, path: str) -> None:
        options = schema["oneOf"]
        assert isinstance(options, list)
        if not comparison.all_exclude(options):
            raise self.refusal("oneOf can't be enforced, since its options may overlap; anyOf can", path)
        entries = list(schema.items())
        schema.clear()
        if any(name == "anyOf" for name, _ in entries):
            others = dict(entries).get("allOf")
            schema.update((name, value) for name, value in entries if name not in ("oneOf", "allOf"))
            schema["allOf"] = [*(others if isinstance(others, list) else []), {"anyOf": options}]
        else:
            # in its old place: the order of the keywords is that of the properties
            schema.update(("anyOf" if name == "oneOf" else name, value) for name, value in entries)


def _quoted(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:60] + "..."
