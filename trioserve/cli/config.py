"""A configuration file: flags written down, name for name.

Owns: how a TOML file becomes the values of a command's options, and where in it a value stands.
Must not know: what the options do.

click asks for a value on the command line first, then in the environment, then in ``Context.default_map``, which is
where this puts what the file says, and takes the option's own default last.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs
import click

from trioserve.cli.options import CONFIG_META, OTHER_SECTION, Decorator, Option, option

CONFIG: Final = "config"


def config_option() -> Decorator[Any]:
    """The option of a command that names the file."""
    return option(
        f"--{CONFIG}",
        "TOML file with options, by their names without the dashes.",
        section=OTHER_SECTION,
        type=click.Path(path_type=Path),
        metavar="FILE",
        show_default=False,
        expose_value=False,
        # the others are looked for when this one is known
        is_eager=True,
        callback=_apply,
    )


def _apply(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        file = ConfigFile.read(path)
        context.default_map = file.values(context.command)
        context.meta[CONFIG_META] = file


@attrs.frozen
class ConfigFile:
    """A file that was read and is valid TOML."""

    path: Path
    _text: str
    _table: Mapping[str, object]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``path``.

        Raises:
            click.ClickException: it can't be read, or is no TOML.
        """
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, tomllib.loads(text))
        except OSError as error:
            raise click.ClickException(f"--{CONFIG}: {path}: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise click.ClickException(f"--{CONFIG}: {path} is no TOML file: {error}") from error

    def values(self, command: click.Command) -> dict[str, object]:
        """The values for ``command``, by the names of its parameters, as its flags would have them.

        Raises:
            click.ClickException: a key is not one of its flags, or has a value that a flag can't have.
        """
        known = {_key(parameter): parameter for parameter in command.params if parameter.name != CONFIG}
        values: dict[str, object] = {}
        for key, value in self._table.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]}?" if near else "."
                raise click.ClickException(f"{self.place(key)} is no option of {command.name}{hint}")
            parameter = known[key]
            values[str(parameter.name)] = self._value(key, value, parameter)
        return values

    def place(self, key: str) -> str:
        """``key`` and where it stands, for messages."""
        pattern = re.compile(rf"""\s*\[*\s*(["']?){re.escape(key)}\1\s*[=.\]]""")
        for number, line in enumerate(self._text.splitlines(), 1):
            if pattern.match(line):
                return f"{key} ({self.path}, line {number})"
        return f"{key} ({self.path})"

    def _value(self, key: str, value: object, parameter: click.Parameter) -> object:
        """The value as its flag would be given it: as text, so that both are checked alike."""
        if isinstance(parameter, click.Option) and parameter.is_flag:
            if not isinstance(value, bool):
                raise click.ClickException(f"{self.place(key)} must be true or false.")
            return value
        if getattr(parameter, "multiple", False):
            items = value if isinstance(value, list) else [value]
            return [self._scalar(key, item, parameter) for item in items]
        return self._scalar(key, value, parameter)

    def _scalar(self, key: str, value: object, parameter: click.Parameter) -> str:
        if isinstance(value, str):
            return value
        if isinstance(parameter.type, OctalMode):
            # 660 and 0o660 are different numbers
            raise click.ClickException(f'{self.place(key)} must be a string, such as "660".')
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        raise click.ClickException(f"{self.place(key)} must be a string or a number.")


class OctalMode(click.ParamType[int]):
    """The permission bits of a file, as chmod takes them."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not re.fullmatch("0?[0-7]{3}", value):
            self.fail(f"{value!r} is no mode such as 660.", param, ctx)
        return int(value, 8)


def _key(parameter: click.Parameter) -> str:
    """The name of a parameter in the file."""
    if isinstance(parameter, Option):
        return max(parameter.opts, key=len).removeprefix("--")
    return str(parameter.name)
