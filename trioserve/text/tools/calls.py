"""A call that is a JSON object, read as it comes: {"name": "f", "arguments": {"x": 1}}.

Owns: how such a call is read, and what of a wrong one is still a call. Must not know: what stands around it.

- The call begins when its name and the start of its arguments are known; these are passed on as they come, as they
  were written. Whether they are right is for whoever gets them to see: from the arguments on, a call stays a call.
- The object's other members, and its own braces, are marks.
- Arguments that are a JSON text in a string are what that text says; null is no arguments, and so is their absence
  where only a call can stand.
- Anything else before the arguments makes it no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps

NO_ARGUMENTS: Final = "{}"
_ARGUMENTS: Final = ("arguments", "parameters")
_IN_STRING: Final = re.compile(r'[^"\\]*')
_IN_VALUE: Final = re.compile(r'[^"{}\[\]]*')
_SCALAR: Final = re.compile(r'[^\s,:"{}\[\]]*')

Write = Callable[[str], None]


def read_call(reader: Reader, writer: PartWriter, *, needs_arguments: bool = False) -> Steps[bool]:
    """Read a JSON object if it is a call. What stands before it is being recorded, and goes on being recorded.

    ``needs_arguments``: without them it is none.

    Returns:
        Whether a whole call was read. Then nothing is recorded. If not, what is recorded is no part of a call: all of
        it, or what comes after the arguments.
    """
    call = _Call(reader, writer)
    if not (yield from reader.accept("{")):
        return False
    while (yield from call.read_member()):
        yield from reader.skip_space()
        if (yield from reader.accept(",")):
            continue
        if not (yield from reader.accept("}")):
            return False
        if call.name is not None and not call.begun and not needs_arguments:
            call.begin(call.name)
            writer.arguments(NO_ARGUMENTS)
        if call.begun:
            reader.recorded()
            reader.record()
        return call.begun
    return False


class _Call:
    """What is known of a call."""

    def __init__(self, reader: Reader, writer: PartWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._held: str | None = None
        """Arguments that came before the name."""
        self.name: str | None = None
        self.begun = False

    def begin(self, name: str) -> None:
        """It is a call."""
        self._writer.begin_call(name)
        self.begun = True

    def read_member(self) -> Steps[bool]:
        """Read a name and a value of the object; False if that is not what is there."""
        reader = self._reader
        yield from reader.skip_space()
        key = yield from read_string(reader)
        if key is None:
            return False
        yield from reader.skip_space()
        if not (yield from reader.accept(":")):
            return False
        if not _starts_value((yield from reader.skip_space())):
            return False
        if key == "name" and self.name is None:
            self.name = yield from read_string(reader)
            if not self.name:
                return False
            if self._held is not None:
                self.begin(self.name)
                self._writer.arguments(self._held)
                self._forget_record()
        elif key in _ARGUMENTS and self.name is not None and not self.begun:
            self.begin(self.name)
            yield from _copy_arguments(reader, self._writer.arguments)
            self._forget_record()
        elif key in _ARGUMENTS and self._held is None and not self.begun:
            self._held = _opened((yield from read_value(reader)))
        else:
            yield from copy_value(reader, _forget)
        return True

    def _forget_record(self) -> None:
        self._reader.recorded()
        self._reader.record()


def read_string(reader: Reader) -> Steps[str | None]:
    """Read a JSON string; None if there is none, or it is no valid one."""
    if not (yield from reader.accept('"')):
        return None
    parts = ['"']
    if not (yield from _copy_rest_of_string(reader, parts.append)):
        return None
    return _string_value("".join(parts))


def read_value(reader: Reader) -> Steps[str]:
    """Read a JSON value, as it is written; see ``copy_value``."""
    parts: list[str] = []
    yield from copy_value(reader, parts.append)
    return "".join(parts)


def copy_value(reader: Reader, write: Write) -> Steps[None]:
    """Read a JSON value and write it as it comes. Of a wrong one: up to where its brackets are closed, or the end."""
    first = yield from reader.peek()
    if first not in ("{", "["):
        if (yield from reader.accept('"')):
            write('"')
            yield from _copy_rest_of_string(reader, write)
        else:
            write((yield from reader.take_all(_SCALAR)))
        return
    depth = 0
    while letter := (yield from reader.peek()):
        if letter not in '"{}[]':
            write(reader.take_here(_IN_VALUE))
            continue
        write(reader.take())
        if letter == '"':
            yield from _copy_rest_of_string(reader, write)
        else:
            depth += 1 if letter in "{[" else -1
            if depth == 0:
                return


def _copy_rest_of_string(reader: Reader, write: Write) -> Steps[bool]:
    """Read a JSON string after its first quote; whether it has a last one."""
    while letter := (yield from reader.peek()):
        if letter not in '"\\':
            write(reader.take_here(_IN_STRING))
            continue
        write(reader.take())
        if letter == '"':
            return True
        if (yield from reader.peek()):
            write(reader.take())
    return False


def _copy_arguments(reader: Reader, write: Write) -> Steps[None]:
    if (yield from reader.peek()) in ("{", "["):
        yield from copy_value(reader, write)
    else:
        write(_opened((yield from read_value(reader))))


def _opened(value: str) -> str:
    """What stands for the arguments where ``value`` was written for them."""
    if value == "null":
        return NO_ARGUMENTS
    opened = _string_value(value) if value.startswith('"') else None
    return value if opened is None else opened


def _string_value(literal: str) -> str | None:
    try:
        # models write line feeds in strings, which JSON wants escaped
        value: object = json.loads(literal, strict=False)
        assert isinstance(value, str)
        value.encode()
    except ValueError:
        return None
    return value


def _starts_value(letter: str) -> bool:
    return letter != "" and letter not in ",:}]<"


def _forget(_: str) -> None:
    """Write nothing."""
