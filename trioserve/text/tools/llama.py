"""JSON objects alone, with or without <|python_tag|>: Llama 3.1 and 3.2.

Owns: LlamaFormat. Must not know: who uses it.

A call has both a name and parameters: an answer that starts with another object is text. Without the mark it must be
the first thing in the answer; several calls are separated by semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps
from trioserve.text.tools.calls import read_call
from trioserve.text.tools.format import openai_ids
from trioserve.text.tools.grammar import Demand, alternatives, call_objects, quote

TAG: Final = "<|python_tag|>"
_TEXT: Final = re.compile(r"[^<]*")


class LlamaFormat:
    """See the module."""

    name: Final = "llama3_json"
    marks: Final = frozenset({TAG})

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        return openai_ids(new_id)

    def read(self, reader: Reader, writer: PartWriter) -> Steps[None]:
        reader.record()
        yield from reader.skip_space()
        yield from reader.accept(TAG)
        yield from _read_calls(reader, writer)
        while letter := (yield from reader.peek()):
            if letter != "<":
                writer.text(reader.take_here(_TEXT))
                continue
            reader.record()
            if (yield from reader.accept(TAG)):
                yield from _read_calls(reader, writer)
            else:
                reader.take()
                writer.text(reader.recorded())

    def rules(self, demand: Demand) -> list[str]:
        more = f" ({quote('; ')} call)*" if demand.parallel else ""
        text, text_rules = demand.spelling.without([TAG], "other", start=r"\s*\{")
        # with the mark or without
        calls = f"({demand.spelling.mark(TAG)})? call{more}"
        return [
            *alternatives(demand, calls, (f"{calls} | {text}", text_rules)),
            *call_objects(demand.tools, "parameters"),
        ]


def _read_calls(reader: Reader, writer: PartWriter) -> Steps[None]:
    """Read the calls here, if there are any; what stands before them is being recorded."""
    while (yield from reader.skip_space()) == "{":
        if not (yield from read_call(reader, writer, needs_arguments=True)):
            break
        yield from reader.skip_space()
        if not (yield from reader.accept(";")):
            break
    rest = reader.recorded()
    if rest.strip() != ";":
        writer.text(rest)
