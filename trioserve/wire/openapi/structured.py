"""What a request says its answers must be, as the document shows it.

Owns: the forms of response_format and structured_outputs. Must not know: what can be enforced (docs/structured.rst).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import meaning
from trioserve.wire.structured import SCHEMA_NAME

Anything = Annotated[object, Meta(extra_json_schema={"description": "Any value."})]
Schema = Annotated[dict[str, Anything], meaning("A JSON schema, of the drafts 2020-12 to 6.")]
Choices = Annotated[list[str], Meta(min_length=1)]


class StructuredOutputs(Body, kw_only=True):
    """What every choice must be: exactly one of these."""

    json: Annotated[Schema | str | None, meaning("Valid for this JSON schema; a string holds one.")] = None
    regex: Annotated[
        str | None, meaning("All of it is matched by this regular expression, without look-around and back-references.")
    ] = None
    choice: Annotated[Choices | None, meaning("One of these texts.")] = None
    grammar: Annotated[str | None, meaning("Derived from this grammar, in llguidance's dialect of Lark.")] = None


class AsText(Body, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class AsJsonObject(Body, kw_only=True, tag_field="type", tag="json_object"):
    """A JSON object. That the prompt asks for JSON is not required, but the model does better if it does."""


class NamedSchema(Body, kw_only=True):
    """A schema."""

    name: Annotated[str, Meta(pattern=SCHEMA_NAME), meaning("Any name.")]
    description: Annotated[str | None, meaning("For people: the model is not shown it.")] = None
    schema: Schema
    strict: Annotated[
        bool | None,
        meaning(
            "Refuse a schema with an object that has no additionalProperties: false. The schema is enforced either way."
        ),
    ] = False


class AsJsonSchema(Body, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that is valid for a schema."""

    json_schema: NamedSchema


ResponseFormat = AsText | AsJsonObject | AsJsonSchema
