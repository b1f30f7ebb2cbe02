"""The options that all comparisons with peers have.

Owns: the flags, their defaults, and what follows from them alone. Must not know: the peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click

from trioserve.model.cache import default_cache_dir
from trioserve.model.sources import resolve

T = TypeVar("T")

SAMPLING: Final = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""How everybody draws: llama-server's defaults but for the temperature. Both peers are slower without top_k."""
SINGLE_ANSWER: Final = 4
"""A single choice gets this many times the tokens of one of many: it is over soon."""
PREFILLS: Final = 4
"""Prompts that are only read, per round: one is over soon, too."""


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter("must be numbers with commas between them") from error


_OPTIONS = [
    click.option("--model", default="smollm2", show_default=True, help="An alias or a .gguf file."),
    click.option("--device", default="cpu", show_default=True, help="What runs trioserve's model."),
    click.option("--threads", default=2, show_default=True, help="Threads of every contestant."),
    click.option("--rounds", default=3, show_default=True, help="Of every kind of work."),
    click.option("--tokens", default=64, show_default=True, help="Generated per choice; four times as many for n = 1."),
    click.option("--choices", default="8,16,32,64", show_default=True, callback=_numbers, help="Values of n above 1."),
    click.option("--prompt-tokens", default=256, show_default=True, help="Of the prompts that are answered."),
    click.option("--prefill-tokens", default=512, show_default=True, help="Of the prompts that are only read."),
    click.option("--only", multiple=True, help="Only this kind of work, as the table calls it; can be given again."),
    click.option("--json", type=click.Path(path_type=Path), help="Write everything here, after every kind of work."),
    click.option(
        "--cache",
        type=click.Path(path_type=Path),
        envvar="TRIOSERVE_CACHE",
        help="Where fetched models are.  [default: ~/.cache/trioserve]",
    ),
    click.option("--peers", type=click.Path(path_type=Path), help="Where peers are installed.  [default: CACHE/peers]"),
]


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class Common:
    """Their values."""

    model: str
    device: str
    threads: int
    rounds: int
    tokens: int
    choices: tuple[int, ...]
    prompt_tokens: int
    prefill_tokens: int
    only: tuple[str, ...]
    json: Path | None
    cache: Path = attrs.field(converter=attrs.converters.default_if_none(factory=default_cache_dir))
    peers: Path | None

    @property
    def peers_folder(self) -> Path:
        """Where environments and files of the peers are."""
        return (self.peers or self.cache / "peers").absolute()

    def model_file(self) -> Path:
        """The GGUF file; fetched if it is not here yet."""
        return resolve(self.model, cache=self.cache).path

    def selected(self, works: Sequence[T], name: Callable[[T], str]) -> list[T]:
        """The works that ``--only`` names; all of them without it."""
        known = [name(work) for work in works]
        for wanted in self.only:
            if wanted not in known:
                raise click.BadParameter(f"there is no {wanted!r}, only {', '.join(known)}", param_hint="--only")
        return [work for work in works if not self.only or name(work) in self.only]

    def described(self) -> dict[str, object]:
        """Those that the figures depend on, for the report."""
        names = ("model", "device", "threads", "rounds", "tokens", "choices", "prompt_tokens", "prefill_tokens")
        return {name: getattr(self, name) for name in names}
