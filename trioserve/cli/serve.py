"""``trioserve serve``: an engine behind HTTP, and the signals that end it.

Owns: the order of things: bind, fetch, load, serve, announce; then drain, close, end.
Must not know: routes, scheduling.
"""

from __future__ import annotations

import functools
import json
import shlex
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import structlog
import trio

from trioserve.cli.garbage import freeze_loaded
from trioserve.cli.logs import LogFormat, configure_logs
from trioserve.cli.operations import API_KEY_VARIABLE, least_level, open_traces, operation_options, read_api_keys
from trioserve.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    Command,
    Decorator,
    apply,
    build,
    cache_path,
    default_of,
    engine_option,
    engine_options,
    field_option,
    option,
)
from trioserve.cli.progress import ProgressDisplay
from trioserve.cli.signals import end_by_signal, ending_soon
from trioserve.engine.engine import Engine
from trioserve.engine.groups import collapse, raise_alone
from trioserve.engine.open import open_engine
from trioserve.engine.options import MAX_N_CEILING, NO_FORMAT, EngineOptions
from trioserve.errors import DeviceError
from trioserve.model.sources import resolve
from trioserve.params import Limits
from trioserve.text.tools.formats import TOOL_FORMATS
from trioserve.web.listeners import Listeners, bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve as serve_engine
from trioserve.web.shutdown import Shutdown

if TYPE_CHECKING:
    # imports OpenTelemetry, which need not be there
    from trioserve.web.tracing import Tracing

# Just long enough to tell running streams: Ctrl-C is for a person who wants to be back at the prompt.
GRACE_S: Final = 0.5
LONGEST_END_S: Final = 0.8
# Listening on these means on every address of the machine; one of them is where a client on it connects to.
WILDCARDS: Final = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}

log = structlog.get_logger("trioserve.serve")


def _listen_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    return field_option(ServeOptions, flag, help_text, section="Address", **settings)


def _connection_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    return field_option(ServeOptions, flag, help_text, section="Connections", **settings)


def _limit_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    return field_option(Limits, flag, help_text, section="Limits of a request", **settings)


serve_options: Final = apply(
    [
        _listen_option("--host", "Address or name to listen on.", metavar="HOST"),
        _listen_option("--port", "Port; 0 takes a free one.", type=int, metavar="PORT"),
        _listen_option(
            "--unix-socket",
            "Listen on this path instead.",
            type=click.Path(path_type=Path),
            show_default=False,
        ),
        _limit_option("--max-n", f"Choices of a prompt at most; up to {MAX_N_CEILING}.", type=int, metavar="N"),
        option(
            "--max-choices",
            "Prompts times n at most.",
            section="Limits of a request",
            type=int,
            metavar="N",
            default=None,
            show_default=f"{default_of(Limits, 'max_choices')}, or --max-n if that is more",
        ),
        _limit_option(
            "--greedy-n",
            "What n > 1 means when the temperature is 0: an error, or n equal choices.",
            type=click.Choice(["reject", "replicate"]),
        ),
        _connection_option("--max-connections", "Connections served at once.", type=int, metavar="N"),
        _connection_option("--max-body-size", "Bytes of a request at most.", type=int, metavar="BYTES"),
        _connection_option(
            "--keep-alive-timeout", "Time that a connection may be idle.", type=float, metavar="SECONDS"
        ),
        _connection_option(
            "--slow-reader-timeout",
            "Time that a client may read nothing of what it is sent.",
            name="send_stall_timeout",
            type=float,
            metavar="SECONDS",
        ),
        _connection_option(
            "--graceful-timeout", "Time that running requests have after SIGTERM.", type=float, metavar="SECONDS"
        ),
    ]
)

