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
from trioserve.events import ChoiceFinished, Event, ReasoningDelta, TextDelta

# The narrowest panel has room for the longest note, that of a choice with an engine's own seed.
PANEL_WIDTH: Final = 40
# Two borders, and two lines of text.
PANEL_HEIGHT: Final = 4
FRAME_WIDTH: Final = 4
FRAME_HEIGHT: Final = 2
FRAMES_PER_SECOND: Final = 10
# DECAWM, which all terminals know
NO_LINE_WRAP: Final = "\x1b[?7l"
LINE_WRAP: Final = "\x1b[?7h"


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
    return WholeTexts(console, n)


class SingleText:
    """One choice: its text, as it comes. On a terminal a note follows it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""
        self._thought = ""
        """The last letter of a thought that no text has followed yet."""
        self._end: ChoiceFinished | None = None

    def __enter__(self) -> Self:
        return self

    def feed(self, event: Event) -> None:
        if isinstance(event, ChoiceFinished):
            self._end = event
        elif isinstance(event, ReasoningDelta):
            # into a pipe goes the answer alone
            if event.text and self._console.is_terminal:
                self._thought = event.text[-1]
                click.secho(harmless_text(event.text), nl=False, dim=True)
        elif isinstance(event, TextDelta) and event.text:
            if self._thought:
                click.echo("\n" * (2 - (self._thought == "\n")), nl=False)
                self._thought = ""
            self._last = event.text[-1]
            click.echo(harmless_text(event.text) if self._console.is_terminal else event.text, nl=False)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._last != "\n":
            click.echo()
        if self._end is not None and self._console.is_terminal:
            self._console.print(Text(f"[{self._end.reason}, {_size(self._end)}]", style="dim"))


class WholeTexts:
    """Several choices for a pipe or a file: each under a heading, when all of them have ended."""

    def __init__(self, console: Console, n: int) -> None:
        self._console = console
        self._choices = [_Choice() for _ in range(n)]

    def __enter__(self) -> Self:
        return self

    def feed(self, event: Event) -> None:
        if isinstance(event, (TextDelta, ReasoningDelta, ChoiceFinished)):
            self._choices[event.index].feed(event)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _write_whole(self._console, self._choices)


class Panels:
    """Several choices on a terminal: as many beside each other as fit.

    While they grow the panels share the screen, and each shows the end of its text. In the end they stay if they hold
    the whole texts. If not, the whole texts take their place, and may scroll.
    """

    def __init__(self, console: Console, n: int) -> None:
        self._console = console
        self._choices = [_Choice() for _ in range(n)]
        # draws in a thread of its own
        self._live = Live(
            self, console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        # Terminals do not agree on how wide emoji and composed letters are. A line that turns out too wide must not
        # become two, or the next frame would begin in the wrong place.
        self._console.file.write(NO_LINE_WRAP)
        self._live.start()
        return self

    def feed(self, event: Event) -> None:
        if isinstance(event, (TextDelta, ReasoningDelta, ChoiceFinished)):
            self._choices[event.index].feed(event)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._live.stop()
        finally:
            self._console.file.write(LINE_WRAP)
        grid = _Grid.fit(len(self._choices), *self._console.size)
        texts = [choice.lines(self._console, grid.text_width) for choice in self._choices]
        if grid.hidden or max(map(len, texts)) > grid.text_height:
            _write_whole(self._console, self._choices)
        else:
            self._console.print(self._draw(grid))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = _Grid.fit(len(self._choices), *options.size)
        yield self._draw(grid)
        if grid.hidden:
            yield Text(f"and {grid.hidden} more", style="dim")

    def _draw(self, grid: _Grid) -> RenderableType:
        table = Table.grid()
        for start in range(0, grid.shown, grid.columns):
            table.add_row(*self._row(range(start, min(start + grid.columns, grid.shown)), grid))
        return table

    def _row(self, indices: range, grid: _Grid) -> list[Panel]:
        """Panels of equal height, just high enough for the longest text, or for as much of its end as there is room."""
        texts = [self._choices[index].lines(self._console, grid.text_width) for index in indices]
        # an empty one has a line too
        height = min(max(1, *map(len, texts)), grid.text_height)
        return [
            self._panel(index, lines[-height:], grid.text_width, height)
            for index, lines in zip(indices, texts, strict=True)
        ]

    def _panel(self, index: int, lines: list[str], width: int, height: int) -> Panel:
        end = self._choices[index].end
        return Panel(
            Text("\n".join(lines), style="dim" if self._choices[index].is_thinking else "", no_wrap=True, end=""),
            title=f"choice {index}" if end is None else f"choice {index}: {end.reason}",
            title_align="left",
            subtitle=None if end is None else _size(end),
            subtitle_align="left",
            width=width + FRAME_WIDTH,
            height=height + FRAME_HEIGHT,
            border_style="none" if end is None else "dim",
        )


@attrs.frozen
class _Grid:
    """How many panels, and how much text each has room for."""

    columns: int
    shown: int
    hidden: int
    text_width: int
    """In cells."""
    text_height: int
    """In lines."""

    @classmethod
    def fit(cls, n: int, width: int, height: int) -> _Grid:
        """The grid of ``n`` panels for a terminal."""
        columns = max(1, min(n, width // PANEL_WIDTH))
        rows = math.ceil(n / columns)
        # evenly filled: 8 panels where 5 fit beside each other are two rows of 4
        columns = math.ceil(n / rows)
        # the last line stays free, or the terminal would scroll; and there may be a line about those that are hidden
        height -= 1
        shown_rows = rows
        if rows * PANEL_HEIGHT > height:
            height -= 1
            shown_rows = max(1, height // PANEL_HEIGHT)
        shown = min(n, shown_rows * columns)
        text_height = max(1, height // shown_rows - FRAME_HEIGHT)
        return cls(columns, shown, n - shown, max(1, width // columns - FRAME_WIDTH), text_height)


class _Choice:
    """The text of one choice, and its lines; a paragraph that is complete is broken into lines once.

    A thought is shown while there is no text.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_thinking = False
        self.end: ChoiceFinished | None = None
        self._width = 0
        self._lines: list[str] = []
        self._broken = 0

    def feed(self, event: TextDelta | ReasoningDelta | ChoiceFinished) -> None:
        if isinstance(event, ChoiceFinished):
            self.end = event
            return
        is_thought = isinstance(event, ReasoningDelta)
        if event.text and is_thought != self.is_thinking:
            self.text, self.is_thinking = "", is_thought
            self._width = 0  # so that all of it is broken into lines
        self.text += event.text

    def lines(self, console: Console, width: int) -> list[str]:
        """The text in lines of ``width`` cells."""
        if width != self._width:
            self._width, self._lines, self._broken = width, [], 0
        *complete, last = self.text[self._broken :].split("\n")
        for paragraph in complete:
            self._lines += _break(paragraph, console, width)
            self._broken += len(paragraph) + 1
        return self._lines + (_break(last, console, width) if last else [])


def _break(paragraph: str, console: Console, width: int) -> list[str]:
    # a tab's width depends on where it stands, which in a panel is nowhere special
    text = Text(harmless_text(paragraph).replace("\t", "    "))
    return [line.plain for line in text.wrap(console, width, overflow="fold")]


def _write_whole(console: Console, choices: list[_Choice]) -> None:
    """Every text under a heading; lines are as long as they are, and can be copied."""
    for index, choice in enumerate(choices):
        end = "interrupted" if choice.end is None else f"{choice.end.reason}, {_size(choice.end)}"
        click.echo("\n" * bool(index), nl=False)
        click.secho(f"[choice {index}: {end}]", bold=True)
        text = "" if choice.is_thinking else choice.text
        click.echo(harmless_text(text) if console.is_terminal else text)


def _size(end: ChoiceFinished) -> str:
    tokens = end.usage.completion_tokens
    return f"{tokens} token{'s' if tokens != 1 else ''}, seed {end.seed}"
