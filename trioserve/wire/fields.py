"""One JSON object of a request, taken apart field by field.

Owns: the JSON types of fields, the paths that name them in errors, and the refusal of names nobody asked for.
Must not know: what any field means.
"""

from __future__ import annotations

from typing import Final, TypeVar

from trioserve.errors import ParamError
from trioserve.params import INT64_MAX, INT64_MIN

D = TypeVar("D")

_MOST_SHOWN: Final = 60
"""Characters of a caller's own words that an error message gives back."""


def shorten(text: str) -> str:
    """``text`` as an error message may quote it: not the megabytes that a caller may have sent."""
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def shown(value: object) -> str:
    """A JSON value as an error message may quote it: as written if that is short, else only its kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if INT64_MIN <= value <= INT64_MAX else "an integer of more than 64 bits"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _MOST_SHOWN else "a longer string"
    return "an array" if isinstance(value, list) else "an object"


class Fields:
    """The fields of one JSON object. Each is taken once, by the method of its type; ``finish`` refuses the rest.

    Null is the same as absent. Every method that takes a field raises ParamError, with the field's path as
    ``param``, if its value has another type.
    """

    def __init__(self, values: dict[str, object], path: str = "") -> None:
        """``values`` is handed over: it is emptied as fields are taken. ``path`` is that of the object itself."""
        self._values = values
        self._path = path

    def __repr__(self) -> str:
        return f"<Fields of {self._path or 'the body'}: {len(self._values)} not taken>"

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        """The fields of ``value``, found at ``path``.

        Raises:
            ParamError: it is not an object.
        """
        if not isinstance(value, dict):
            raise ParamError(f"{path} must be an object, got {shown(value)}.", path)
        return cls(value, path)

    def path(self, name: str) -> str:
        """How an error names the field: "messages.0.content"."""
        return f"{self._path}.{name}" if self._path else name

    def wrong(self, name: str, expected: str, value: object) -> ParamError:
        """The error for a field whose value isn't what was expected."""
        path = self.path(name)
        return ParamError(f"{path} must be {expected}, got {shown(value)}.", path)

    def missing(self, name: str) -> ParamError:
        """The error for a field that has to be there."""
        path = self.path(name)
        return ParamError(f"{path} is required.", path)

    def names(self) -> tuple[str, ...]:
        """The names of the fields that were not taken."""
        return tuple(self._values)

    def is_false(self, name: str) -> bool:
        """Whether the value of a field that was not taken is false."""
        return self._values.get(name) is False

    def take(self, name: str) -> object:
        """The value of a field whatever its type; None if there is none."""
        return self._values.pop(name, None)

    def peek(self, name: str) -> object:
        """The value of a field, which is yet to be taken; None if there is none."""
        return self._values.get(name)

    def text(self, name: str, default: D) -> str | D:
        """A string."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def required_text(self, name: str) -> str:
        """A string that has to be there."""
        value = self.text(name, None)
        if value is None:
            raise self.missing(name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        return self.switch(name) or False

    def switch(self, name: str) -> bool | None:
        """True or false; absent is neither."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: D) -> int | D:
        """An integer of 64 bits. A number written with a fraction or exponent is none, even if it is whole."""
        value = self.take(name)
        if value is None:
            return default
        # bool is an int in Python; a caller who writes "n": true means something else
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, "an integer", value)
        return self._in_64_bits(name, value)

    def number(self, name: str, default: D) -> float | D:
        """Any number."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.wrong(name, "a number", value)
        # a larger integer may not even be a float
        return value if isinstance(value, float) else float(self._in_64_bits(name, value))

    def array(self, name: str) -> list[object] | None:
        """A list, its items unchecked."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(name, "an array", value)
        return value

    def nested(self, name: str) -> Fields | None:
        """The fields of an object inside this one."""
        value = self.take(name)
        return None if value is None else Fields.of(value, self.path(name))

    def finish(self) -> None:
        """Raise ParamError if a field was not taken: a name that means nothing here, most likely a typing error."""
        if self._values:
            path = self.path(shorten(next(iter(self._values))))
            raise ParamError(f"Unrecognized request argument supplied: {path}", path)

    def _in_64_bits(self, name: str, value: int) -> int:
        if not INT64_MIN <= value <= INT64_MAX:
            path = self.path(name)
            raise ParamError(f"{path} is out of range: it must fit in 64 bits.", path)
        return value
