"""The command line's entry: the command group, and what an error looks like to a person.

Owns: exit codes. 0 done; 1 the engine failed while it ran; 2 the command could not be carried out as given; 130 Ctrl-C.
Must not know: what the commands do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trioserve.cli.generate import generate
from trioserve.cli.models import models
from trioserve.cli.serve import serve
from trioserve.errors import DeviceError, InternalError, TrioserveError
from trioserve.version import __version__

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trioserve")
def commands() -> None:
    """Serve language models over the OpenAI API: n choices for the price of one prefill."""


commands.add_command(serve)
commands.add_command(generate)
commands.add_command(models)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every expected error is one line on standard error."""
    try:
        commands.main(args=arguments, prog_name="trioserve", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        click.echo(f"trioserve: {error.format_message()}", err=True)
        return EXIT_REFUSED
    except (DeviceError, InternalError) as error:
        click.echo(f"trioserve: {error}", err=True)
        return EXIT_FAILED
    except TrioserveError as error:
        click.echo(f"trioserve: {error}", err=True)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def main() -> None:
    """The console script."""
    sys.exit(run())
