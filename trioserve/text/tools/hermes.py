"""<tool_call>, a JSON object, </tool_call>: Hermes 2 Pro and 3, Qwen 2.5 and 3, and many others.

Owns: HermesFormat. Must not know: who uses it.

Several calls are several such blocks, or several objects in one. A block without a closing mark counts, and one brace
more or less behind the arguments does no harm.
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

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_TEXT: Final = re.compile(r"[^<]*")
_LOOSE_ENDS: Final = re.compile(r"[},\s]*")
_END: Final = re.compile(rf"[}},\s]*{CLOSE}|\s*")


class HermesFormat:
    """See the module."""

    name: Final = "hermes"
    marks: Final = frozenset({OPEN, CLOSE})

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        return openai_ids(new_id)

    def read(self, reader: Reader, writer: PartWriter) -> Steps[None]:
        while letter := (yield from reader.peek()):
            if letter != "<":
                writer.text(reader.take_here(_TEXT))
                continue
            reader.record()
            if (yield from reader.accept(OPEN)):
                yield from _read_block(reader, writer)
            else:
                reader.take()
                writer.text(reader.recorded())

    def rules(self, demand: Demand) -> list[str]:
        opening, spelling = demand.spelling.mark(OPEN), demand.spelling
        rest = f"{quote(chr(10))} call {quote(chr(10))} {spelling.mark(CLOSE)}"
        more = f" ({quote(chr(10))} {opening} rest)*" if demand.parallel else ""
        before, before_rules = spelling.up_to(OPEN, "before")
        after, after_rules = spelling.without([OPEN], "after")
        repeat = "*" if demand.parallel else "?"
        free = f"({before} rest){repeat} {after}", [*before_rules, *after_rules]
        return [
            *alternatives(demand, f"{opening} rest{more}", free),
            f"rest: {rest}",
            *call_objects(demand.tools, "arguments"),
        ]


def _read_block(reader: Reader, writer: PartWriter) -> Steps[None]:
    """Read the calls after an opening mark, which is being recorded."""
    while (yield from reader.skip_space()) == "{":
        if not (yield from read_call(reader, writer)):
            break
    yield from reader.take_all(_LOOSE_ENDS)
    yield from reader.accept(CLOSE)
    rest = reader.recorded()
    if _END.fullmatch(rest) is None:
        # no call at all, or more than calls
        writer.text(rest)
