"""Collects what a parser finds in a text, as parts.

Owns: what becomes of white space around thoughts and calls, and the numbers of calls. Must not know: marks.

White space at the ends of a thought, and at the ends of the text where it borders on a thought or a call, belongs to
the marks there and is left out: it would make a text of line feeds of what is no text. All other text stays to the
letter, with the white space on both sides of a call that stands in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Literal

import attrs

from trioserve.abc import Part


class PartWriter:
    """Takes text, thoughts and calls in order; ``take`` gives the parts that they make."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        """``new_id``: makes the id of a call, another one each time."""
        self._new_id: Final = new_id
        self._parts: list[Part] = []
        self._space: list[str] = []
        """White space at the end of the text so far."""
        self._is_bare = False
        """White space that follows is left out: there was a mark, and no text since that it would part from it."""
        self._has_text = False
        self._after_call = False
        self._calls = 0

    def __repr__(self) -> str:
        return f"<PartWriter: {self._calls} calls, {len(self._parts)} parts>"

    def text(self, text: str) -> None:
        """Text of the answer."""
        self._write("text", text)

    def thought(self, text: str) -> None:
        """Text of a thought."""
        self._write("reasoning", text)

    def mark(self) -> None:
        """A mark of a thought was read."""
        self._space.clear()
        self._is_bare = True

    def begin_call(self, name: str) -> None:
        """A call begins; ``arguments`` is for this one from now on."""
        self._after_call = True
        if not self._has_text:
            self.mark()
        self._parts.append(Part("tool_call", "", self._calls, self._new_id(), name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call begun last."""
        if text:
            self._parts.append(Part("tool_call", text, self._calls - 1))

    def finish(self, kind: Literal["text", "reasoning"]) -> None:
        """Nothing follows: white space at the end belongs to the text, or thought, unless a call is right before it."""
        if self._space and not self._after_call:
            self._parts.append(Part(kind, "".join(self._space)))
            self._space.clear()

    def take(self) -> list[Part]:
        """The parts since the last time; the first of a call has its name and no arguments."""
        parts, self._parts = self._parts, []
        return join_parts(parts)

    def _write(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if self._is_bare:
            text = text.lstrip()
        stripped = text.rstrip()
        if stripped:
            self._is_bare = self._after_call = False
            self._has_text = self._has_text or kind == "text"
            self._parts.append(Part(kind, "".join([*self._space, stripped])))
            self._space.clear()
        if len(stripped) < len(text):
            self._space.append(text[len(stripped) :])


def join_parts(parts: Sequence[Part]) -> list[Part]:
    """The parts with neighbours that are one thing joined; the first of a call, which has an id, stays by itself."""
    runs = (list(run) for _, run in itertools.groupby(parts, lambda part: (part.kind, part.call, part.id)))
    return [attrs.evolve(run[0], text="".join(part.text for part in run)) for run in runs]
