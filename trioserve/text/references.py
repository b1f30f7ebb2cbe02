"""What can be known of a JSON schema only by following its references.

Owns: where schemas stand in a schema, local references, how deep they lead, whether a schema has a finite instance,
and whether two exclude each other.
Must not know: grammars, or what is enforced.
All answers are on the safe side: a reference to elsewhere is taken to end, and to exclude nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, TypeGuard
from urllib.parse import unquote

import attrs
import msgspec

Schema = dict[str, object]

_ONE: Final = ("items", "additionalItems", "additionalProperties")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_INDEX: Final = re.compile("0|[1-9][0-9]{0,8}")
_MOST_STEPS: Final = 100_000
"""Pairs of schemas, and values of theirs, that are compared to tell options apart."""
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
            elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value


def children(schema: Schema, path: str) -> Iterator[tuple[object, str]]:
    """What stands in a schema where schemas stand, and where that is; ``path``: where the schema is."""
    for name in _ONE:
        if name in schema:
            yield schema[name], f"{path}.{name}"
    for name in _LISTS:
        values = schema.get(name)
        if isinstance(values, list):
            yield from ((value, f"{path}.{name}.{index}") for index, value in enumerate(values))
    for name in _MAPS:
        values = schema.get(name)
        if isinstance(values, dict):
            yield from ((value, f"{path}.{name}.{key}") for key, value in values.items())


def longest_chain(document: Document) -> int:
    """How many schemas may be inside each other if references are followed, each once; at most, since what is in a
    circle is added up, in whatever order it may be met.
    """
    targets = [document.root, *filter(_is_schema, map(document.resolve, document.references()))]
    depths: dict[int, int] = {}
    users: dict[int, list[int]] = {id(target): [] for target in targets}
    missing: dict[int, int] = {}
    for target in targets:
        key = id(target)
        if key not in depths:
            depths[key], led_to = _measure(document, target)
            missing[key] = len(led_to)
            for other in led_to:
                users[other].append(key)
    # from those that lead nowhere, up
    below = dict.fromkeys(depths, 0)
    ready = [key for key, count in missing.items() if count == 0]
    for key in ready:
        for user in users[key]:
            below[user] = max(below[user], below[key] + depths[key])
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    settled = set(ready)
    in_circles = sum(depth for key, depth in depths.items() if key not in settled)
    return in_circles + max(below[key] + (depths[key] if key in settled else 0) for key in depths)


def _measure(document: Document, schema: object) -> tuple[int, set[int]]:
    """How many schemas are inside each other, this one included, and the ids of those it refers to."""
    deepest, led_to = 0, set()
    rest: list[tuple[object, int]] = [(schema, 1)]
    while rest:
        value, depth = rest.pop()
        if isinstance(value, dict):
            deepest = max(deepest, depth)
            name = value.get("$ref")
            if isinstance(name, str) and _is_schema(target := document.resolve(name)):
                led_to.add(id(target))
            rest += ((child, depth + 1) for child, _ in children(value, ""))
    return deepest, led_to


def _is_schema(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def can_end(document: Document) -> bool:
    """Whether some finite value may satisfy the schema, as far as its references go.

    Each schema needs other things first: all of some schemas, and one of each list of options. This counts down what
    is missing, from those that need nothing, so the time is linear in the size of the document.
    """
    needs = _Needs(document)
    root = needs.number_of(document.root)
    return root in needs.met()


@attrs.define(eq=False)
class _Needs:
    """Which schemas have a finite instance only if others have. A number stands for a schema, or for an option."""

    _document: Document
    _numbers: dict[int, int] = attrs.field(factory=dict, init=False)
    _schemas: list[Schema] = attrs.field(factory=list, init=False)
    """Those that were given a number and not looked at yet."""
    _missing: list[int] = attrs.field(factory=list, init=False)
    """How many of its needs are not met."""
    _users: list[list[int]] = attrs.field(factory=list, init=False)
    """What needs it."""

    def number_of(self, schema: Schema) -> int:
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._numbers[id(schema)] = self._add()
            self._schemas.append(schema)
        return number

    def met(self) -> set[int]:
        """All that have a finite instance."""
        while self._schemas:
            self._look_at(self._schemas.pop())
        ready = [number for number, missing in enumerate(self._missing) if missing == 0]
        found = set(ready)
        while ready:
            for user in self._users[ready.pop()]:
                self._missing[user] -= 1
                # not below: an option may be met by several
                if self._missing[user] == 0:
                    found.add(user)
                    ready.append(user)
        return found

    def _add(self, missing: int = 0) -> int:
        self._missing.append(missing)
        self._users.append([])
        return len(self._missing) - 1

    def _look_at(self, schema: Schema) -> None:
        user = self.number_of(schema)
        for options in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(options, list) and all(isinstance(option, dict) for option in options):
                one_of_them = self._add(missing=1)
                for option in options:
                    self._need(one_of_them, option)
                self._missing[user] += 1
                self._users[one_of_them].append(user)
        parts: list[object] = []
        name = schema.get("$ref")
        if isinstance(name, str):
            parts.append(self._document.resolve(name))
        for more in (schema.get("allOf"), _required_parts(schema)):
            parts += more if isinstance(more, list) else []
        for part in parts:
            # anything else ends
            if isinstance(part, dict):
                self._missing[user] += 1
                self._need(user, part)

    def _need(self, user: int, schema: Schema) -> None:
        self._users[self.number_of(schema)].append(user)


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


@attrs.define(eq=False)
class Comparison:
    """Tells whether schemas of one document exclude each other, as far as a bounded time for all of them allows."""

    _document: Document
    _steps_left: int = attrs.field(default=_MOST_STEPS, init=False)
    _known_values: dict[int, set[bytes] | None] = attrs.field(factory=dict, init=False, repr=False)

    def all_exclude(self, options: Sequence[object]) -> bool:
        """Whether no value can satisfy two of ``options``. False: that is not certain."""
        return all(self.exclude(one, other) for one, other in combinations(options, 2))

    def exclude(self, one: object, other: object, depth: int = 1) -> bool:
        """Whether no value can satisfy both."""
        self._steps_left -= 1
        one, other = _followed(self._document, one), _followed(self._document, other)
        if one is False or other is False:
            return True
        if not (isinstance(one, dict) and isinstance(other, dict)) or self._steps_left < 0 or depth > _MOST_DEEP:
            return False
        types, other_types = _types(one), _types(other)
        if types is not None and other_types is not None and not types & other_types:
            return True
        if self._lists_other_values(one, other):
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

    def _lists_other_values(self, one: Schema, other: Schema) -> bool:
        values, other_values = self._values(one), self._values(other)
        if values is None or other_values is None:
            return False
        self._steps_left -= min(len(values), len(other_values))
        return values.isdisjoint(other_values)

    def _values(self, schema: Schema) -> set[bytes] | None:
        """The values an instance may be, as JSON; None: they are not listed."""
        if id(schema) not in self._known_values:
            listed = [schema["const"]] if "const" in schema else schema.get("enum")
            self._known_values[id(schema)] = set(map(_as_key, listed)) if isinstance(listed, list) else None
        return self._known_values[id(schema)]


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


def _as_key(value: object) -> bytes:
    # 1 and 1.0 are equal in JSON Schema
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value, order="deterministic")
