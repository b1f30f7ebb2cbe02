"""What JSON schemas say, for tests that compare a document with code.

Owns: how schemas are walked through. Must not know: any document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


class Schemas:
    """The schemas of a document, which refer to one another."""

    def __init__(self, document: Schema) -> None:
        self._schemas = document["components"]["schemas"]

    def __getitem__(self, name: str) -> Any:
        return self._schemas[name]

    def alternatives(self, schema: Schema) -> Iterator[Any]:
        """A schema, and all that it may be instead, references followed."""
        if "$ref" in schema:
            yield from self.alternatives(self._schemas[schema["$ref"].rpartition("/")[2]])
        for inner in schema.get("anyOf", []):
            yield from self.alternatives(inner)
        yield schema

    def field_paths(self, schema: Schema, prefix: str = "") -> Iterator[str]:
        """The path of every field in a schema, with a star for an index."""
        for one in self.alternatives(schema):
            for name, inner in one.get("properties", {}).items():
                yield prefix + name
                yield from self.field_paths(inner, f"{prefix}{name}.")
            if "items" in one:
                yield from self.field_paths(one["items"], f"{prefix}*.")

    def bounds(self, schema: Schema) -> Iterator[object]:
        """Values at, and just beyond, what a schema allows."""
        for one in self.alternatives(schema):
            for word, step in (("minimum", -1), ("maximum", 1)):
                if word in one:
                    yield from (one[word], one[word] + step)
            if "maxItems" in one:
                yield from (["x"] * one["maxItems"], ["x"] * (one["maxItems"] + 1))
            yield from one.get("enum", [])


def put(body: Any, path: str, value: object) -> Any:
    """A copy of ``body`` with a value in it."""
    name, _, rest = path.partition(".")
    key: Any = int(name) if name.isdigit() else name
    copy = list(body) if isinstance(body, list) else dict(body)
    copy[key] = put(copy[key], rest, value) if rest else value
    return copy
