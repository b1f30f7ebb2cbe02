"""Typed access to the keys and values that a model's file gives.

Owns: Fields. Must not know: which keys there are.

A value of the wrong type is an error that names the file and the key; it is never converted or left out.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar, overload

from trioserve.errors import ModelError
from trioserve.model.files import fault, shown

D = TypeVar("D")


class _Required(enum.Enum):
    TOKEN = enum.auto()


_REQUIRED: Final = _Required.TOKEN
_RequiredType = Literal[_Required.TOKEN]


class Fields:
    """The values of one file. A key that is not there and a null are the same: the default, or an error without one.

    All methods raise ModelError when the value is missing and required, or is of another type.
    """

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def __repr__(self) -> str:
        return f"<Fields of {str(self.path)!r}: {len(self._values)}>"

    def has(self, key: str) -> bool:
        """Whether the key is there, even if its value is null."""
        return key in self._values

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: D | _RequiredType = _REQUIRED) -> int | D:
        value = self._value(key, default)
        # bool is an int in Python, but not in these files
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return self._default(key, value, default, "an integer")

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: D | _RequiredType = _REQUIRED) -> float | D:
        """A finite number; integers count as such."""
        value = self._value(key, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
            raise self.fault(key, f"is {shown(value)}, which is not a finite number")
        return self._default(key, value, default, "a number")

    @overload
    def positive(self, key: str) -> float: ...
    @overload
    def positive(self, key: str, default: D) -> float | D: ...
    def positive(self, key: str, default: D | _RequiredType = _REQUIRED) -> float | D:
        """A finite number above 0."""
        number = self.number(key) if default is _REQUIRED else self.number(key, default)
        if isinstance(number, float) and not number > 0:
            raise self.fault(key, f"is {number}, which is not a positive number")
        return number

    @overload
    def boolean(self, key: str) -> bool: ...
    @overload
    def boolean(self, key: str, default: D) -> bool | D: ...
    def boolean(self, key: str, default: D | _RequiredType = _REQUIRED) -> bool | D:
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        return self._default(key, value, default, "a boolean")

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: D) -> str | D: ...
    def text(self, key: str, default: D | _RequiredType = _REQUIRED) -> str | D:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        return self._default(key, value, default, "a string")

    def value(self, key: str) -> object:
        """The value as it is, of any type; None when it is not there."""
        return self._value(key, None)

    def section(self, key: str) -> Fields | None:
        """The object under a key; None when it is not there."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(key, "is not an object")
        return Fields(self.path, value, f"{self._prefix}{key}.")

    def unread(self, prefix: str) -> list[str]:
        """The keys with this prefix that nobody has asked for."""
        return sorted(key for key in self._values if key.startswith(prefix) and key not in self._read)

    def fault(self, key: str, text: str) -> ModelError:
        """The error that the value of ``key`` is unusable because of ``text``."""
        return fault(self.path, f"{self._prefix}{key} {text}")

    def _value(self, key: str, default: object) -> object:
        self._read.add(key)
        value = self._values.get(key)
        if value is None and default is _REQUIRED:
            raise self.fault(key, "is missing")
        return value

    def _default(self, key: str, value: object, default: D | _RequiredType, wanted: str) -> D:
        if value is not None or default is _REQUIRED:
            raise self.fault(key, f"is {shown(value)}, not {wanted}")
        return default
