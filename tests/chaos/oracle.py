"""What a choice has to say, worked out the slow and obvious way.

Owns: replay(), and how the next token is drawn. Must not know: the engine, its text pipeline, HTTP. It shares nothing
with them but the model.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import attrs
from world import CONTEXT_LENGTH, POISON, SPECIAL, VOCAB_SIZE, next_token, score, spell

from trioserve.testing.tokenizer import EOS

COMPLETION_TOKENS: Final = 16
"""Tokens of a completion that asks for no number."""


@attrs.frozen(kw_only=True)
class Wishes:
    """How a choice is drawn, and where it ends."""

    max_tokens: int | None
    """None: as many as there is room for."""
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special: bool = True
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    biases: Mapping[int, float] = MappingProxyType({})
    words: tuple[bytes, ...] = ()
    """If there are any, the choice has to be one of them."""

    @property
    def is_choosy(self) -> bool:
        """It may say something else than the likeliest token anywhere."""
        penalties = (self.presence, self.frequency, self.repetition)
        return penalties != (0.0, 0.0, 1.0) or bool(self.biases) or bool(self.words)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end it."""
        return self.stop_ids if self.ignore_eos else self.stop_ids | {EOS}


@attrs.frozen
class Scored:
    """A token, and what the model thought of it."""

    token: int
    logprob: float
    likeliest: int
    """The token that the model would have said."""

    def top(self, count: int) -> list[tuple[int, float]]:
        """The likeliest tokens in its place, and their log-probabilities."""
        best = self.logprob + (self.token - self.likeliest) % VOCAB_SIZE
        return [((self.likeliest + distance) % VOCAB_SIZE, best - distance) for distance in range(count)]


@attrs.frozen(kw_only=True)
class Replay:
    """One choice as it must be answered."""

    text: str
    reason: Literal["stop", "length"]
    scored: tuple[Scored, ...]
    """Its tokens."""
    is_cut_off: bool = False
    """What stopped it is the U+FFFD that a character becomes when nothing follows."""
    poisoned: bool = False
    """It can't be answered: it draws the token that fails a choice."""

    @property
    def completion_tokens(self) -> int:
        return len(self.scored)

    @property
    def mean_logprob(self) -> float | None:
        """Of the tokens; None if there are none."""
        return sum(each.logprob for each in self.scored) / len(self.scored) if self.scored else None


def child_seed(seed: int, j: int) -> int:
    """The seed of choice j, as a signed number of 64 bits."""
    return int.from_bytes(((seed + j) % 2**64).to_bytes(8, "little"), "little", signed=True)


def score_prompt(prompt: Sequence[int]) -> list[Scored | None]:
    """What the model thinks of the tokens of a prompt."""
    return [
        None if place == 0 else Scored(token, score(tuple(prompt[:place]), 0, token), token)
        for place, token in enumerate(prompt)
    ]


def replay(prompt: tuple[int, ...], seed: int, wishes: Wishes) -> Replay:
    """The answer to ``prompt`` with this seed."""
    room = CONTEXT_LENGTH - len(prompt)
    max_tokens = room if wishes.max_tokens is None else min(wishes.max_tokens, room)
    scored: list[Scored] = []
    sequence = prompt
    text = ""
    # with no help from the text layer but the standard library's
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    reason: Literal["stop", "length"] = "length"
    # stop strings count in what comes after the first tokens
    open_at = spoken = 0

    def find_stop(more: str) -> str | None:
        """The whole text if a stop string ends it with ``more``."""
        found = _find_stop(text[open_at:], more, wishes.stop) if spoken > wishes.min_tokens else None
        if found is None:
            return None
        cut, word = found
        return (text + more)[: open_at + cut] + (word if wishes.include_stop else "")

    while len(scored) < max_tokens and reason == "length":
        likeliest = next_token(sequence, seed % 2**64)
        token = _draw(likeliest, prompt, sequence[len(prompt) :], wishes)
        best = score(sequence, seed % 2**64, likeliest)
        scored.append(Scored(token, best - (token - likeliest) % VOCAB_SIZE, likeliest))
        sequence = (*sequence, token)
        if token in wishes.ends:
            reason = "stop"
            if not wishes.include_stop:
                break
        elif wishes.words and _is_complete(_said(sequence[len(prompt) :]), wishes.words):
            reason = "stop"
        if token == POISON:
            return Replay(text=text, reason="stop", scored=tuple(scored), poisoned=True)
        more = decoder.decode(spell(token) if wishes.skip_special else SPECIAL.get(token, spell(token)))
        spoken += 1
        whole = find_stop(more)
        if whole is not None:
            return Replay(text=whole, reason="stop", scored=tuple(scored))
        text += more
        if spoken <= wishes.min_tokens:
            open_at = len(text)
    more = decoder.decode(b"", final=True)
    whole = find_stop(more)
    if whole is not None:
        return Replay(text=whole, reason="stop", scored=tuple(scored), is_cut_off=True)
    return Replay(text=text + more, reason=reason, scored=tuple(scored))


def _draw(likeliest: int, prompt: Sequence[int], generated: Sequence[int], wishes: Wishes) -> int:
    """What is said in place of the likeliest token, of which the others are the less likely the farther they are."""
    if not wishes.is_choosy and len(generated) >= wishes.min_tokens:
        return likeliest
    logits = [-float((token - likeliest) % VOCAB_SIZE) for token in range(VOCAB_SIZE)]
    for token, count in Counter(generated).items():
        logits[token] -= wishes.presence + wishes.frequency * count
    if wishes.repetition != 1.0:
        for token in {*prompt, *generated}:
            logit = logits[token]
            logits[token] = logit / wishes.repetition if logit > 0 else logit * wishes.repetition
    for token, bias in wishes.biases.items():
        logits[token] += bias
    forbidden = set(wishes.ends) if len(generated) < wishes.min_tokens else set()
    if wishes.words:
        said = _said(generated)
        forbidden |= {token for token in range(VOCAB_SIZE) if not _may_follow(said, token, wishes.words)}
    return max((token for token in range(VOCAB_SIZE) if token not in forbidden), key=lambda token: logits[token])


def _said(tokens: Sequence[int]) -> bytes:
    return b"".join(spell(token) for token in tokens if token != POISON)


def _may_follow(said: bytes, token: int, words: tuple[bytes, ...]) -> bool:
    if token == EOS:
        return said in words
    more = b"" if token == POISON else spell(token)
    return bool(more) and any(word.startswith(said + more) for word in words)


def _is_complete(said: bytes, words: tuple[bytes, ...]) -> bool:
    """Nothing can follow."""
    return said in words and not any(word != said and word.startswith(said) for word in words)


def _find_stop(text: str, more: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the text ends if a stop string is complete with one of the characters of ``more``, and which one."""
    if not stop:
        return None
    for end in range(len(text) + 1, len(text) + len(more) + 1):
        so_far = (text + more)[:end]
        complete = [word for word in stop if so_far.endswith(word)]
        if complete:
            longest = max(complete, key=len)
            return end - len(longest), longest
    return None
