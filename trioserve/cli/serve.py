"""``trioserve serve``: an engine behind HTTP, and the signals that end it.

Owns: the order of things: bind, load, serve, announce; then drain, close, end.
Must not know: routes, scheduling.
"""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from trioserve.cli.console import DEFAULT_MODEL, ProgressBars, engine_options, make_engine_options, option
from trioserve.cli.logs import configure_logs
from trioserve.engine.open import open_engine
from trioserve.engine.options import MAX_N_CEILING, EngineOptions
from trioserve.params import Limits
from trioserve.web.listeners import Listeners, bind
from trioserve.web.options import MAX_PORT, ServeOptions
from trioserve.web.serve import serve as serve_engine
from trioserve.web.shutdown import Shutdown

# Ctrl-C is for a person who wants to be back at the prompt: just long enough to tell running streams.
INTERRUPT_GRACE_SECONDS = 0.5


async def _obey(
    signals: AsyncIterator[int], shutdown: Shutdown, serving: trio.Event, everything: trio.CancelScope
) -> None:
    """SIGTERM drains; SIGINT ends soon; a second signal, or one that comes before serving began, ends at once."""
    async for number in signals:
        if shutdown.begun or not serving.is_set():
            everything.cancel()
        elif number == signal.SIGINT:
            click.echo("Stopping.", err=True)
            shutdown.begin(INTERRUPT_GRACE_SECONDS)
        else:
            click.echo("Draining.", err=True)
            shutdown.begin()


def _announce(model: str, addresses: tuple[str, ...]) -> None:
    address = addresses[0]
    where, base = ("", address) if address.startswith("http") else (f"--unix-socket {address[5:]} ", "http://localhost")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Name a colour."}], "n": 4})
    click.echo(f"\nServing {model} on {', '.join(addresses)} (Ctrl-C stops it). Try:\n")
    click.echo(f"  curl {where}{base}/v1/chat/completions -d '{body}'\n")


async def _serve(model: str, listeners: Listeners, options: EngineOptions, serve_options: ServeOptions) -> None:
    shutdown, serving = Shutdown(), trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, shutdown, serving, nursery.cancel_scope)
            with ProgressBars() as bars:
                # the engine stands outside HTTP: when it fails, all of this ends
                async with open_engine(model, attrs.evolve(options, progress=bars)) as engine:
                    bars.stop()
                    async with trio.open_nursery() as http:
                        run = functools.partial(serve_engine, listeners=listeners, shutdown=shutdown)
                        addresses = await http.start(run, engine, serve_options)
                        serving.set()
                        _announce(engine.model.id, addresses)
            nursery.cancel_scope.cancel()


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@option("--host", "Address or name to listen on.", default="127.0.0.1", show_default=True)
@option("--port", "Port; 0 takes a free one.", type=click.IntRange(0, MAX_PORT), default=8000, show_default=True)
@option("--unix-socket", "Listen on this path instead.", type=click.Path(path_type=Path))
@option("--max-connections", "Connections served at once.", type=click.IntRange(min=1), default=1024, show_default=True)
@option("--graceful-timeout", "Seconds that running requests have after SIGTERM.", type=float, default=30.0)
@option("--max-running", "Choices that decode at once.", type=click.IntRange(min=1), default=256, show_default=True)
@option("--max-queue", "Choices that wait at most.", type=click.IntRange(min=1), default=2048, show_default=True)
@option("--max-n", "Bound of n.", type=click.IntRange(1, MAX_N_CEILING), default=128, show_default=True)
@option("--max-choices", "Bound of prompts times n.", type=click.IntRange(min=1), default=1024, show_default=True)
@option("--no-prefix-cache", "Compute every prompt anew.", is_flag=True)
@engine_options
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def serve(
    model: str,
    *,
    host: str,
    port: int,
    unix_socket: Path | None,
    max_connections: int,
    graceful_timeout: float,
    max_queue: int,
    max_n: int,
    max_choices: int,
    no_prefix_cache: bool,
    verbose: bool,
    **settings: Any,
) -> None:
    """Serve MODEL (an alias, a .gguf file, a folder, or a Hugging Face repo id) over the OpenAI API."""
    configure_logs(verbose=verbose)
    serve_options = ServeOptions(
        host=host,
        port=port,
        unix_socket=unix_socket,
        max_connections=max_connections,
        graceful_timeout=graceful_timeout,
    )
    options = make_engine_options(
        {**settings, "max_queued": max_queue, "prefix_cache": not no_prefix_cache},
        Limits(max_n=max_n, max_choices=max_choices),
    )
    # before the model is loaded, so that a taken port is found out at once
    with _bind(serve_options) as listeners:
        trio.run(_serve, model, listeners, options, serve_options)


def _bind(options: ServeOptions) -> Listeners:
    where = options.unix_socket or f"{options.host}:{options.port}"
    try:
        return bind(options)
    except OSError as error:
        raise click.ClickException(f"can't listen on {where}: {error.strerror or error}") from error
