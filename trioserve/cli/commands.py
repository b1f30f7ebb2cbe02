"""The command line: the outermost group of commands, and what an error looks like to a person.

Owns: exit codes. Must not know: what the commands do.

==========  =========================================================================================
0           done; for a server: ended by a signal, in order
1           the engine failed while it ran
2           the command could not be carried out as it was given
130 to 143  ended as by a signal, 128 + its number: Ctrl-C, a pipe that nobody reads any more, SIGTERM
==========  =========================================================================================
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import attrs
import click

from trioserve.cli.harmless import harmless_line
from trioserve.cli.options import CONTEXT_SETTINGS
from trioserve.cli.signals import INTERRUPTED, SIGNAL_BASE
from trioserve.errors import InternalError, ModelError, ParamError, TrioserveError
from trioserve.version import __version__

FAILED: Final = 1
REFUSED: Final = 2
BROKEN_PIPE: Final = SIGNAL_BASE + signal.SIGPIPE


@attrs.frozen
class LateCommand:
    """A command whose module is imported when it is called. Most take half a second, and import what others don't."""

    help: str
    """A line for the list of commands."""
    module: str

    def load(self, name: str) -> click.Command:
        command = vars(import_module(self.module))[name]
        assert isinstance(command, click.Command)
        return command


LATE_COMMANDS: Final = {
    "generate": LateCommand("Answer a prompt on the terminal, n choices side by side.", "trioserve.cli.generate"),
    "models": LateCommand("List, fetch, describe and remove models.", "trioserve.cli.models"),
    "serve": LateCommand("Serve a model over the OpenAI API.", "trioserve.cli.serve"),
}


class Commands(click.Group):
    """The outermost group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(LATE_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        late = LATE_COMMANDS.get(cmd_name)
        return None if late is None else late.load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, late.help) for name, late in LATE_COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None


@click.group(cls=Commands, context_settings=CONTEXT_SETTINGS, invoke_without_command=True)
@click.version_option(__version__, prog_name="trioserve")
@click.pass_context
def commands(context: click.Context) -> None:
    """Serve language models over the OpenAI API: n choices for the price of one prefill."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every error that can be expected is one line on standard error.

    What else is raised is a bug, and comes out as it is.
    """
    try:
        commands.main(args=arguments, prog_name="trioserve", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except click.ClickException as error:
        return _tell(error.format_message(), REFUSED)
    except (ParamError, ModelError) as error:
        return _tell(str(error), REFUSED)
    except InternalError:
        raise
    except TrioserveError as error:
        return _tell(str(error), FAILED)
    except OSError as error:
        reason = error.strerror or str(error)
        return _tell(reason if error.filename is None else f"{error.filename}: {reason}", REFUSED)
    return 0


def _tell(message: str, code: int) -> int:
    click.echo(f"trioserve: {harmless_line(' '.join(message.split()))}", err=True)
    return code
