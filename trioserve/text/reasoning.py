"""What a model thinks before it answers, and the marks around it.

Owns: the reasoning formats, and which one a model has. Must not know: tools, tokens.

A thought is the first thing in an answer, or there is none: a mark further on is text, as somebody may be writing
about it. Some chat templates end the prompt with the opening mark; then the answer starts inside the thought.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps


@attrs.frozen
class ReasoningFormat:
    """The marks around a thought."""

    name: str
    open: str
    close: str

    def opened_by(self, prompt_end: str) -> bool:
        """Whether an answer starts inside a thought, after a prompt that ends with this text."""
        return prompt_end.rstrip().endswith(self.open)

    def enter(self, reader: Reader, writer: PartWriter, *, inside: bool) -> Steps[bool]:
        """Read the opening mark, if it is what comes first. Whether what follows is a thought.

        ``inside``: it is, whether the mark is repeated or not.
        """
        if inside:
            writer.mark()
        reader.record()
        yield from reader.skip_space()
        if (yield from reader.accept(self.open)):
            reader.recorded()
            writer.mark()
            return True
        space = reader.recorded()
        (writer.thought if inside else writer.text)(space)
        return inside

    def think(self, reader: Reader, writer: PartWriter) -> Steps[bool]:
        """Read a thought and its closing mark; False if the text ended first."""
        plain = re.compile(f"[^{re.escape(self.close[0])}]*")
        while (yield from reader.peek()):
            writer.thought(reader.take_here(plain))
            if (yield from reader.accept(self.close)):
                writer.mark()
                return True
            if (yield from reader.peek()) == self.close[0]:
                writer.thought(reader.take())
        return False


THINK: Final = ReasoningFormat("think", "<think>", "</think>")
"""DeepSeek-R1, QwQ, Qwen 3, SmolLM3 and many others."""
MISTRAL: Final = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
"""Magistral."""
REASONING_FORMATS: Final = {each.name: each for each in (THINK, MISTRAL)}


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The format of a model, by the marks that its chat template writes or looks for; None: it doesn't think."""
    for each in REASONING_FORMATS.values():
        if each.open in template or each.close in template:
            return each
    return None
