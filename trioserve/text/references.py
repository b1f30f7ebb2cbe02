"""What can be known of a JSON schema only by following its references.

Owns: local references, whether a schema has a finite instance, and whether two exclude each other.
Must not know: grammars, or what is enforced.
Both answers are on the safe side: a reference to elsewhere is taken to end, and to exclude nothing.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import combinations
from typing import Final
from urllib.parse import unquote

import attrs
import msgspec

Schema = dict[str, object]

_MOST_STEPS: Final = 10_000
"""Pairs of schemas that are compared to tell options apart."""
_MOST_DEEP: Final = 8
"""Properties inside properties that are compared."""
_MOST_HOPS: Final = 16
"""References to references that are followed."""


@attrs.define(eq=False)
class Document:
    """A schema whose local references can be followed."""

    root: Schema
    _found: dict[str, object] = attrs.field(factory=dict, init=False, repr=False)

    def resolve(self, reference: str) -> object:
        """What a reference such as ``#/$defs/tree`` stands for; None if it is none inside this schema."""
        if reference not in self._found:
            self._found[reference] = self._look_up(reference)
        return self._found[reference]

    def references(self) -> set[str]:
        """Every reference there is, also those to elsewhere."""
        found: set[str] = set()
        rest: list[object] = [self.root]
        while rest:
            value = rest.pop()
            if isinstance(value, dict):
                name = value.get("$ref")
                if isinstance(name, str):
                    found.add(name)
                rest += value.values()
            elif isinstance(value, list):
                rest += value
        return found

    def _look_up(self, reference: str) -> object:
        if reference in ("#", "#/"):
            return self.root
        if not reference.startswith("#/"):
            return None
        value: object = self.root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value


def can_end(document: Document) -> bool:
    """Whether some finite value may satisfy the schema, as far as its references go."""
    # a reference ends if it does without those that are not known to; and so on, until no more are known
    waiting = document.references()
    while ending := {name for name in waiting if _ends(document.resolve(name), waiting)}:
        waiting -= ending
    return _ends(document.root, waiting)


def _ends(schema: object, endless: Set[str]) -> bool:
    """Whether a schema has a finite instance if the references in ``endless`` have none."""
    if not isinstance(schema, dict):
        return True
    name = schema.get("$ref")
    if isinstance(name, str) and name in endless:
        return False
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(options, list) and not any(_ends(option, endless) for option in options):
            return False
    parts: list[object] = []
    for more in (schema.get("allOf"), _required_parts(schema)):
        parts += more if isinstance(more, list) else []
    return all(_ends(part, endless) for part in parts)


def _required_parts(schema: Schema) -> list[object]:
    """The schemas of what every instance contains."""
    parts: list[object] = []
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" and isinstance(required, list):
        named = properties if isinstance(properties, dict) else {}
        parts += [named.get(name, True) for name in required if isinstance(name, str)]
    least = schema.get("minItems", 0)
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        first = schema.get("prefixItems")
        items = first[:least] if isinstance(first, list) else []
        parts += items
        if least > len(items):
            parts.append(schema.get("items", True))
    return parts


def exclude_each_other(document: Document, options: Sequence[object]) -> bool:
    """Whether no value can satisfy two of ``options``. False: that is not certain."""
    comparison = _Comparison(document)
    return all(comparison.exclude(one, other) for one, other in combinations(options, 2))


@attrs.define(eq=False)
class _Comparison:
    document: Document
    steps_left: int = attrs.field(default=_MOST_STEPS, init=False)

    def exclude(self, one: object, other: object, depth: int = 1) -> bool:
        """Whether no value can satisfy both."""
        self.steps_left -= 1
        one, other = _followed(self.document, one), _followed(self.document, other)
        if one is False or other is False:
            return True
        if not (isinstance(one, dict) and isinstance(other, dict)) or self.steps_left < 0 or depth > _MOST_DEEP:
            return False
        types, other_types = _types(one), _types(other)
        if types is not None and other_types is not None and not types & other_types:
            return True
        values, other_values = _values(one), _values(other)
        if values is not None and other_values is not None and not values & other_values:
            return True
        properties, other_properties = one.get("properties"), other.get("properties")
        if types != {"object"} or other_types != {"object"}:
            return False
        if not (isinstance(properties, dict) and isinstance(other_properties, dict)):
            return False
        # a value has the property, or fails the schema that requires it
        return any(
            name in properties
            and name in other_properties
            and self.exclude(properties[name], other_properties[name], depth + 1)
            for name in _names(one) | _names(other)
        )


def _followed(document: Document, schema: object) -> object:
    for _ in range(_MOST_HOPS):
        name = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(name, str):
            break
        schema = document.resolve(name)
    return schema


def _names(schema: Schema) -> set[str]:
    required = schema.get("required")
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


def _types(schema: Schema) -> set[str] | None:
    """The types an instance may have, an integer being a number; None: any."""
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    return {"number" if name == "integer" else str(name) for name in names}


def _values(schema: Schema) -> set[bytes] | None:
    """The values an instance may be, as JSON; None: they are not listed."""
    if "const" in schema:
        return {_as_key(schema["const"])}
    values = schema.get("enum")
    return {_as_key(value) for value in values} if isinstance(values, list) else None


def _as_key(value: object) -> bytes:
    # 1 and 1.0 are equal in JSON Schema
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value, order="deterministic")
