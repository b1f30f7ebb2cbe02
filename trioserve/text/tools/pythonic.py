"""A Python list of calls, [f(x=1), g()]: Llama 3.2 and 4, and some others.

Owns: PythonicFormat. Must not know: who uses it.

Without <|python_start|> the list must be the first thing in the answer. Arguments are written as JSON, as they come.
What is no call with keyword arguments is text; so is what follows arguments that can't be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps
from trioserve.text.tools.format import openai_ids
from trioserve.text.tools.grammar import Demand, alternatives, quote
from trioserve.text.tools.keywords import keyword_rules
from trioserve.text.tools.literals import copy_literal

START: Final = "<|python_start|>"
END: Final = "<|python_end|>"
_TEXT: Final = re.compile(r"[^<]*")
_NAME: Final = re.compile(r"[\w.-]*")
_KEYWORD: Final = re.compile(r"\w*")


class PythonicFormat:
    """See the module."""

    name: Final = "pythonic"
    marks: Final = frozenset({START, END})

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        return openai_ids(new_id)

    def read(self, reader: Reader, writer: PartWriter) -> Steps[None]:
        reader.record()
        yield from reader.skip_space()
        yield from reader.accept(START)
        yield from _read_list(reader, writer)
        while letter := (yield from reader.peek()):
            if letter != "<":
                writer.text(reader.take_here(_TEXT))
                continue
            reader.record()
            if (yield from reader.accept(START)):
                yield from _read_list(reader, writer)
            else:
                reader.take()
                writer.text(reader.recorded())

    def rules(self, demand: Demand) -> list[str]:
        more = f" ({quote(', ')} call)*" if demand.parallel else ""
        calls = f"{quote('[')} call{more} {quote(']')}"
        other, other_rules = demand.spelling.without([START], "other", start=r"\s*\[")
        rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(demand.tools)))}"]
        for i, tool in enumerate(demand.tools):
            rules += keyword_rules(tool, i)
        return [*alternatives(demand, calls, (f"{calls} | {other}", other_rules)), *rules]


def _read_list(reader: Reader, writer: PartWriter) -> Steps[None]:
    """Read the list here, if there is one; what stands before it is being recorded."""
    yield from reader.skip_space()
    if (yield from reader.accept("[")):
        while (yield from _read_call(reader, writer)):
            yield from reader.skip_space()
            if (yield from reader.accept("]")):
                yield from reader.skip_space()
                yield from reader.accept(END)
                reader.recorded()
                return
            if not (yield from reader.accept(",")):
                break
            reader.recorded()
            reader.record()
    writer.text(reader.recorded())


def _read_call(reader: Reader, writer: PartWriter) -> Steps[bool]:
    """Read one call. Whether it is whole; if it is not, what is recorded is text."""
    yield from reader.skip_space()
    name = yield from reader.take_all(_NAME)
    yield from reader.skip_space()
    if not name or not (yield from reader.accept("(")):
        return False
    begun = False
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept(")")):
            if not begun:
                writer.begin_call(name)
            writer.arguments("}" if begun else "{}")
            _forget(reader)
            return True
        keyword = yield from reader.take_all(_KEYWORD)
        yield from reader.skip_space()
        if not keyword or not (yield from reader.accept("=")) or (yield from reader.skip_space()) == "=":
            return False
        if not begun:
            writer.begin_call(name)
        writer.arguments(f'{", " if begun else "{"}"{keyword}": ')
        begun = True
        _forget(reader)
        if not (yield from copy_literal(reader, writer.arguments)):
            return False
        _forget(reader)
        yield from reader.skip_space()
        if not (yield from reader.accept(",")) and (yield from reader.peek()) != ")":
            return False


def _forget(reader: Reader) -> None:
    reader.recorded()
    reader.record()
