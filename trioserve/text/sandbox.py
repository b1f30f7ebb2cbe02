"""The jinja2 environment of chat templates.

Owns: what a template may use. Must not know: messages, prompts.

Chat templates come with a model's files and run on text that clients send, so they get no more than they need, and
each rendering is counted (see metering). What makes much from little, which counting would notice too late, is
checked before it is done (``*``, ``replace``, ``join``, ``indent``) or not offered (``%`` on text, ``center``, ...).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sized
from typing import Final

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, do_join, do_replace, do_title
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from trioserve.text.metering import COUNTING_FILTERS, MAX_NESTING, Meter, WorkError, count_work, meter_of

_UNBOUNDED_FILTERS: Final = (
    "batch center filesizeformat format pprint random round slice striptags sum urlencode urlize wordcount wordwrap "
    "xmlattr"
)
"""Filters whose work or result is out of proportion to what they are given, or random."""
# fmt: off
_TEXT_METHODS: Final = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join",
    "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
})
# fmt: on
_LIST_METHODS: Final = frozenset({"count", "index"})
_MAPPING_METHODS: Final = frozenset({"get", "items", "keys", "values"})
_MAX_BITS: Final = 1024
"""Of whole numbers."""


@pass_context
def _replace(context: Context, value: object, old: object, new: object, count: int | None = None) -> str:
    meter = meter_of(context)
    meter.read_all(value)
    text, before, after = str(value), str(old), str(new)
    found = text.count(before)
    if count is not None and count >= 0:
        found = min(found, count)
    meter.text(len(text) + found * len(after))
    return do_replace(context.eval_ctx, text, before, after, count)


@pass_context
def _join(context: Context, value: Iterable[object], d: object = "", attribute: str | int | None = None) -> str:
    meter = meter_of(context)
    items = list(value)
    separator = str(d)
    meter.read_all(items)
    meter.text(len(items) * len(separator))
    return str(do_join(context.eval_ctx, items, separator, attribute))


@pass_context
def _indent(context: Context, s: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    meter = meter_of(context)
    meter.read_all(s)
    text = str(s)
    meter.text(len(text) + (1 + len(text.splitlines())) * _width(width))
    return do_indent(text, width, first, blank)


@pass_context
def _title(context: Context, s: object) -> str:
    meter = meter_of(context)
    meter.read_all(s)
    text = str(s)
    meter.spend(len(text))  # it is in Python
    return do_title(text)


@pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does it: letters stay as they are, and nothing is escaped for HTML."""
    meter = meter_of(context)
    meter.read_all(value)
    meter.text(_width(indent) * MAX_NESTING)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts = []
    for part in encoder.iterencode(value):
        meter.spend(8)  # it comes through a generator for each level
        meter.text(len(part))
        parts.append(part)
    return "".join(parts)


def _width(indent: int | str | None) -> int:
    return len(indent) if isinstance(indent, str) else max(0, indent or 0)


class _QuietNamespace(Namespace):
    """jinja2's namespace writes all it holds when it is printed, unread by any meter."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Generation(Extension):
    """``{% generation %}``, with which templates mark for training what an assistant says: here, just its body."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """What transformers offers chat templates, less what can't be bounded.

    Templates are made by ``counted_template`` and rendered with a Meter among their variables, as METER.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        for name in _UNBOUNDED_FILTERS.split():
            self.filters.pop(name, None)
        self.filters |= {"replace": _replace, "join": _join, "indent": _indent, "title": _title, "tojson": _tojson}
        self.filters |= COUNTING_FILTERS
        del self.globals["lipsum"]
        self.globals["namespace"] = _QuietNamespace

    def counted_template(self, source: str) -> Template:
        """Compile a template.

        Raises:
            jinja2.exceptions.TemplateSyntaxError: it is wrong. Other exceptions are possible: RecursionError.
        """
        tree = self.parse(source)
        count_work(tree)
        tree.set_environment(self)
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def variables(self, source: str) -> frozenset[str]:
        """The names that a template reads and that are not its own, globals left out. Raises what compiling raises."""
        return frozenset(find_undeclared_variables(self.parse(source))) - self.globals.keys()

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        if isinstance(obj, (list, tuple)):
            return attr in _LIST_METHODS
        if isinstance(obj, Mapping):
            return attr in _MAPPING_METHODS
        if isinstance(obj, (int, float)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> None:
        """str.format is no safe attribute here, but jinja2 asks this first."""

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        # not what jinja2 does: it gives a value that prints as nothing
        raise SecurityError(f"a template may not use {attribute!r} of a {type(obj).__name__}")

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        meter = meter_of(context)
        if isinstance(obj, (Macro, LoopContext)):
            meter.spend(8)  # what it does with its arguments is counted where it does it
        else:
            args = tuple(map(meter.read_all, args))
            kwargs = {name: meter.read_all(value) for name, value in kwargs.items()}
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, list, tuple, Mapping)):
            meter.read(owner)
            name = getattr(obj, "__name__", "")
            if isinstance(owner, str) and name == "join":
                obj, args = _join, (*args, owner)
            elif isinstance(owner, str) and name == "replace":
                obj, args = _replace, (owner, *args)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        meter = meter_of(context)
        meter.spend(1)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise WorkError("the template reckons with too large numbers")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("a template may not format text with %")
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            self._check_made(meter, left, len(left) + len(right))
        elif operator == "*":
            count, items = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(count, int) and isinstance(items, Sized):
                self._check_made(meter, items, len(items) * max(0, count))
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def _check_made(meter: Meter, like: object, length: int) -> None:
        if isinstance(like, str):
            meter.text(length)
        else:
            meter.spend(length >> 3)
