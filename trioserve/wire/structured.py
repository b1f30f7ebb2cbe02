"""What a request says its answers must be: ``response_format``, and ``structured_outputs`` where OpenAI has nothing.

Owns: the forms of both, and what OpenAI demands of a strict schema. Must not know: which schemas and grammars can be
enforced; that is found out when they are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from trioserve.errors import ParamError
from trioserve.structure import Structure
from trioserve.wire.fields import Fields, shorten

SCHEMA_NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"
"""What a schema of ``response_format`` may be called."""
_RENAMED: Final = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
}
"""Older names in other servers."""
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE: Final = ("items", "additionalProperties")


def take_response_format(fields: Fields) -> Structure | None:
    """``response_format``; None for any text.

    Raises:
        ParamError: it is not well formed.
    """
    form = fields.nested("response_format")
    if form is None:
        return None
    param = fields.path("response_format")
    kind = form.required_text("type")
    structure: Structure | None
    if kind == "text":
        structure = None
    elif kind == "json_object":
        structure = Structure(kind="json_object", text="", param=param)
    elif kind == "json_schema":
        structure = _take_json_schema(form, param)
    else:
        raise form.wrong("type", "'text', 'json_object' or 'json_schema'", kind)
    form.finish()
    return structure


def choose_structure(response_format: Structure | None, outputs: Structure | None) -> Structure | None:
    """The one that is given.

    Raises:
        ParamError: both are.
    """
    if response_format is not None and outputs is not None:
        raise ParamError(
            f"{response_format.param} and structured_outputs can't be given together; structured_outputs.json is a "
            "schema too.",
            "structured_outputs",
        )
    return outputs if response_format is None else response_format


def take_structured_outputs(fields: Fields) -> Structure | None:
    """``structured_outputs``: an object with exactly one of json, regex, choice and grammar.

    Raises:
        ParamError: it is anything else, or has a name of older servers.
    """
    given = fields.names()
    for old, new in _RENAMED.items():
        if old in given:
            raise ParamError(f"{old} is not supported by this server; give {new} instead.", old)
    outputs = fields.nested("structured_outputs")
    if outputs is None:
        return None
    found = [
        *_take_json(outputs),
        *_take_regex(outputs),
        *_take_choice(outputs),
        *_take_grammar(outputs),
    ]
    outputs.finish()
    if len(found) != 1:
        raise ParamError(
            "structured_outputs takes exactly one of json, regex, choice and grammar.", "structured_outputs"
        )
    return found[0]


def check_strict(schema: dict[str, object], param: str) -> None:
    """Refuse a schema that OpenAI would not take as strict, since it leaves names free.

    Optional properties, which OpenAI does not take either, are no reason: they can be enforced.

    Raises:
        ParamError: an object has no ``additionalProperties: false``; ``param`` is the one given.
    """
    rest: list[tuple[object, str]] = [(schema, "$")]
    while rest:
        value, path = rest.pop()
        if not isinstance(value, dict):
            continue
        types = value.get("type")
        is_object = types == "object" or (isinstance(types, list) and "object" in types) or "properties" in value
        if is_object and value.get("additionalProperties") is not False:
            raise ParamError(
                f"{param}: in a strict schema, additionalProperties must be false for every object, and it is not "
                f"at {shorten(path)}.",
                param,
            )
        rest += _children(value, path)


def _take_json_schema(form: Fields, param: str) -> Structure:
    named = form.nested("json_schema")
    if named is None:
        raise form.missing("json_schema")
    structure = take_named_schema(named, param)
    named.finish()
    return structure


def take_named_schema(named: Fields, param: str) -> Structure:
    """A schema that has a name, from an object that may have other fields too. ``param``: what errors call it.

    Raises:
        ParamError: it is not well formed.
    """
    name = named.required_text("name")
    if re.fullmatch(SCHEMA_NAME, name) is None:
        raise named.wrong("name", "1 to 64 letters, digits, underscores and dashes", name)
    # it says something to the model in OpenAI's prompts; here the caller says it in a message
    named.text("description", None)
    strict = named.flag("strict")
    schema = named.take("schema")
    if schema is None:
        raise named.missing("schema")
    if not isinstance(schema, dict):
        raise named.wrong("schema", "an object", schema)
    if strict:
        check_strict(schema, param)
    return Structure(kind="json_schema", text=as_text(schema), param=param)


def _take_json(outputs: Fields) -> Iterator[Structure]:
    schema, param = outputs.take("json"), outputs.path("json")
    if schema is not None:
        if not isinstance(schema, (dict, str)):
            raise outputs.wrong("json", "an object, or a string that holds one", schema)
        yield Structure(kind="json_schema", text=schema if isinstance(schema, str) else as_text(schema), param=param)


def _take_regex(outputs: Fields) -> Iterator[Structure]:
    regex = outputs.text("regex", None)
    if regex is not None:
        yield Structure(kind="regex", text=regex, param=outputs.path("regex"))


def _take_choice(outputs: Fields) -> Iterator[Structure]:
    choices = outputs.array("choice")
    if choices is not None:
        if not choices or not all(isinstance(choice, str) for choice in choices):
            raise outputs.wrong("choice", "an array of one or more strings", choices)
        yield Structure(kind="choice", text=as_text(choices), param=outputs.path("choice"))


def _take_grammar(outputs: Fields) -> Iterator[Structure]:
    grammar = outputs.text("grammar", None)
    if grammar is not None:
        yield Structure(kind="lark", text=grammar, param=outputs.path("grammar"))


def as_text(value: object) -> str:
    """A schema, or whatever else, as the text of a Structure."""
    return msgspec.json.encode(value).decode()


def _children(schema: dict[str, object], path: str) -> Iterator[tuple[object, str]]:
    for name in _ONE:
        yield schema.get(name), f"{path}.{name}"
    for name in _LISTS:
        values = schema.get(name)
        if isinstance(values, list):
            yield from ((value, f"{path}.{name}.{index}") for index, value in enumerate(values))
    for name in _MAPS:
        values = schema.get(name)
        if isinstance(values, dict):
            yield from ((value, f"{path}.{name}.{key}") for key, value in values.items())
