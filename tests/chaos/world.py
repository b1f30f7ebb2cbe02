"""What is served in the chaos run: a model that is a pure function, on an engine that is too small.

Owns: the tokenizer, the next token of every sequence, and the engine around them.
Must not know: HTTP, clients, how an answer is made of tokens.

The next token depends on the seed and on *all* tokens before it. So one wrong page, position or fork, anywhere in the
life of a sequence, changes the rest of its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import ModelInfo
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.params import Limits
from trioserve.step import StepPlan, StepResult
from trioserve.testing.device import Draw, FakeDevice
from trioserve.testing.engine import FAKE_MODEL, FAKE_TEMPLATE
from trioserve.testing.tokenizer import BOS, EOS, TURN, ByteTokenizer
from trioserve.text.template import ChatTemplate

MODEL: Final = FAKE_MODEL
CONTEXT_LENGTH: Final = 512
PAGE_SIZE: Final = 16
PAGE_COUNT: Final = 144
"""4.5 full contexts: not enough for the choices that run, so some are preempted and forked late."""
MAX_N: Final = 16
MAX_CHOICES: Final = 48
MAX_RUNNING: Final = 40
MAX_QUEUED: Final = 160

# Tokens of more than a byte: a word, the two halves of a character, and a piece so long that the answers made of it
# don't fit into the buffers of the kernel.
WORD, FRONT_HALF, BACK_HALF, BULK = range(259, 263)
PIECES: Final = (b"the ", b"\xf0\x9f", b"\x98\x80", b"=" * 3000)
POISON: Final = 263
"""A token that the tokenizer has no bytes for, which fails its choice: the logits are wider than the vocabulary."""
VOCAB_SIZE: Final = POISON + 1
"""Width of the logits."""
EMBEDDING_DIM: Final = 4

SPECIAL: Final = {EOS: b"<|eos|>", BOS: b"<|bos|>", TURN: b"<|turn|>"}
"""Those without text, and how they are written."""

BULK_PROMPT: Final = b"Bulk"
"""How a prompt begins (after BOS) that is answered with long pieces, without end."""

_TEMPLATE: Final = "{% for tool in tools or [] %}<|turn|>tool: {{ tool.function.name }}\n{% endfor %}" + FAKE_TEMPLATE
_LETTERS: Final = b"abc, \nX"
_CHARACTERS: Final = tuple(character.encode() for character in ("é", "ß", "€", "語", "字", "😀", "😁", "\u2028"))
_BULK_START: Final = tuple(BULK_PROMPT)


class ChaosTokenizer(ByteTokenizer):
    """Bytes, and a few pieces. What is asked for the token that there is no more says so."""

    def __init__(self) -> None:
        super().__init__(PIECES)

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id == POISON:
            raise ValueError(poison_message())
        return super().token_bytes(token_id, skip_special=skip_special)


def poison_message() -> str:
    """What the tokenizer says about POISON."""
    return f"token {POISON} has no bytes"


def spell(token_id: int) -> bytes:
    """The bytes of any token but POISON, without a tokenizer."""
    if token_id < 256:
        return bytes([token_id])
    return PIECES[token_id - WORD] if WORD <= token_id < POISON else b""


def next_token(sequence: tuple[int, ...], seed: int) -> int:
    """What the model says after ``sequence``; ``seed`` is a uint64."""
    # the hash of integers is the same in every process
    dice = hash((seed, sequence)) & (2**64 - 1)
    dice ^= dice >> 31
    dice, roll = divmod(dice, 1000)
    if sequence[1 : 1 + len(_BULK_START)] == _BULK_START:
        return BULK if roll < 700 else _LETTERS[dice % len(_LETTERS)]
    tail = _open_character(sequence)
    if tail and roll < 985:
        return _continue(tail, dice)
    # here too if the character is to be broken off, which makes a U+FFFD
    if roll < 35:
        return EOS
    if roll < 60:
        return WORD
    if roll < 75:
        return FRONT_HALF
    if roll < 300:
        return _CHARACTERS[dice % len(_CHARACTERS)][0]
    if roll == 999 and dice % 3 == 0:
        return POISON
    return _LETTERS[dice % len(_LETTERS)]


def score(sequence: tuple[int, ...], seed: int, token_id: int) -> float:
    """The log-probability of a token after ``sequence``; a multiple of 1/8, so that sums are exact."""
    return -1.0 - hash((seed, sequence, token_id)) % 64 / 8


def _open_character(sequence: tuple[int, ...]) -> bytes:
    """The bytes at the end that begin a character and don't complete it."""
    last = sequence[-1]
    if last < 0x80 or last in (EOS, BOS, TURN, WORD, POISON):
        return b""
    data = b"".join(map(spell, sequence[-3:]))
    for size in range(1, min(3, len(data)) + 1):
        byte = data[-size]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[-size:] if size < needed else b""
    return b""


