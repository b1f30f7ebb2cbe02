"""Counts the work of a template while it runs.

Owns: Meter, what each operation costs, and how the counting gets into a template. Must not know: which operations a
template may use.

jinja2's sandbox keeps a template from Python's internals, but not from ``{% for a in range(99999) %}{% for b in
range(99999) %}``. So the syntax tree of a template is changed before it is compiled: each pass through a loop or a
macro, and each value that an operation reads, is counted first, by filters whose names no template can write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context, LoopContext

METER: Final = "#meter"
"""The variable of a rendering that holds its Meter."""
MAX_NESTING: Final = 64
"""Levels of lists and mappings in a value that an operation reads as a whole."""
_COUNT: Final = "#count"
_READ: Final = "#read"
_READ_ALL: Final = "#read-all"

# Filters that don't look into the values of a container, or count for themselves what they read.
# fmt: off
_OPAQUE_FILTERS: Final = frozenset({
    "count", "d", "default", "first", "indent", "items", "join", "last", "length", "list", "replace", "reverse",
    "safe", "tojson",
})
# fmt: on


class WorkError(TemplateRuntimeError):
    """A template takes more steps than it may."""


class Meter:
    """The steps that one rendering may still take; one is some 100 nanoseconds of work.

    All methods raise WorkError when none are left.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __repr__(self) -> str:
        return f"<Meter: {self._steps} steps left>"

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise WorkError("the template takes too many steps")

    def text(self, length: int) -> None:
        """For characters read or made."""
        self.spend(1 + (length >> 6))

    def read(self, value: object) -> None:
        """For a value that is read, but not what it contains."""
        if isinstance(value, str):
            self.text(len(value))
        else:
            self.spend(1 + (len(value) >> 3) if isinstance(value, Collection) else 1)

    def read_all(self, value: object) -> object:
        """For a value that is read with all it contains, and again wherever it contains something twice.

        Returns the value, an iterator so that each item is read when it comes.
        """
        if isinstance(value, str):  # nearly always
            self.text(len(value))
            return value
        if isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return self._counted(value)
        level = [value]
        for _ in range(MAX_NESTING):
            below: list[object] = []
            for inner in level:
                if isinstance(inner, str):
                    self.text(len(inner))
                elif isinstance(inner, Collection):
                    self.spend(1 + len(inner))
                    below += inner
                    if isinstance(inner, Mapping):
                        below += inner.values()
                else:
                    self.spend(1)
            if not below:
                return value
            level = below
        raise WorkError(f"the template reads a value that is nested more than {MAX_NESTING} levels deep")

    def _counted(self, items: Iterator[object]) -> Iterator[object]:
        for item in items:
            self.read_all(item)
            yield item


def meter_of(context: Context) -> Meter:
    """The meter of the rendering that ``context`` belongs to."""
    meter = context.parent[METER]
    assert isinstance(meter, Meter)
    return meter


@pass_context
def _count(context: Context, steps: object) -> None:
    # a template can get here, by map("#count"), but not gain steps
    meter_of(context).spend(max(1, steps) if isinstance(steps, int) else 1)


@pass_context
def _read(context: Context, value: object) -> object:
    meter_of(context).read(value)
    return value


@pass_context
def _read_all(context: Context, value: object) -> object:
    return meter_of(context).read_all(value)


COUNTING_FILTERS: Final = {_COUNT: _count, _READ: _read, _READ_ALL: _read_all}
"""What the environment of a counted template must have among its filters."""


def count_work(tree: nodes.Template) -> None:
    """Change a template so that its work is counted. It must be rendered with a Meter as METER."""
    for node in list(tree.find_all(nodes.Node)):
        match node:
            case nodes.For():
                _count_loop(node)
            case nodes.Macro() | nodes.CallBlock() | nodes.Block():
                node.body.insert(0, nodes.ExprStmt(_count_of(node.body), lineno=node.lineno))
            case nodes.Output() | nodes.Concat():
                node.nodes = [_read_by(_READ_ALL, child) for child in node.nodes]
            case nodes.Filter() | nodes.Test():
                if node.node is not None:  # else it is for the body of a block, which is counted itself
                    opaque = isinstance(node, nodes.Filter) and node.name in _OPAQUE_FILTERS
                    node.node = _read_by(_READ if opaque else _READ_ALL, node.node)
                node.args = [_read_by(_READ_ALL, argument) for argument in node.args]
                for pair in node.kwargs:
                    pair.value = _read_by(_READ_ALL, pair.value)
            case nodes.Compare():
                node.expr = _read_by(_READ_ALL, node.expr)
                for operand in node.ops:
                    operand.expr = _read_by(_READ_ALL, operand.expr)
            case nodes.Getitem(arg=nodes.Slice()):
                node.node = _read_by(_READ, node.node)
            case nodes.Getitem():
                node.arg = _read_by(_READ_ALL, node.arg)
            case nodes.Pair():
                node.key = _read_by(_READ_ALL, node.key)


def _count_loop(node: nodes.For) -> None:
    node.body.insert(0, nodes.ExprStmt(_count_of(node.body), lineno=node.lineno))
    if node.test is not None:
        # counting gives None, so "or" gives what the test gives
        node.test = nodes.Or(_count_of([node.test]), node.test, lineno=node.lineno)


def _read_by(name: str, node: nodes.Node) -> nodes.Expr:
    if isinstance(node, nodes.Const) and len(str(node.value)) < 64:
        return node  # not worth its count, and common: message["role"]
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _count_of(body: Sequence[nodes.Node]) -> nodes.Expr:
    """Counts a part of a template, in proportion to its size, which bounds the work of one pass through it."""
    size = sum(1 for node in body for _ in node.find_all(nodes.Node))
    lineno = body[0].lineno if body else 1
    return nodes.Filter(nodes.Const(1 + (size >> 1)), _COUNT, [], [], None, None, lineno=lineno)
