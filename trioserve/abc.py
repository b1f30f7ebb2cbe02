"""The seams of the engine: what a device, a tokenizer and a progress display must offer.

Owns: the protocols. Must not know: any implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import attrs

from trioserve.step import StepPlan, StepResult

KvType = Literal["float16", "float32", "int8"]
"""What a device may store keys and values as."""


@attrs.frozen(kw_only=True)
class DeviceInfo:
    """What a loaded device can hold."""

    name: str
    """For people: "reference (float32, cpu)"."""
    vocab_size: int
    """Width of the logits. A token id is valid if 0 <= id < vocab_size."""
    context_length: int
    """Tokens per sequence at most, prompt and answer together."""
    page_size: int
    """Tokens per KV page."""
    page_count: int
    """KV pages in all; ids are 0 to page_count - 1."""
    batch_tokens: int = 256
    """Tokens in one step that it computes in a few tenths of a second: what a step should hold at most."""
    free_rows: int = 0
    """Decodes in one step that cost hardly more than a single one, so that some can be spent on drafts. 0: none do."""
    weight_bytes: int = 0
    """Memory that the weights take; 0: not known."""
    kv_bytes: int = 0
    """Memory that the KV pages take once all have been used; 0: not known."""
    embedding_dim: int = 0
    """Numbers in a hidden state; 0: the device gives none (StepPlan.hidden)."""


@runtime_checkable
class Device(Protocol):
    """A loaded model that runs steps. All methods block; after loading all are called from one thread."""

    @property
    def info(self) -> DeviceInfo: ...

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step: the page copies, then every span, then draw every row. Any exception ends the engine."""
        ...

    def interrupt(self) -> None:
        """Make the running step, and any later one, raise soon. The one method that any thread may call."""
        ...

    def close(self) -> None:
        """Free memory. Idempotent."""
        ...


@runtime_checkable
class AsyncDevice(Protocol):
    """A device that lives in the event loop itself: a simulation on trio's clock, for tests and experiments."""

    @property
    def info(self) -> DeviceInfo: ...

    async def run_async(self, plan: StepPlan) -> StepResult: ...


class Tokenizer(Protocol):
    """Text to ids, and ids to bytes. Immutable, and shared by all requests and threads."""

    @property
    def vocab_size(self) -> int:
        """Ids it can produce are below this."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence."""
        ...

    @property
    def max_token_bytes(self) -> int:
        """Length of the longest token's text in UTF-8 bytes: B bytes of text are at least B / this many tokens."""
        ...

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """The ids of ``text``; special tokens written in it are recognised.

        With ``add_special`` the model's BOS is put in front if the model wants one and the text has none.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes one id stands for inside a text. For special tokens b"", or else how they are written.

        Raises:
            IndexError: the id is not in the vocabulary.
        """
        ...


@attrs.frozen
class Part:
    """A piece of what a choice says, and what kind of thing that is."""

    kind: Literal["text", "reasoning", "tool_call"]
    text: str
    """The text, the thought, or more of a call's arguments. May be empty."""
    call: int = 0
    """Of a tool call: counts the calls of the choice from 0."""
    id: str | None = None
    """Of a tool call, in its first part."""
    name: str | None = None
    """Of a tool call, in its first part: the tool."""


class OutputParser(Protocol):
    """Tells text from thoughts and tool calls in what one choice writes. One for each choice; it has state.

    However the text is divided over calls of ``feed``, the parts joined are the same.
    """

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token is part of a thought."""
        ...

    def feed(self, text: str) -> list[Part]:
        """More text. What may be the start of a mark is held back."""
        ...

    def end(self) -> list[Part]:
        """No text follows: what was held back."""
        ...


class Progress(Protocol):
    """Told how a long job goes. May be called from any thread."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """``stage`` is a few words ("downloading", "loading"); ``done`` and ``total`` are bytes; None: not known."""
        ...


def no_progress(stage: str, done: int, total: int | None) -> None:
    """A Progress that shows nothing."""
