"""``trioserve generate``: answers on the terminal, without a server.

Owns: how n growing choices look side by side. Must not know: how they are made.
"""

from __future__ import annotations

from typing import Any

import attrs
import click
import trio
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from trioserve.cli.console import DEFAULT_MODEL, ProgressBars, engine_options, make_engine_options
from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.engine.prompts import Prompt
from trioserve.events import ChoiceFinished, Event
from trioserve.params import SamplingParams

SAMPLING_FIELDS = [field for field in attrs.fields(SamplingParams) if field.name != "ignore_eos"]
NARROWEST_PANEL = 36
FRAMES_PER_SECOND = 12


class ChoicePanels:
    """The choices as panels, as many beside each other as the terminal has room for."""

    def __init__(self, n: int, width: int) -> None:
        self._texts = [""] * n
        self._titles = [f"choice {index}" for index in range(n)]
        per_row = max(1, min(n, width // NARROWEST_PANEL))
        self._width = width // per_row

    def feed(self, event: Event) -> None:
        if isinstance(event, ChoiceFinished):
            tokens = event.usage.completion_tokens
            self._titles[event.index] += f" · seed {event.seed} · {event.reason} after {tokens} tokens"
        else:
            self._texts[event.index] += event.text

    def __rich__(self) -> Columns:
        return Columns(
            [
                Panel(Text(text), title=title, title_align="left", width=self._width)
                for text, title in zip(self._texts, self._titles, strict=True)
            ],
            padding=0,
        )

    def plain(self) -> str:
        """For a pipe: every choice under a heading; a single one bare."""
        if len(self._texts) == 1:
            return self._texts[0]
        return "\n\n".join(f"[{title}]\n{text}" for title, text in zip(self._titles, self._texts, strict=True))


async def _prompt(engine: Engine, text: str, *, raw: bool) -> Prompt:
    if raw or engine.model.template is None:
        return text
    return await engine.encode_chat([{"role": "user", "content": text}])


async def _generate(model: str, text: str, params: SamplingParams, options: EngineOptions, *, raw: bool) -> None:
    console = Console()
    with ProgressBars() as bars:
        async with open_engine(model, attrs.evolve(options, progress=bars)) as engine:
            bars.stop()
            prompt = await _prompt(engine, text, raw=raw)
            panels = ChoicePanels(params.n, console.width)
            async with engine.generate(prompt, params) as generation:
                if console.is_terminal:
                    with Live(panels, console=console, refresh_per_second=FRAMES_PER_SECOND):
                        async for event in generation:
                            panels.feed(event)
                else:
                    async for event in generation:
                        panels.feed(event)
                    click.echo(panels.plain())


@click.command()
@click.argument("prompt")
@click.option("-m", "--model", default=DEFAULT_MODEL, show_default=True, help="Alias, file, folder or repo id.")
@click.option("-n", "n", default=1, show_default=True, help="Choices.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Tokens per choice at most.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=-1, show_default=True)
@click.option("--min-p", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, help="Choice j uses seed + j.")
@click.option("--stop", multiple=True, help="A text that ends a choice; may be given several times.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@engine_options
def generate(prompt: str, model: str, *, raw: bool, **settings: Any) -> None:
    """Answer PROMPT on the terminal with N choices, side by side as they grow."""
    params = SamplingParams(**{field.name: settings.pop(field.name) for field in SAMPLING_FIELDS})
    trio.run(lambda: _generate(model, prompt, params, make_engine_options(settings), raw=raw))
