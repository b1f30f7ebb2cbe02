"""``trioserve serve``: an engine behind HTTP, and the signals that end it.

Owns: the order of things: bind, load, serve, announce; then drain, close, end.
Must not know: routes, scheduling.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from trioserve.cli.console import DEFAULT_MODEL, ProgressBars, engine_options, make_engine_options, option
from trioserve.cli.logs import configure_logs
from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import MAX_N_CEILING, EngineOptions
from trioserve.params import Limits
from trioserve.web.listeners import Listeners, bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve as serve_engine
from trioserve.web.server import Shutdown

# Ctrl-C is for a person who wants to be back at the prompt: just long enough to tell running streams.
INTERRUPT_GRACE_SECONDS = 0.5


async def _obey(signals: AsyncIterator[int], shutdown: Shutdown, loading: trio.CancelScope) -> None:
    """SIGTERM drains, SIGINT ends soon, a second signal ends at once. While loading, any signal does."""
    async for number in signals:
        if shutdown.begun or loading.cancel_called:
            loading.cancel()
        ...
