"""What a structured answer must be.

Owns: Structure, a grammar as its caller wrote it. Must not know: how it is enforced, or whether it can be.
"""

from __future__ import annotations

from typing import Literal

import attrs

StructureKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


@attrs.frozen(kw_only=True)
class Structure:
    """A description of the texts that a choice may be."""

    kind: StructureKind
    text: str
    """By kind: nothing; the schema, in JSON; a regular expression; the choices, as a JSON array of strings; a grammar
    in llguidance's dialect of Lark, which can hold JSON schemas and regular expressions too."""
    param: str = "structure"
    """What the request calls it, for errors: "response_format"."""
