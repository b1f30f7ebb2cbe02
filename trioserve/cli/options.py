"""Options: what they look like in the help, in the environment, and when their value is refused.

Owns: the Command class, the options that several commands take, the way from values to option objects.
Must not know: what the options do. Ranges are checked by the classes whose fields the options set, and defaults are
theirs too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click
from click.core import ParameterSource

from trioserve.engine.options import NO_FORMAT, EngineOptions
from trioserve.errors import ParamError
from trioserve.model.cache import cache_dir
from trioserve.text.reasoning import REASONING_FORMATS

DEFAULT_MODEL: Final = "smollm2"
MODEL_HELP: Final = "an alias, a .gguf file, a folder, or a Hugging Face repo id"
OTHER_SECTION: Final = "Other"
CONFIG_META: Final = "trioserve.config"
"""Where a context's ``meta`` has the configuration file, if there is one."""
CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Options = TypeVar("Options", bound=attrs.AttrsInstance)
Decorator = Callable[[Decorated], Decorated]


class Option(click.Option):
    """An option that stands under a heading of its own in the help."""

    def __init__(self, *arguments: Any, section: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section

    def written(self, context: click.Context) -> str:
        """The name under which its value was given: the flag, the variable in the environment, or the file's key."""
        flag = max(self.opts, key=len)
        source = context.get_parameter_source(self.name or "")
        if source is ParameterSource.ENVIRONMENT:
            return str(self.envvar)
        if source is ParameterSource.DEFAULT_MAP:
            return str(context.meta[CONFIG_META].place(flag.removeprefix("--")))
        return flag

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return super().get_error_hint(ctx) if ctx is None else f"'{self.written(ctx)}'"


class Command(click.Command):
    """A command whose help has sections, and which answers a ParamError with the name that the user wrote."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ParamError as error:
            raise click.ClickException(_refusal(error, ctx)) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            # arguments are explained in the text above
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                heading = parameter.section if isinstance(parameter, Option) else OTHER_SECTION
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _refusal(error: ParamError, context: click.Context) -> str:
    """The error's text, about the name under which the parameter was given."""
    text = str(error)
    for parameter in context.command.params:
        if isinstance(parameter, Option) and parameter.name == error.param:
            written, start = parameter.written(context), f"{parameter.name} "
            return f"{written} {text.removeprefix(start)}" if text.startswith(start) else f"{written}: {text}"
    return text


def option(
    flag: str,
    help_text: str,
    *,
    section: str,
    short: str | None = None,
    name: str | None = None,
    environment: bool = True,
    **settings: Any,
) -> Decorator[Any]:
    """A click option.

    Args:
        flag: "--max-n", or "--this/--not-this".
        help_text: one sentence.
        section: the heading that it stands under.
        short: a short flag for the same.
        name: the parameter that it sets; None: the flag's own name.
        environment: whether it can also be given as TRIOSERVE_<FLAG> in the environment.
        settings: as of click.option.
    """
    if environment:
        settings |= {"envvar": f"TRIOSERVE_{_name(flag).upper()}", "show_envvar": True}
    names = [each for each in (short, flag, name) if each is not None]
    return click.option(*names, cls=Option, section=section, help=help_text, **{"show_default": True, **settings})


def field_option(cls: type[attrs.AttrsInstance], flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    """An ``option`` that sets a field of an attrs class and has the field's default.

    The field is the one that ``name`` says, or else has the flag's name.
    """
    return option(flag, help_text, default=default_of(cls, settings.get("name", _name(flag))), **settings)


def default_of(cls: type[attrs.AttrsInstance], name: str) -> Any:
    """The default of a field of an attrs class."""
    return attrs.fields_dict(cls)[name].default


def _name(flag: str) -> str:
    return flag.split("/", maxsplit=1)[0].lstrip("-").replace("-", "_")


def build(cls: type[Options], settings: Mapping[str, Any], **others: Any) -> Options:
    """An object of an attrs class from those of ``settings`` that are its fields, and from ``others``.

    Raises:
        ParamError: a value is out of range.
    """
    names = attrs.fields_dict(cls)
    return cls(**{name: value for name, value in settings.items() if name in names}, **others)


def apply(decorators: list[Decorator[Any]]) -> Decorator[Any]:
    """One decorator for several, which then stand in this order in the help."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def engine_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    """An option of every command that opens an engine."""
    return field_option(EngineOptions, flag, help_text, section="Engine", **settings)


engine_options: Final = apply(
    [
        engine_option(
            "--device",
            "What runs the model; auto takes the fastest that this machine has.",
            type=click.Choice(["auto", "cpu", "reference"]),
        ),
        engine_option(
            "--threads",
            "CPU threads of the device.",
            type=int,
            metavar="N",
            show_default="one for each core that it may use",
        ),
        engine_option(
            "--context-length",
            "Tokens of a prompt and its answer at most.",
            type=int,
            metavar="TOKENS",
            show_default="what the model was made for",
        ),
        engine_option(
            "--kv-tokens",
            "Tokens that fit in memory, all sequences together.",
            type=int,
            metavar="TOKENS",
            show_default="4 full contexts, 32768 at most",
        ),
        engine_option(
            "--kv-type",
            "What keys and values are stored as; int8 takes half the memory of float16.",
            type=click.Choice(["float16", "float32", "int8"]),
            show_default="float16 on the CPU device, float32 on the reference device",
        ),
        engine_option(
            "--max-batch-tokens",
            "Tokens computed in one step at most.",
            type=int,
            metavar="TOKENS",
            show_default="the device's suggestion",
        ),
        engine_option(
            "--reasoning-format",
            "How the model marks what it thinks before it answers.",
            type=click.Choice([*REASONING_FORMATS, NO_FORMAT]),
            show_default="what its chat template shows",
        ),
    ]
)


def cache_path() -> Path:
    """Where fetched models are kept, as the environment says."""
    return cache_dir(os.environ)
