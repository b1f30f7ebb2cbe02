"""What all JSON objects of a request are, as the document shows them.

Owns: Body. Must not know: any field.
"""

from __future__ import annotations

from msgspec import Struct


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object of a request: a field that is not known is refused."""
