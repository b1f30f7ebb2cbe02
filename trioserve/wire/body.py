"""The bytes of a request into the fields of its JSON object.

Owns: which bytes are JSON. Must not know: any field.
The text is UTF-8 (a byte order mark in front is skipped) and strict JSON: no NaN, no Infinity, no number too large
for a float or too long for an integer, no lone surrogates. Of a name given twice the last one counts, as in every
common JSON library.
"""

from __future__ import annotations

import codecs
import json
import math

import msgspec

from trioserve.errors import ParamError
from trioserve.wire.fields import Fields, shorten


def open_body(body: bytes) -> Fields:
    """The fields of a request body.

    Raises:
        ParamError: it is not a JSON object. ``param`` is None, or the field that holds a number that is none.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        value: object = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        name = _field_with_bad_number(body)
        if name is not None:
            raise ParamError(f"{name} must be a finite number that is not too long.", name) from None
        raise ParamError(f"The request body is not valid JSON: {error}.", None) from None
    except RecursionError:
        raise ParamError("The request body is nested too deeply.", None) from None
    if not isinstance(value, dict):
        raise ParamError("The request body must be a JSON object.", None)
    return Fields(value)


def _field_with_bad_number(body: bytes) -> str | None:
    """The field that makes ``body`` invalid JSON by a number such as NaN, 1e999 or 5000 digits; None if none does.

    Python's own json reads all of these as floats that are not finite. It is asked only about bodies that
    msgspec refused, whose message doesn't say which field was at fault.
    """
    try:
        value: object = json.loads(body.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        for name, field in value.items():
            if _has_bad_number(field):
                return shorten(name)
    return None


def _has_bad_number(value: object) -> bool:
    # a list of what is left to visit: recursion could overflow here where json's own, in C, did not
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, float):
            if not math.isfinite(value):
                return True
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
    return False
