"""A Python literal, read as it comes and written as JSON.

Owns: what of Python's literals there is, and how they look in JSON. Must not know: calls.

Strings (without prefixes), numbers, True, False, None, lists, tuples and dictionaries; also JSON's true, false and
null. Keys of dictionaries that are no strings become their text, as Python's json has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from trioserve.text.reader import Reader, Steps

Write = Callable[[str], None]

_ATOM: Final = re.compile(r"[\w.+-]*")
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_NAMES: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS: Final = {"[": "]", "(": ")", "{": "}"}
_WRITTEN: Final = {"[": "[", "(": "[", "{": "{", "]": "]", ")": "]", "}": "}"}
_PLAIN: Final = re.compile(r"""[^\\'"]*""")
_ESCAPES: Final = {
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    # JSON's
    "/": "/",
}
_HEX_LENGTHS: Final = {"x": 2, "u": 4, "U": 8}
_HEX: Final = re.compile(r"[0-9a-fA-F]")
_OCTAL: Final = re.compile(r"[0-7]")


def copy_literal(reader: Reader, write: Write) -> Steps[bool]:
    """Read one literal and write it as JSON. False: what is next in the reader is no part of one."""
    open_brackets: list[str] = []
    is_key = False
    while True:
        letter = yield from reader.skip_space()
        if letter in _CLOSERS:
            write(_WRITTEN[reader.take()])
            open_brackets.append(letter)
            if (yield from reader.skip_space()) != _CLOSERS[letter]:
                is_key = letter == "{"
                continue
        elif letter in ("'", '"'):
            if not (yield from _copy_string(reader, write)):
                return False
        elif not (yield from _copy_atom(reader, write, is_key=is_key)):
            return False
        if is_key:
            yield from reader.skip_space()
            if not (yield from reader.accept(":")):
                return False
            write(": ")
            is_key = False
            continue
        while open_brackets:
            closer = _CLOSERS[open_brackets[-1]]
            yield from reader.skip_space()
            has_comma = yield from reader.accept(",")
            if (yield from reader.skip_space()) == closer:
                write(_WRITTEN[reader.take()])
                open_brackets.pop()
            elif has_comma:
                write(", ")
                is_key = open_brackets[-1] == "{"
                break
            else:
                return False
        else:
            return True


def _copy_atom(reader: Reader, write: Write, *, is_key: bool) -> Steps[bool]:
    atom = yield from reader.take_all(_ATOM)
    written = _NAMES.get(atom)
    if written is None:
        sign = "-" if atom.startswith("-") else ""
        number = atom.removeprefix(sign or "+").replace("_", "")
        # what Python's numbers may leave out and JSON's may not
        number = f"0{number}" if number.startswith(".") else number
        number = f"{number}0" if number.endswith(".") else number
        if _NUMBER.fullmatch(number) is None:
            return False
        written = sign + number
    write(f'"{written}"' if is_key else written)
    return True


def _copy_string(reader: Reader, write: Write) -> Steps[bool]:
    quote = reader.take()
    if (yield from reader.accept(quote * 2)):
        quote *= 3
    elif (yield from reader.accept(quote)):
        write('""')
        return True
    write('"')
    while letter := (yield from reader.peek()):
        if (yield from reader.accept(quote)):
            write('"')
            return True
        if letter == "\\":
            reader.take()
            yield from _copy_escape(reader, write)
        else:
            write(_quoted(reader.take_here(_PLAIN) or reader.take()))
    return False


def _copy_escape(reader: Reader, write: Write) -> Steps[None]:
    """Read an escape after its backslash. One that means nothing stays as it is, as in Python."""
    letter = yield from reader.peek()
    if letter in _HEX_LENGTHS:
        reader.take()
        digits = yield from _take_digits(reader, _HEX, _HEX_LENGTHS[letter])
        whole = len(digits) == _HEX_LENGTHS[letter] and int(digits, 16) <= 0x10FFFF
        write(_quoted(chr(int(digits, 16)) if whole else f"\\{letter}{digits}"))
    elif letter in _ESCAPES:
        write(_quoted(_ESCAPES[reader.take()]))
    else:
        digits = yield from _take_digits(reader, _OCTAL, 3)
        write(_quoted(chr(int(digits, 8)) if digits else "\\"))


def _take_digits(reader: Reader, digit: re.Pattern[str], most: int) -> Steps[str]:
    digits = ""
    while len(digits) < most and digit.fullmatch((yield from reader.peek())):
        digits += reader.take()
    return digits


def _quoted(text: str) -> str:
    """The text as it stands in a JSON string; half of a surrogate pair as an escape, which the other half follows."""
    is_half = any("\ud800" <= letter <= "\udfff" for letter in text)
    return json.dumps(text, ensure_ascii=is_half)[1:-1]