serving_engine_options: Final = apply(
    [
        engine_option("--max-running", "Choices that grow at once.", type=int, metavar="N"),
        option(
            "--max-queued",
            "Choices that wait at most; more are refused.",
            section="Engine",
            type=int,
            metavar="N",
            default=None,
            show_default=f"{default_of(EngineOptions, 'max_queued')}, or --max-choices if that is more",
        ),
        engine_option("--prefix-cache/--no-prefix-cache", "Keep what was computed for prompts that begin the same."),
        engine_option(
            "--max-overtaken",
            "Time that later requests may start before a waiting one, if more of their prompts is cached or they fit "
            "where it does not; 0 is first in, first out.",
            name="max_overtaken_s",
            type=float,
            metavar="SECONDS",
        ),
        engine_option(
            "--prompt-lookup/--no-prompt-lookup",
            "Draft tokens from prompts and answers, unless a request says otherwise.",
            show_default="if the device says that it pays",
        ),
        engine_option(
            "--tool-format",
            "How the model calls tools.",
            type=click.Choice([*TOOL_FORMATS, NO_FORMAT]),
            show_default="what its chat template shows",
        ),
        engine_option(
            "--pooling",
            "How texts become embeddings.",
            type=click.Choice(["mean", "last"]),
            show_default="what the model was made for",
        ),
        engine_option("--lookup-tokens", "Tokens of a draft at most.", type=int, metavar="N"),
        engine_option(
            "--lookup-rows",
            "Tokens that decodes and drafts draw in one step at most; 0 means no drafts.",
            type=int,
            metavar="N",
            show_default="the device's suggestion",
        ),
    ]
)


@click.command(
    cls=Command,
    help=f"""Serve MODEL over the OpenAI API.

    MODEL is {MODEL_HELP}; without it, {DEFAULT_MODEL}. It is fetched if it is not in the cache yet. It can also be
    TRIOSERVE_MODEL in the environment.

    A value is taken from the command line, else from the environment, else from the --config file.
    """,
)
@click.argument("model", default=DEFAULT_MODEL, envvar="TRIOSERVE_MODEL")
@serve_options
@engine_options
@serving_engine_options
@operation_options
def serve(
    model: str,
    *,
    max_choices: int | None,
    max_queued: int | None,
    api_key: tuple[str, ...],
    api_key_file: Path | None,
    log_format: LogFormat,
    log_level: str | None,
    verbose: bool,
    otel_endpoint: str | None,
    **settings: Any,
) -> None:
    configure_logs(level=least_level(log_level, verbose=verbose), form=log_format)
    http_options = build(ServeOptions, settings, api_keys=read_api_keys(api_key, api_key_file))
    # a higher bound on n is of no use if one of the others, left alone, stays below it
    if max_choices is None:
        max_choices = max(default_of(Limits, "max_choices"), settings["max_n"])
    if max_queued is None:
        max_queued = max(default_of(EngineOptions, "max_queued"), max_choices)
    limits = build(Limits, settings, max_choices=max_choices)
    options = build(EngineOptions, settings, limits=limits, max_queued=max_queued, cache_dir=cache_path())
    # before anything is fetched or loaded, so that a taken port is found out at once
    with open_traces(otel_endpoint) as tracing, _bind(http_options) as listeners, ProgressDisplay() as progress:
        with ending_soon():
            resolve(model, cache=cache_path(), progress=progress)
        open_block = functools.partial(open_engine, model, attrs.evolve(options, progress=progress))
        trio.run(run_server, open_block, listeners, http_options, progress.stop, tracing)


def _bind(options: ServeOptions) -> Listeners:
    where = options.unix_socket or f"{options.host}:{options.port}"
    try:
        return bind(options)
    # the second is what Python makes of a name that no host can have
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise click.ClickException(f"can't listen on {where}: {reason or error}") from error


def _megabytes(size: int) -> str | None:
    return f"{size / 1e6:.0f} MB" if size else None


