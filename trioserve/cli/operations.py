"""The options of ``trioserve serve`` for whoever runs it: who may ask and how long, certificates, logs, traces.

Owns: these flags, and where API keys are read from. Must not know: how any of it is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trioserve.cli.config import OctalMode, config_option
from trioserve.cli.logs import DEFAULT_LEVEL, LEVELS
from trioserve.cli.options import Decorator, apply, field_option, option
from trioserve.errors import ParamError
from trioserve.web.auth import ApiKeys
from trioserve.web.options import ServeOptions

if TYPE_CHECKING:
    # imports OpenTelemetry, which need not be there
    from trioserve.web.tracing import Tracing

API_KEY_VARIABLE: Final = "TRIOSERVE_API_KEY"

_FILE: Final = click.Path(path_type=Path)


def _access_option(flag: str, help_text: str, **settings: Any) -> Decorator[Any]:
    return field_option(ServeOptions, flag, help_text, section="Access", show_default=False, **settings)


operation_options: Final = apply(
    [
        field_option(
            ServeOptions,
            "--unix-socket-mode",
            "Permissions of the unix socket, such as 660.",
            section="Address",
            type=OctalMode(),
            metavar="MODE",
            show_default="as the umask has it",
        ),
        field_option(
            ServeOptions,
            "--root-path",
            "Prefix of all paths behind a reverse proxy, such as /llm.",
            section="Address",
            metavar="PATH",
            show_default=False,
        ),
        option(
            "--api-key",
            "A key that requests must show; may be given several times. Other users of the machine can see flags.",
            section="Access",
            multiple=True,
            metavar="KEY",
            show_default=False,
        ),
        option(
            "--api-key-file",
            "A file with such keys, one a line.",
            section="Access",
            type=_FILE,
            metavar="FILE",
            show_default=False,
        ),
        _access_option(
            "--cors-origin",
            "An origin whose pages may ask, or * for all; may be given several times.",
            name="cors_origins",
            multiple=True,
            metavar="ORIGIN",
        ),
        _access_option("--tls-cert", "PEM file with a certificate: speak HTTPS.", type=_FILE, metavar="FILE"),
        _access_option("--tls-key", "PEM file with its key, if it is another.", type=_FILE, metavar="FILE"),
        _access_option(
            "--tls-client-ca", "PEM file with who must have signed a client's certificate.", type=_FILE, metavar="FILE"
        ),
        field_option(
            ServeOptions,
            "--request-timeout",
            "Time that a request may take, from its head to the end of its answer.",
            section="Limits of a request",
            type=float,
            metavar="SECONDS",
            show_default="no limit",
        ),
        option(
            "--log-format",
            "Lines for people, or one JSON object each.",
            section="Log",
            type=click.Choice(["text", "json"]),
            default="text",
        ),
        option(
            "--log-level",
            "The least that is logged; requests are info.",
            section="Log",
            type=click.Choice(list(LEVELS)),
            default=None,
            show_default=DEFAULT_LEVEL,
        ),
        option(
            "--verbose",
            "The same as a log level of debug.",
            short="-v",
            section="Log",
            is_flag=True,
            show_default=False,
        ),
        option(
            "--otel-endpoint",
            "Send traces to this OpenTelemetry collector, by OTLP over HTTP.",
            section="Log",
            metavar="URL",
            show_default=False,
        ),
        config_option(),
    ]
)


def least_level(level: str | None, *, verbose: bool) -> str:
    """The level that the two options ask for."""
    if verbose and level not in (None, "debug"):
        raise click.UsageError(f"--verbose is a log level of debug, and --log-level says {level}.")
    return "debug" if verbose else level or DEFAULT_LEVEL


def read_api_keys(given: Iterable[str], file: Path | None) -> ApiKeys | None:
    """The keys of the flag, or its variable, and those of the file; None if no key is asked for.

    Raises:
        ParamError: a key is none, or there should be some and are none: that must not open the server to all.
    """
    keys = list(given)
    if not keys and os.environ.get(API_KEY_VARIABLE, "none").strip() == "":
        raise ParamError(f"{API_KEY_VARIABLE} is there, but has no key in it.", None)
    if file is not None:
        # as bytes that may be of any encoding, like a flag's
        lines = os.fsdecode(file.read_bytes()).splitlines()
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise ParamError(f"{file} has no key in it.", "api_key_file")
        keys += found
    return ApiKeys.of(keys) if keys else None


def open_traces(endpoint: str | None) -> AbstractContextManager[Tracing | None]:
    """The block in which traces are sent to ``endpoint``, or to nobody.

    Raises:
        ParamError: it is no address, or OpenTelemetry is not installed.
    """
    if endpoint is None:
        return nullcontext()
    try:
        from trioserve.web.tracing import Tracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ParamError(
            'Traces want what is not installed; pip install "trioserve[otel]" does it.', "otel_endpoint"
        ) from error
    return Tracing.to(endpoint)
