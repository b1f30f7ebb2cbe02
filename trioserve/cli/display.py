"""How growing choices look: one as plain text, several side by side on a terminal, and whole ones in a pipe.

Owns: the layout. Must not know: how the choices are made.

A display is a context manager that is fed events. Whatever ends it, what there is of every choice has been written.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self

import attrs
import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trioserve.cli.harmless import harmless_text
from trioserve.events import ChoiceFinished, Event

# The narrowest panel has room for the longest note, that of a choice with an engine's own seed.
PANEL_WIDTH: Final = 40
# Two borders, and two lines of text.
PANEL_HEIGHT: Final = 4
PANEL_FRAME_WIDTH: Final = 4
PANEL_FRAME_HEIGHT: Final = 2
FRAMES_PER_SECOND: Final = 10


class Display(AbstractContextManager["Display"], Protocol):
    """Shows the choices of one prompt."""

    def feed(self, event: Event) -> None: ...


def choose_display(n: int) -> Display:
    """The display for ``n`` choices on what standard output is."""
    console = Console(highlight=False)
    if n == 1:
        return SingleText(console)
    if console.is_terminal and not console.is_dumb_terminal:
        return Panels(console, n)
    return WholeTexts(n)


class SingleText:
    """One choice: its text, as it comes. On a terminal a note follows it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""
        self._note: str | None = None

    def __enter__(self) -> Self:
        return self

    def feed(self, event: Event) -> None:
        if isinstance(event, ChoiceFinished):
            self._note = _note(event)
        elif event.text:
            self._last = event.text[-1]
            click.echo(harmless_text(event.text) if self._console.is_terminal else event.text, nl=False)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(exc, OSError):
            return  # it can't be written
        if self._last != "\n":
            click.echo()
        if self._note is not None and self._console.is_terminal:
            self._console.print(Text(f"[{self._note}]", style="dim"))


class WholeTexts:
    """Several choices for a pipe or a file: each under a heading, when all of them have ended."""

    def __init__(self, n: int) -> None:
        self._choices = [_Choice() for _ in range(n)]

    def __enter__(self) -> Self:
        return self

    def feed(self, event: Event) -> None:
        self._choices[event.index].feed(event)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        parts = [f"[choice {index}: {choice.note}]\n{choice.text}" for index, choice in enumerate(self._choices)]
        click.echo("\n\n".join(parts))


class Panels:
    """Several choices on a terminal: as many beside each other as fit.

    While they grow the panels share the screen, and each shows the end of its text. At the end, whatever it is, the
    whole texts take their place, and may scroll.
    """

    def __init__(self, console: Console, n: int) -> None:
        self._console = console
        self._choices = [_Choice() for _ in range(n)]
        # draws in a thread of its own
        self._live = Live(
            self, console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def feed(self, event: Event) -> None:
        self._choices[event.index].feed(event)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()
        grid = _Grid.fit(len(self._choices), self._console.width, math.inf)
        self._console.print(self._draw(grid))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # the last line stays free, or the terminal would scroll
        grid = _Grid.fit(len(self._choices), options.max_width, options.size.height - 1)
        yield self._draw(grid)
        if grid.hidden:
            yield Text(f"and {grid.hidden} more", style="dim")

    def _draw(self, grid: _Grid) -> RenderableType:
        table = Table.grid()
        for start in range(0, grid.shown, grid.columns):
            row = self._choices[start : min(start + grid.columns, grid.shown)]
            table.add_row(*(self._panel(start + j, choice, grid) for j, choice in enumerate(row)))
        return table

    def _panel(self, index: int, choice: _Choice, grid: _Grid) -> Panel:
        lines = choice.lines(self._console, grid.panel_width - PANEL_FRAME_WIDTH)
        if len(lines) > grid.panel_height - PANEL_FRAME_HEIGHT:
            lines = lines[-int(grid.panel_height - PANEL_FRAME_HEIGHT) :]
        return Panel(
            Text("\n".join(lines), no_wrap=True, end=""),
            title=f"choice {index}",
            title_align="left",
            subtitle=choice.note,
            subtitle_align="left",
            width=grid.panel_width,
            border_style="none" if choice.note is None else "dim",
        )


@attrs.frozen
class _Grid:
    """How many panels of which size."""

    columns: int
    shown: int
    hidden: int
    panel_width: int
    panel_height: float
    """At most; infinite: as high as the text."""

    @classmethod
    def fit(cls, n: int, width: int, height: float) -> _Grid:
        """The grid of ``n`` panels for a width in cells and a height in lines."""
        columns = max(1, min(n, width // PANEL_WIDTH))
        rows = math.ceil(n / columns)
        # the rows are evenly filled: 8 panels where 5 fit are two rows of 4
        columns = math.ceil(n / rows)
        shown_rows = rows if rows * PANEL_HEIGHT <= height else max(1, int(height - 1) // PANEL_HEIGHT)
        shown = min(n, shown_rows * columns)
        left = height if shown == n else height - 1
        panel_height = left if math.isinf(left) else left // shown_rows
        return cls(columns, shown, n - shown, width // columns, panel_height)


class _Choice:
    """The text of one choice, and its lines, which are broken anew only where the text has grown."""

    def __init__(self) -> None:
        self.text = ""
        self.note: str | None = None
        """How it ended; None while it runs."""
        self._width = 0
        self._broken = 0
        self._lines: list[str] = []

    def feed(self, event: Event) -> None:
        if isinstance(event, ChoiceFinished):
            self.note = _note(event)
        else:
            self.text += event.text

    def lines(self, console: Console, width: int) -> list[str]:
        """The text in lines of ``width`` cells. All but the last are final: more text can't change them."""
        if width != self._width:
            self._width, self._broken, self._lines = width, 0, []
        text = self.text
        if len(text) > self._broken:
            # the last line as it is, with its own spaces: breaking it again with what has come is as if it were whole
            open_line = self._lines.pop() if self._lines else ""
            new = Text(open_line + harmless_text(text[self._broken :]))
            self._lines += [line.plain for line in new.wrap(console, width, overflow="fold")]
            self._broken = len(text)
        return self._lines


def _note(event: ChoiceFinished) -> str:
    tokens = event.usage.completion_tokens
    return f"{event.reason} · {tokens} token{'s' if tokens != 1 else ''} · seed {event.seed}"