async def run_server(
    open_block: Callable[[], AbstractAsyncContextManager[Engine]],
    listeners: Listeners,
    options: ServeOptions,
    loaded: Callable[[], None],
    tracing: Tracing | None = None,
) -> None:
    """Open the engine, serve it, and obey signals, until they have ended all of it.

    Args:
        open_block: makes the block that holds the engine.
        listeners: where to serve; closed in the end.
        options: how to serve.
        loaded: called when the engine is open.
        tracing: where spans of the requests go.

    Raises:
        KeyboardInterrupt, SystemExit: a signal came before serving began.
        DeviceError: the engine failed.
        TrioserveError: what opening the engine raises.
    """
    course = _Course()
    began = trio.current_time()
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(course.obey, signals, nursery.cancel_scope)
                # the engine stands outside HTTP: when it fails, all of this ends
                async with open_block() as engine, trio.open_nursery() as inside:
                    loaded()
                    freeze_loaded()
                    _tell_loaded(engine, trio.current_time() - began)
                    inside.start_soon(course.end_with_engine)
                    with course.http:
                        run = functools.partial(
                            serve_engine, listeners=listeners, shutdown=course.shutdown, tracing=tracing
                        )
                        async with trio.open_nursery() as http:
                            addresses = await http.start(run, engine, options)
                            course.serving = True
                            _announce(engine.model.id, addresses, wants_key=options.api_keys is not None)
                    inside.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = collapse(group, None)
        if isinstance(error, DeviceError):
            log.critical("the device failed", exc_info=error)
        raise_alone(error)
    if course.too_early is not None:
        end_by_signal(course.too_early)


def _tell_loaded(engine: Engine, seconds: float) -> None:
    """Log what was loaded, what was odd about it, and where the memory went."""
    for warning in engine.model.warnings:
        log.warning(warning)
    info = engine.info
    log.info(
        "loaded",
        model=engine.model.id,
        device=info.name,
        context_length=info.context_length,
        weights=_megabytes(info.weight_bytes),
        kv_pages=_megabytes(info.kv_bytes),
        seconds=round(seconds, 2),
    )


@attrs.define(eq=False)
class _Course:
    """How far a server has come, and what ends it."""

    shutdown: Shutdown = attrs.field(factory=Shutdown, init=False)
    http: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True), init=False)
    """Around HTTP, which outlives the engine for the moment that it takes to tell the clients."""
    serving: bool = attrs.field(default=False, init=False)
    too_early: int | None = attrs.field(default=None, init=False)
    """The signal that came before serving began."""

    async def obey(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        """SIGTERM drains; SIGINT ends soon; a second signal, or one that comes before serving began, ends at once."""
        async for number in signals:
            if not self.serving:
                self.too_early = number
                everything.cancel()
            elif self.shutdown.begun:
                everything.cancel()
            elif number == signal.SIGINT:
                log.info("stopping")
                self.shutdown.begin(GRACE_S)
            else:
                log.info("draining: what runs may end; a second signal ends it at once")
                self.shutdown.begin()

    async def end_with_engine(self) -> None:
        """Wait to be cancelled with all that is in the engine's block, as when the engine fails; then end HTTP soon."""
        try:
            await trio.sleep_forever()
        finally:
            self.shutdown.begin(GRACE_S)
            # a shutdown that had begun before may have long to go, and without an engine nothing is worth the wait
            self.http.deadline = trio.current_time() + LONGEST_END_S


def _announce(model: str, addresses: tuple[str, ...], *, wants_key: bool) -> None:
    click.echo(f"\nServing {model} on {', '.join(addresses)} (Ctrl-C stops it). Try:\n")
    click.echo(f"  {command_to_try(model, addresses[0], wants_key=wants_key)}\n")


def command_to_try(model: str, address: str, *, wants_key: bool = False) -> str:
    """A command for a shell on this machine that asks the server at ``address`` for something."""
    for wildcard, local in WILDCARDS.items():
        address = address.replace(wildcard, local)
    words = ["curl"]
    if address.startswith("unix:"):
        words += ["--unix-socket", address.removeprefix("unix:")]
        address = "http://localhost"
    body = {"model": model, "messages": [{"role": "user", "content": "Name a colour."}], "n": 4, "max_tokens": 16}
    command = shlex.join([*words, f"{address}/v1/chat/completions", "-d", json.dumps(body)])
    # the shell's own variable: a key is not to be seen here
    return f'{command} -H "Authorization: Bearer ${API_KEY_VARIABLE}"' if wants_key else command
