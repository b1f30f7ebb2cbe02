"""``trioserve models``: what is in the model cache, and how it gets in and out.

Owns: the look of the tables. Must not know: how files are fetched or read.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from trioserve.cli.options import CONTEXT_SETTINGS, cache_path
from trioserve.cli.progress import ProgressDisplay, human_size
from trioserve.cli.signals import ending_soon
from trioserve.model.aliases import ALIASES
from trioserve.model.cache import list_cached, remove
from trioserve.model.sources import pull as pull_model
from trioserve.model.sources import resolve
from trioserve.model.summary import ModelSummary, describe


@click.group(context_settings=CONTEXT_SETTINGS, invoke_without_command=True)
@click.pass_context
def models(context: click.Context) -> None:
    """List, fetch, describe and remove models.

    They are kept in the folder that TRIOSERVE_CACHE names, or else in ~/.cache/trioserve.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@models.command("list")
def list_models() -> None:
    """List the models in the cache, and those that can be fetched by a short name."""
    cached = {model.name: model for model in list_cached(cache_path())}
    rows = [("MODEL", "SIZE", "WHERE")]
    for name in sorted({*cached, *ALIASES}):
        model = cached.get(name)
        if model is None:
            rows.append((name, human_size(ALIASES[name].size), "not fetched yet"))
        else:
            rows.append((name, human_size(model.size), str(model.path)))
    _echo_table(rows)


@models.command()
@click.argument("model")
def pull(model: str) -> None:
    """Fetch MODEL, a short name or a Hugging Face repo id, into the cache."""
    with ProgressDisplay() as progress, ending_soon():
        found = pull_model(model, cache=cache_path(), progress=progress)
    click.echo(f"{found.id}: {found.path}")


@models.command()
@click.argument("model")
def show(model: str) -> None:
    """Describe MODEL: a file, a folder, or a model in the cache."""
    found = resolve(model, cache=cache_path(), offline=True)
    _echo_table(_rows(describe(found.path)))


def _rows(summary: ModelSummary) -> list[tuple[str, str]]:
    kinds = ", ".join(f"{kind} ({count})" for kind, count in summary.kinds.items())
    return [
        ("path", str(summary.path)),
        ("format", summary.form),
        ("architecture", summary.architecture),
        ("size", human_size(summary.size)),
        ("parameters", f"{summary.parameters / 1e6:,.1f} million"),
        ("tensors", kinds),
        ("context", f"{summary.context_length} tokens" if summary.context_length else "unknown"),
        ("vocabulary", f"{summary.vocabulary} tokens" if summary.vocabulary else "unknown"),
        ("chat template", "yes" if summary.has_template else "no"),
        ("licence", summary.licence or "unknown"),
    ]


@models.command()
@click.argument("model")
def rm(model: str) -> None:
    """Remove MODEL from the cache."""
    freed = remove(model, cache_path())
    click.echo(f"{model} removed, {human_size(freed)} freed")


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, which programs can read too: nothing is broken, cut or padded at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