def _continue(tail: bytes, dice: int) -> int:
    ways = [character[len(tail) :] for character in _CHARACTERS if character.startswith(tail)]
    if not ways:
        # a byte that continues nothing of ours, but may well be valid
        return 0x80 + dice % 0x40
    rest = ways[dice % len(ways)]
    return BACK_HALF if rest == PIECES[BACK_HALF - WORD] and dice & 64 else rest[0]


@attrs.define(eq=False)
class ChaosDevice(FakeDevice):
    """A FakeDevice that keeps nothing but its pages, however long it runs, and that can be told to fail."""

    fails_at: int | None = None
    """The step that raises."""

    async def run_async(self, plan: StepPlan) -> StepResult:
        result = await FakeDevice.run_async(self, plan)
        self.plans.clear()
        if plan.number == self.fails_at:
            raise RuntimeError("out of order")
        return result

    def _draw(self, sequence: tuple[int, ...], seed: int) -> Draw:
        # where the prompt ends is of no interest to next_token(), and remembering it would take ever more memory
        return Draw(sequence, (), seed)


def open_chaos_engine(*, step_seconds: float, fails_at: int | None = None) -> EngineBlock:
    """A block with a running engine of this world."""
    options = EngineOptions(
        page_size=PAGE_SIZE,
        max_running=MAX_RUNNING,
        max_queued=MAX_QUEUED,
        max_batch_tokens=96,
        # small, so that the outboxes of slow readers are full soon
        max_backlog=8,
        # so many that there are drafts beside many choices
        prompt_lookup=True,
        lookup_rows=24,
        limits=Limits(max_n=MAX_N, max_choices=MAX_CHOICES),
        # small, so that threads tokenize too
        inline_characters=150,
        tool_format="hermes",
        pooling="mean",
    )
    info = DeviceInfo(
        name="chaos",
        vocab_size=VOCAB_SIZE,
        context_length=CONTEXT_LENGTH,
        page_size=PAGE_SIZE,
        page_count=PAGE_COUNT,
        embedding_dim=EMBEDDING_DIM,
    )
    device = ChaosDevice(
        lambda draw: next_token(draw.prompt, draw.seed),
        info,
        step_seconds,
        lambda draw, token_id: score(draw.prompt, draw.seed, token_id),
    )
    device.fails_at = fails_at
    model = ModelInfo(
        id=MODEL,
        tokenizer=ChaosTokenizer(),
        template=ChatTemplate(_TEMPLATE, bos_token="", eos_token="<|eos|>"),
    )

    async def load() -> tuple[ModelInfo, ChaosDevice]:
        await trio.lowlevel.checkpoint()
        return model, device

    return EngineBlock(load, options)


def text_prompt(text: str) -> tuple[int, ...]:
    """The tokens of a prompt given as text."""
    return (BOS, *text.encode())


def chat_prompt(messages: Sequence[tuple[str, str]], tools: Sequence[str] = ()) -> tuple[int, ...]:
    """The tokens of a chat of (role, content), up to where the answer begins; ``tools``: their names."""
    tokens: list[int] = []
    for name in tools:
        tokens += [TURN, *f"tool: {name}\n".encode()]
    for role, content in messages:
        tokens += [TURN, *f"{role}: {content}\n".encode()]
    return (*tokens, TURN, *b"assistant: ")
