"""``trioserve models``: what is in the model cache, and how it gets in and out.

Owns: the look of the tables. Must not know: how files are fetched or read.
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from trioserve.cli.console import ProgressBars, cache_path, human_size
from trioserve.model.aliases import ALIASES
from trioserve.model.cache import list_cached, remove
from trioserve.model.sources import pull as pull_model
from trioserve.model.sources import resolve
from trioserve.model.summary import ModelSummary, describe


@click.group()
def models() -> None:
    """List, fetch, describe and remove models."""


@models.command("list")
def list_models() -> None:
    """The models in the cache, and the aliases that can be fetched."""
    cached = {model.name: model for model in list_cached(cache_path())}
    table = Table("model", "size", "where", box=None, pad_edge=False)
    for name in sorted({*cached, *ALIASES}):
        model = cached.get(name)
        if model is None:
            table.add_row(name, human_size(ALIASES[name].size), "not fetched yet")
        else:
            table.add_row(name, human_size(model.size), str(model.path))
    Console(soft_wrap=True).print(table)


@models.command()
@click.argument("model")
def pull(model: str) -> None:
    """Fetch MODEL, an alias or a Hugging Face repo id, into the cache."""
    with ProgressBars() as bars:
        found = pull_model(model, cache=cache_path(), progress=bars)
    click.echo(f"{found.id}: {found.path}")


@models.command()
@click.argument("model")
def show(model: str) -> None:
    """Describe MODEL: an alias, a file, a folder, or a repo id; it is fetched if it is not here yet."""
    with ProgressBars() as bars:
        found = resolve(model, cache=cache_path(), progress=bars)
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    for label, value in _rows(describe(found.path)):
        table.add_row(label, value)
    Console(soft_wrap=True).print(table)


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
