"""What a format of tool calls has to say.

Owns: the ToolFormat protocol. Must not know: any format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trioserve.text.parts import PartWriter
from trioserve.text.reader import Reader, Steps
from trioserve.text.tools.grammar import Demand


class ToolFormat(Protocol):
    """How the models of a family call tools. Immutable, and shared by all choices."""

    @property
    def name(self) -> str:
        """By which an option selects it."""
        ...

    @property
    def marks(self) -> frozenset[str]:
        """Texts that mean something in it, and that may be special tokens of a vocabulary."""
        ...

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        """Makes the ids of calls, as the templates of these models want them, from unique letters and digits."""
        ...

    def read(self, reader: Reader, writer: PartWriter) -> Steps[None]:
        """Read all of the answer that follows the thought: text and calls."""
        ...

    def rules(self, demand: Demand) -> list[str]:
        """The rules of a grammar, one of which is ``answer``, for what ``demand`` says.

        Raises:
            ParamError: a tool's arguments can't be held to its schema in this format.
        """
        ...


def openai_ids(new_id: Callable[[], str]) -> Callable[[], str]:
    """Ids that look like OpenAI's."""
    return lambda: f"call_{new_id()[:24]}"
