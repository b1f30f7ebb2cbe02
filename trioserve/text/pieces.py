"""What the tokens of BPE vocabularies spell, and the order in which SentencePiece's are merged.

Owns: GPT-2's byte alphabet, SentencePiece's notation. Must not know: ids, files, how text is split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

SPACE: Final = "\u2581"
"""How SentencePiece's tokens write a space."""
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[str, int]:
    # GPT-2's bytes_to_unicode: printable bytes of Latin-1 stand for themselves, the others follow U+00FF in order
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_LETTERS: Final[Mapping[str, int]] = _byte_letters()
"""The letter with which byte-level BPE writes a byte -> the byte."""


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a token of byte-level BPE spells. One that uses other letters than BYTE_LETTERS is plain text."""
    try:
        return bytes(map(BYTE_LETTERS.__getitem__, token))
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a token of SentencePiece."""
    return token.replace(SPACE, " ").encode()


def byte_value(token: str) -> int | None:
    """N of a token written ``<0xNN>``, which stands for that byte; None for other tokens."""
    match = _BYTE.fullmatch(token)
    return None if match is None else int(match[1], 16)


def merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece's BPE does for pieces with these scores, the first to do first.

    SentencePiece merges, again and again, the two neighbours whose join has the highest score, the leftmost of
    equals. As a list: every way to make a piece of two others, by the score of the piece. Of several ways to make
    one piece, the longest left part first, as Hugging Face's converter of these models has it.
    """
    ways = [
        (piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    # a stable sort: the ways to make one piece stay in order
    ways.sort(key=lambda way: -scores[way[0] + way[1]])
    return ways
