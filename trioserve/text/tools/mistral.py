"""[TOOL_CALLS] and a JSON array of calls, or [TOOL_CALLS], a name, [ARGS] and a JSON object for each call: Mistral.

Owns: MistralFormat. Must not know: who uses it.

The first form is that of the tokenizers up to version 7, the second of those from version 11 on, some of which write
[CALL_ID] and an id of their own between name and arguments. Both are read; which of them a model is held to depends on
its version. Ids are nine letters and digits, as the chat templates of these models want them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import attrs

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps
from trioserve.text.tools.calls import copy_value, read_call
from trioserve.text.tools.grammar import Demand, alternatives, call_objects, quote

CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGUMENTS: Final = "[ARGS]"
_ID_LENGTH: Final = 9
_TEXT: Final = re.compile(r"[^\[]*")
_NAME: Final = re.compile(r"[\w.-]*")


@attrs.frozen
class MistralFormat:
    """See the module."""

    name: str
    has_array: bool
    """The model writes the first form."""
    marks: frozenset[str] = frozenset({CALLS, CALL_ID, ARGUMENTS})

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        return lambda: new_id()[:_ID_LENGTH]

    def read(self, reader: Reader, writer: PartWriter) -> Steps[None]:
        while letter := (yield from reader.peek()):
            if letter != "[":
                writer.text(reader.take_here(_TEXT))
                continue
            reader.record()
            if not (yield from reader.accept(CALLS)):
                reader.take()
                writer.text(reader.recorded())
            elif (yield from reader.skip_space()) == "[":
                yield from _read_array(reader, writer)
            elif not (yield from _read_named(reader, writer)):
                writer.text(reader.recorded())

    def rules(self, demand: Demand) -> list[str]:
        mark = demand.spelling.mark(CALLS)
        if self.has_array:
            more = f" ({quote(', ')} call)*" if demand.parallel else ""
            rest = f"{quote(' [')} call{more} {quote(']')}"
            rules = call_objects(demand.tools, "arguments")
        else:
            rest = f"call ({mark} call)*" if demand.parallel else "call"
            rules = _named_calls(demand)
        before, before_rules = demand.spelling.up_to(CALLS, "before")
        other, other_rules = demand.spelling.without([CALLS], "other")
        free = f"{before} rest | {other}", [*before_rules, *other_rules]
        return [*alternatives(demand, f"{mark} rest", free), f"rest: {rest}", *rules]


def _named_calls(demand: Demand) -> list[str]:
    arguments = demand.spelling.mark(ARGUMENTS)
    rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(demand.tools)))}"]
    for i, tool in enumerate(demand.tools):
        rules += [
            f"call_{i}: {quote(tool.name)} {arguments} arguments_{i}",
            f"arguments_{i}: %json {tool.schema}",
        ]
    return rules


def _read_array(reader: Reader, writer: PartWriter) -> Steps[None]:
    reader.take()
    while True:
        yield from reader.skip_space()
        if not (yield from read_call(reader, writer)):
            break
        yield from reader.skip_space()
        if (yield from reader.accept("]")):
            reader.recorded()
            return
        if not (yield from reader.accept(",")):
            break
    writer.text(reader.recorded())


def _read_named(reader: Reader, writer: PartWriter) -> Steps[bool]:
    """Read one call of the newer form; False if it is none."""
    name = yield from reader.take_all(_NAME)
    if not name:
        return False
    if (yield from reader.accept(CALL_ID)):
        yield from reader.take_all(_NAME)
    yield from reader.accept(ARGUMENTS)
    if (yield from reader.skip_space()) != "{":
        return False
    reader.recorded()
    writer.begin_call(name)
    yield from copy_value(reader, writer.arguments)
    return True
