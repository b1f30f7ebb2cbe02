"""What a choice has to say, worked out the slow and obvious way.

Owns: replay(). Must not know: the engine, its text pipeline, HTTP. It shares nothing with them but the model.
"""

from __future__ import annotations

import codecs
from typing import Final, Literal

import attrs
from world import CONTEXT_LENGTH, POISON, next_token, score, spell

from trioserve.testing.tokenizer import EOS

COMPLETION_TOKENS: Final = 16
"""Tokens of a completion that asks for no number."""


@attrs.frozen(kw_only=True)
class Replay:
    """One choice as it must be answered."""

    text: str
    reason: Literal["stop", "length"]
    completion_tokens: int
    mean_logprob: float | None
    """Of the tokens; None if there are none."""
    poisoned: bool = False
    """It can't be answered: it draws the token that fails a choice."""


def child_seed(seed: int, j: int) -> int:
    """The seed of choice j, as a signed number of 64 bits."""
    return int.from_bytes(((seed + j) % 2**64).to_bytes(8, "little"), "little", signed=True)


def replay(
    prompt: tuple[int, ...], seed: int, *, max_tokens: int | None, stop: tuple[str, ...], ignore_eos: bool, chat: bool
) -> Replay:
    """The answer to ``prompt`` with this seed."""
    room = CONTEXT_LENGTH - len(prompt)
    if max_tokens is None:
        max_tokens = room if chat else min(COMPLETION_TOKENS, room)
    tokens: list[int] = []
    scores: list[float] = []
    sequence = prompt
    text = ""

    def ended(text: str, reason: Literal["stop", "length"], *, poisoned: bool = False) -> Replay:
        mean = sum(scores) / len(scores) if scores else None
        return Replay(text=text, reason=reason, completion_tokens=len(tokens), mean_logprob=mean, poisoned=poisoned)

    # with no help from the text layer but the standard library's
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while len(tokens) < max_tokens:
        token = next_token(sequence, seed % 2**64)
        tokens.append(token)
        scores.append(score(sequence, seed % 2**64, token))
        sequence = (*sequence, token)
        if token == EOS and not ignore_eos:
            break
        if token == POISON:
            return ended(text, "stop", poisoned=True)
        more = decoder.decode(spell(token))
        cut = _stop_cut(text, more, stop)
        text += more
        if cut is not None:
            return ended(text[:cut], "stop")
    stopped = bool(tokens) and tokens[-1] == EOS and not ignore_eos
    more = decoder.decode(b"", final=True)
    cut = _stop_cut(text, more, stop)
    text += more
    if cut is not None:
        return ended(text[:cut], "stop")
    return ended(text, "stop" if stopped else "length")


def _stop_cut(text: str, more: str, stop: tuple[str, ...]) -> int | None:
    """Where the text ends if a stop string is complete with one of the characters of ``more``."""
    if not stop:
        return None
    for end in range(len(text) + 1, len(text) + len(more) + 1):
        so_far = (text + more)[:end]
        complete = [word for word in stop if so_far.endswith(word)]
        if complete:
            return end - len(max(complete, key=len))
    return None
