"""What runs in an engine at one moment, for people, tools and tests.

Owns: the classes, whose fields are also those of ``/v1/engine``. Must not know: how they are filled or written.
"""

from __future__ import annotations

import attrs

from trioserve.sched.state import SchedulerStatistics


@attrs.frozen(kw_only=True)
class RequestSnapshot:
    """A request that has been entered and not left."""

    id: str
    alias: str | None
    age_s: float
    """Seconds since it was entered."""
    n: int
    """Choices per prompt."""
    best_of: int
    """Candidates per prompt: n, if not more were asked for. They are the choices counted below."""
    prompts: int
    prompt_tokens: int
    """Each prompt counted once; 0 while they are tokenized."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache so far."""
    choices: int
    choices_finished: int
    completion_tokens: int
    """Generated so far, by all choices."""


@attrs.frozen(kw_only=True)
class EngineSnapshot:
    """An engine and everything in it."""

    model: str
    device: str
    context_length: int
    """Tokens per sequence at most."""
    page_size: int
    """Tokens per KV page."""
    page_count: int
    uptime_s: float
    """Seconds since it was opened."""
    draining: bool
    requests: tuple[RequestSnapshot, ...]
    """Oldest first."""
    scheduler: SchedulerStatistics
