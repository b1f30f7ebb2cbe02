"""What one choice writes, told apart: text, thoughts, calls of tools.

Owns: ChoiceParser, an abc.OutputParser, and OutputFormat, which makes one for each choice.
Must not know: the marks of any format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import attrs

from trioserve.abc import OutputParser, Part, Tokenizer
from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps
from trioserve.text.reasoning import ReasoningFormat
from trioserve.text.tools.format import ToolFormat

_ANYTHING: Final = re.compile(r"(?s:.*)")


@attrs.frozen(kw_only=True)
class OutputFormat:
    """How to read what the choices of a request write."""

    reasoning: ReasoningFormat | None = None
    """None: there are no thoughts."""
    tools: ToolFormat | None = None
    """None: nothing is a call."""
    starts_inside: bool = False
    """The prompt ends with the mark that opens a thought."""
    new_id: Callable[[], str] = attrs.field(repr=False)
    """Makes a name that no other call has: 32 letters and digits."""

    def parser(self) -> OutputParser:
        """The parser of one choice."""
        return ChoiceParser(self)

    @property
    def marks(self) -> frozenset[str]:
        """The texts that mean something to the parser."""
        found = frozenset[str]()
        if self.reasoning is not None:
            found |= {self.reasoning.open, self.reasoning.close}
        if self.tools is not None:
            found |= self.tools.marks
        return found

    def spelled(self, tokenizer: Tokenizer) -> Mapping[int, bytes]:
        """The special tokens that are marks, and the bytes that the parser must see for them."""
        found = {mark: special_id(mark, tokenizer) for mark in self.marks}
        return {token_id: mark.encode() for mark, token_id in found.items() if token_id is not None}


def special_id(mark: str, tokenizer: Tokenizer) -> int | None:
    """The special token that is written ``mark``, which has no bytes in a text; None if there is none."""
    for token_id in tokenizer.encode(mark, add_special=False):
        if (
            tokenizer.token_bytes(token_id) == b""
            and tokenizer.token_bytes(token_id, skip_special=False) == mark.encode()
        ):
            return token_id
    return None


class ChoiceParser:
    """Reads the text of one choice: a thought, if it starts with one, then text and calls.

    Nothing is lost: what looks like a call and is none is text, to the letter. White space beside thoughts and calls
    is left out (see PartWriter). Time is proportional to the characters fed, whatever they are.
    """

    def __init__(self, output: OutputFormat) -> None:
        self._output: Final = output
        self._reader: Final = Reader()
        make_id = output.new_id if output.tools is None else output.tools.id_maker(output.new_id)
        self._writer: Final = PartWriter(make_id)
        self._inside = output.reasoning is not None and output.starts_inside
        self._steps: Final = self._run()

    def __repr__(self) -> str:
        return f"<ChoiceParser: {self._reader!r}, {self._writer!r}>"

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token is part of a thought; the mark that ends one is, the mark that begins it isn't."""
        return self._inside

    def feed(self, text: str) -> list[Part]:
        self._reader.feed(text)
        next(self._steps)
        return self._writer.take()

    def end(self) -> list[Part]:
        self._reader.end()
        for _ in self._steps:
            raise AssertionError("a parser waits for text after the end")
        return self._writer.take()

    def _run(self) -> Steps[None]:
        yield from self._read()
        # only here does nothing wait: a format reads to the end
        kind: Literal["text", "reasoning"] = "reasoning" if self._inside else "text"
        self._writer.finish(kind)

    def _read(self) -> Steps[None]:
        reasoning, tools = self._output.reasoning, self._output.tools
        if reasoning is not None:
            self._inside = yield from reasoning.enter(self._reader, self._writer, inside=self._inside)
            if self._inside:
                self._inside = not (yield from reasoning.think(self._reader, self._writer))
        if tools is not None and not self._inside:
            yield from tools.read(self._reader, self._writer)
        elif not self._inside:
            while (yield from self._reader.peek()):
                self._writer.text(self._reader.take_here(_ANYTHING))
