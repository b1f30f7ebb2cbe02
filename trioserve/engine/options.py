"""How an engine is set up.

Owns: EngineOptions and its checks. Must not know: flags, environment variables, files.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

import attrs

from trioserve.abc import DeviceInfo, KvType, Progress, no_progress
from trioserve.errors import ParamError
from trioserve.params import Limits, Pooling, at_least, is_finite
from trioserve.sched.state import SchedulerOptions
from trioserve.text.reasoning import REASONING_FORMATS
from trioserve.text.tools.formats import TOOL_FORMATS

NO_FORMAT = "none"
MAX_N_CEILING = 16384
MAX_THREADS = 1024
DEFAULT_COMPILE_SECONDS: float | None = 10.0
DEFAULT_KV_TOKENS = 32768
# Of a device that doesn't say how many rows cost hardly more than one, if a request asks for drafts all the same.
DEFAULT_LOOKUP_ROWS = 8
# Seeds that the engine picks stay exact in programs that read JSON numbers as doubles.
PICKED_SEED_BITS = 53


def _check_limits(_: object, attribute: attrs.Attribute[Limits], limits: Limits) -> None:
    # FAN-2: a server's bound on n is itself bounded
    if not 1 <= limits.max_n <= MAX_N_CEILING:
        raise ParamError(f"max_n must be between 1 and {MAX_N_CEILING}, got {limits.max_n}.", "max_n")
    if limits.max_choices < 1:
        raise ParamError(f"max_choices must be at least 1, got {limits.max_choices}.", "max_choices")


def _check_threads(_: object, attribute: attrs.Attribute[int], threads: int) -> None:
    # the runtime of OpenMP ends the process when the system refuses it a thread
    if not 1 <= threads <= MAX_THREADS:
        raise ParamError(f"threads must be between 1 and {MAX_THREADS}, got {threads}.", "threads")


def _one_of(names: Iterable[str]) -> Callable[[object, attrs.Attribute[str | None], str | None], None]:
    allowed = [NO_FORMAT, *names]

    def check(_: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
        if value is not None and value not in allowed:
            raise ParamError(f"{attribute.name} must be one of {', '.join(allowed)}, got {value!r}.", attribute.name)

    return check


def _check_kv_type(_: object, attribute: attrs.Attribute[str], kv_type: str) -> None:
    if kv_type not in get_args(KvType):
        raise ParamError(f"kv_type must be one of {', '.join(get_args(KvType))}, got {kv_type}.", "kv_type")


def pick_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(PICKED_SEED_BITS)


@attrs.frozen(kw_only=True)
class EngineOptions:
    """Options of ``open_engine``. Frozen, and valid once it exists.

    Raises:
        ParamError: a value is out of range.
    """

    device: Literal["auto", "cpu", "reference"] = "auto"
    """Which device runs the model; auto takes the fastest that the machine has."""
    threads: int | None = attrs.field(default=None, validator=attrs.validators.optional(_check_threads))
    """CPU threads of the device; None: one for each physical core that the process may use (see default_threads)."""
    context_length: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(2)))
    """Tokens per sequence at most; None: what the model was made for."""
    page_size: int = attrs.field(default=16, validator=at_least(1))
    """Tokens per KV page."""
    kv_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(2)))
    """Tokens that the KV pages hold in all; None: four full contexts, 32768 at most, one full context at least."""
    kv_type: KvType | None = attrs.field(default=None, validator=attrs.validators.optional(_check_kv_type))
    """What keys and values are stored as; None: float16 on the CPU device, float32 on the reference device, which can
    do nothing else. int8 takes about half the memory of float16."""
    max_running: int = attrs.field(default=256, validator=at_least(1))
    """Choices that decode at once."""
    max_queued: int = attrs.field(default=2048, validator=at_least(1))
    """Choices that wait; a request that does not fit whole is refused."""
    max_batch_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    """Tokens computed in one step at most; None: what the device suggests."""
    max_backlog: int = attrs.field(default=256, validator=at_least(1))
    """Tokens generated but not yet taken by a slow consumer; past that the choice is paused."""
    prefix_cache: bool = True
    """Keep the pages of finished prompts and answers for requests that begin the same."""
    max_overtaken_s: float = attrs.field(default=2.0, validator=is_finite)
    """How long requests that find more in the prefix cache, or fit where a large one does not, may start before a
    waiting one that came earlier: seconds from the first that does. 0: first in, first out."""
    prompt_lookup: bool | None = None
    """Take drafts from prompts and answers, unless a request says otherwise; None: if the device says that it pays."""
    lookup_tokens: int = attrs.field(default=4, validator=at_least(1))
    """Tokens of a draft at most."""
    lookup_rows: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(0)))
    """Rows that decodes and drafts may have in one step together; 0: no drafts at all, whoever asks for them. None:
    what the device suggests, or else 8."""
    limits: Limits = attrs.field(factory=Limits, validator=_check_limits)
    inline_characters: int = attrs.field(default=2000, validator=at_least(0))
    """Longer prompts are tokenized in a thread: this many characters take about a millisecond."""
    tool_format: str | None = attrs.field(default=None, validator=_one_of(TOOL_FORMATS))
    """How the model calls tools; "none": it can't. None: what its chat template shows."""
    reasoning_format: str | None = attrs.field(default=None, validator=_one_of(REASONING_FORMATS))
    """How it marks what it thinks before it answers; "none": thoughts are text. None: what its chat template shows."""
    compile_seconds: float | None = attrs.field(
        default=DEFAULT_COMPILE_SECONDS, validator=attrs.validators.optional(is_finite)
    )
    """How long compiling the structure of a request may take, in a thread. None: as long as it takes, and the event
    loop waits, for tests in virtual time."""
    pooling: Pooling | None = None
    """How a text becomes a vector, whatever the model's files say; None: what they say, if anything."""
    cache_dir: Path | None = None
    """Where fetched models are kept; None: ``~/.cache/trioserve``."""
    progress: Progress = no_progress
    """Told how fetching and loading the model go."""
    pick_seed: Callable[[], int] = pick_seed
    """Gives the first seed of a request that has none; replaced in tests."""

    def pages_for(self, context_length: int) -> int:
        """KV pages of a device whose sequences have ``context_length`` tokens at most."""
        tokens = self.kv_tokens
        if tokens is None:
            tokens = max(context_length, min(4 * context_length, DEFAULT_KV_TOKENS))
        return -(-tokens // self.page_size)

    def scheduler_options(self, info: DeviceInfo) -> SchedulerOptions:
        """The options that concern the scheduler, for a loaded device."""
        return SchedulerOptions(
            page_size=info.page_size,
            page_count=info.page_count,
            max_running=self.max_running,
            max_queued=self.max_queued,
            max_batch_tokens=self.max_batch_tokens or info.batch_tokens,
            prefix_cache=self.prefix_cache,
            max_overtaken_s=self.max_overtaken_s,
            lookup_rows=(info.free_rows or DEFAULT_LOOKUP_ROWS) if self.lookup_rows is None else self.lookup_rows,
            lookup_tokens=self.lookup_tokens,
        )

    def looks_up(self, info: DeviceInfo) -> bool:
        """Whether drafts are taken from prompts and answers where a request does not say, on a loaded device."""
        return info.free_rows > 0 if self.prompt_lookup is None else self.prompt_lookup
