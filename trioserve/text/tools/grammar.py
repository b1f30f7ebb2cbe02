"""Grammars that hold an answer to calls of certain tools, in llguidance's dialect of Lark.

Owns: what the formats' grammars have in common. Must not know: any format, how a grammar is enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from trioserve.text.reasoning import ReasoningFormat

ANY: Final = "(?s:.*)"
"""A regular expression for any text."""


@attrs.frozen
class CallRule:
    """A tool that a grammar lets a model call."""

    name: str
    schema: str
    """Of its arguments: a JSON schema as ``%json`` takes it."""
    param: str
    """What the request calls the schema."""


@attrs.frozen(kw_only=True)
class Spelling:
    """How the marks of a format are written in a grammar: as text, or as special tokens."""

    ids: Callable[[str], int | None]
    """Of a mark: the special token that stands for it, None if it is plain text."""

    def mark(self, mark: str) -> str:
        """An expression that matches the mark."""
        token_id = self.ids(mark)
        return quote(mark) if token_id is None else f"<[{token_id}]>"

    def up_to(self, mark: str, name: str) -> tuple[str, list[str]]:
        """An expression that matches any text and the mark that ends it, and the rules it needs; ``name``: a prefix."""
        if self.ids(mark) is None:
            return f"{name}_text", [f"{name}_text[lazy]: /{ANY}{escape(mark)}/"]
        return f"{name}_text {self.mark(mark)}", [f"{name}_text: /{ANY}/"]

    def without(self, marks: Sequence[str], name: str, *, start: str = "") -> tuple[str, list[str]]:
        """An expression that matches any text without these marks.

        ``start``: a regular expression for what it doesn't start with either.
        """
        not_these = [f"{ANY}{escape(mark)}{ANY}" for mark in marks if self.ids(mark) is None]
        if start:
            not_these.append(f"{start}{ANY}")
        terminal = name.upper()
        return terminal, [f"{terminal}: {' & '.join([f'/{ANY}/', *(f'~/{each}/' for each in not_these)])}"]


@attrs.frozen(kw_only=True)
class Demand:
    """What a grammar has to hold an answer to."""

    tools: Sequence[CallRule]
    """Those that may be called; at least one."""
    required: bool
    """There is at least one call, and nothing but calls."""
    parallel: bool
    """There may be more than one."""
    spelling: Spelling
    answer: str | None = None
    """What an answer without calls is, if it isn't any text: an expression."""


def call_objects(tools: Sequence[CallRule], arguments: str) -> list[str]:
    """Rules for a call as a JSON object, the first of them ``call``; ``arguments``: the name of that member."""
    rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
    for i, tool in enumerate(tools):
        before = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
        rules += [f"call_{i}: {quote(before)} arguments_{i} {quote('}')}", f"arguments_{i}: %json {tool.schema}"]
    return rules


def alternatives(demand: Demand, calls: str, free: tuple[str, list[str]]) -> list[str]:
    """Rules for ``answer``.

    Args:
        demand: whether there have to be calls, and what else an answer may be.
        calls: an expression for calls alone.
        free: an expression, and rules, for an answer in which calls may be.
    """
    if demand.required:
        return [f"answer: {calls}"]
    if demand.answer is not None:
        return [f"answer: {calls} | plain", f"plain: {demand.answer}"]
    expression, rules = free
    return [f"answer: {expression}", *rules]


def whole_grammar(
    rules: Sequence[str], reasoning: ReasoningFormat | None, spelling: Spelling, *, starts_inside: bool
) -> str:
    """The grammar of an answer, in front of which there may be a thought, from rules for ``answer``."""
    if reasoning is None:
        return "\n".join(["start: answer", *rules, ""])
    thought, thought_rules = spelling.up_to(reasoning.close, "thought")
    opened = thought if starts_inside else f"({spelling.mark(reasoning.open)} {thought} gap)?"
    gap = "gap: /[ \\n]{0,4}/"
    start = f"start: {opened} gap answer" if starts_inside else f"start: {opened} answer"
    return "\n".join([start, gap, *thought_rules, *rules, ""])


def quote(text: str) -> str:
    """The text as a grammar writes it."""
    return json.dumps(text)


def escape(text: str) -> str:
    """The text as a regular expression of a grammar, which stands between slashes, writes it."""
    return "".join(letter if letter.isalnum() or letter == "_" else f"\\x{{{ord(letter):x}}}" for letter in text)
