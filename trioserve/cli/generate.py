"""``trioserve generate``: answers on the terminal, without a server.

Owns: the course of the command. Must not know: how choices are made, and how they look.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TextIO

import click
import trio

from trioserve.cli.display import choose_display
from trioserve.cli.garbage import freeze_loaded
from trioserve.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    Command,
    Decorator,
    apply,
    build,
    cache_path,
    engine_options,
    field_option,
    option,
)
from trioserve.cli.progress import ProgressDisplay
from trioserve.cli.signals import ending_soon
from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import MAX_N_CEILING, EngineOptions
from trioserve.engine.prompts import Prompt
from trioserve.model.sources import resolve
from trioserve.params import Limits, SamplingParams
from trioserve.structure import Structure

DEFAULT_MAX_TOKENS: Final = 128
# Who sits at the machine has no limits but its own.
LIMITS: Final = Limits(max_n=MAX_N_CEILING, max_choices=MAX_N_CEILING)


def _sampling_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    # not in the environment: they belong to a prompt, not to a machine
    return field_option(SamplingParams, flag, help_text, section="Sampling", environment=False, **settings)


sampling_options: Final = apply(
    [
        _sampling_option("-n", "Choices.", type=int, metavar="N"),
        _sampling_option(
            "--best-of",
            "Generate this many, and show the N likeliest when all of them have ended.",
            type=int,
            show_default="N",
        ),
        option(
            "--max-tokens",
            "Tokens of a choice at most.",
            section="Sampling",
            environment=False,
            type=int,
            default=DEFAULT_MAX_TOKENS,
            metavar="TOKENS",
        ),
        _sampling_option(
            "--temperature",
            "0 to 2; 0 always takes the most likely token.",
            type=float,
            show_default="what the model's files say, or 1",
        ),
        _sampling_option("--top-p", "0 to 1: draw from the likeliest tokens that add up to this.", type=float),
        _sampling_option("--top-k", "Draw from this many of the likeliest tokens; -1: from all.", type=int),
        _sampling_option("--min-p", "0 to 1: no token less likely than this share of the likeliest.", type=float),
        _sampling_option("--seed", "Choice j is drawn with seed + j.", type=int, show_default="another each time"),
        _sampling_option(
            "--stop", "A text that ends a choice; may be given several times.", multiple=True, show_default=False
        ),
        _sampling_option(
            "--stop-token-ids",
            "A token id that ends a choice; may be given several times.",
            type=int,
            multiple=True,
            show_default=False,
            metavar="ID",
        ),
        _sampling_option("--include-stop", "Show the text that ended a choice, too.", is_flag=True, show_default=False),
        _sampling_option("--ignore-eos", "Go on past the end that the model sees.", is_flag=True, show_default=False),
        _sampling_option("--min-tokens", "Tokens that a choice has at least.", type=int, metavar="TOKENS"),
        _sampling_option(
            "--presence-penalty", "-2 to 2: against tokens that the choice has, however often.", type=float
        ),
        _sampling_option("--frequency-penalty", "-2 to 2: against tokens for each time they were used.", type=float),
        _sampling_option(
            "--repetition-penalty", "Above 1: against tokens that the prompt or the choice has.", type=float
        ),
        _sampling_option(
            "--skip-special-tokens/--show-special-tokens",
            "Whether marks such as the end of a turn have no text.",
            show_default="--skip-special-tokens",
        ),
        _sampling_option(
            "--prompt-lookup/--no-prompt-lookup",
            "Draft tokens from the prompt and the answer, for speed alone.",
            show_default="if the device says that it pays",
        ),
        _sampling_option(
            "--prediction",
            "A text that the answer may repeat, to draft tokens from.",
            metavar="TEXT",
            show_default=False,
        ),
        option(
            "--schema",
            "Answer with JSON that is valid for the JSON schema in this file.",
            section="Sampling",
            environment=False,
            type=click.File("r", encoding="utf-8"),
            show_default=False,
        ),
        option(
            "--regex",
            "Answer with a text that this regular expression matches.",
            section="Sampling",
            environment=False,
            metavar="PATTERN",
            show_default=False,
        ),
    ]
)


@click.command(cls=Command)
@click.argument("prompt")
@option(
    "--model",
    f"What answers: {MODEL_HELP}.",
    short="-m",
    section="Prompt and model",
    default=DEFAULT_MODEL,
    metavar="MODEL",
)
@option(
    "--raw",
    "Continue PROMPT as it is. Without this it is a user's message, if the model can chat.",
    section="Prompt and model",
    environment=False,
    is_flag=True,
    show_default=False,
)
@sampling_options
@engine_options
def generate(prompt: str, model: str, *, raw: bool, schema: TextIO | None, regex: str | None, **settings: Any) -> None:
    """Answer PROMPT on the terminal with N choices, side by side as they grow.

    Into a pipe or a file goes the text alone, or, with several choices, each under a heading.
    """
    params = build(SamplingParams, settings, structure=_read_structure(schema, regex))
    with ProgressDisplay() as progress:
        options = build(
            EngineOptions,
            settings,
            limits=LIMITS,
            max_queued=MAX_N_CEILING,
            cache_dir=cache_path(),
            progress=progress,
        )
        LIMITS.check(params, prompts=1)
        with ending_soon():
            resolve(model, cache=cache_path(), progress=progress)
        open_block = functools.partial(open_engine, model, options)
        trio.run(functools.partial(answer, open_block, prompt, params, raw=raw, loaded=progress.stop))


def _read_structure(schema: TextIO | None, regex: str | None) -> Structure | None:
    if schema is not None and regex is not None:
        raise click.UsageError("--schema and --regex can't be given together.")
    if schema is not None:
        try:
            text = schema.read()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--schema: {schema.name} is not UTF-8.") from error
        return Structure(kind="json_schema", text=text, param="schema")
    return None if regex is None else Structure(kind="regex", text=regex, param="regex")


async def answer(
    open_block: Callable[[], AbstractAsyncContextManager[Engine]],
    text: str,
    params: SamplingParams,
    *,
    raw: bool,
    loaded: Callable[[], None],
) -> None:
    """Open the engine, and show the choices of one prompt on standard output.

    Args:
        open_block: makes the block that holds the engine.
        text: the prompt.
        params: how to draw.
        raw: never use the chat template.
        loaded: called when the engine is open.

    Raises:
        TrioserveError: what the engine raises.
    """
    async with open_block() as engine:
        loaded()
        freeze_loaded()
        prompt: Prompt = text
        output = None
        if not raw and engine.model.template is not None:
            chat = await engine.prepare_chat([{"role": "user", "content": text}], params)
            prompt, params, output = chat.prompt, chat.params, chat.output
        async with engine.generate(prompt, params, output=output) as generation:
            with choose_display(params.n) as display:
                async for event in generation:
                    display.feed(event)
