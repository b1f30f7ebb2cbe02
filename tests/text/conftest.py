"""Vocabularies and expected values, from tests/text/data (see make_golden.py)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trioserve.text.tokenizer import BpeTokenizer
from trioserve.text.vocabulary import TokenKind, Vocabulary

DATA = Path(__file__).parent / "data"


class Encoded(msgspec.Struct):
    """A text and its ids."""

    text: str
    ids: list[int]


class _Texts(msgspec.Struct):
    texts: list[Encoded]


class SentencePieceFile(_Texts):
    tokens: list[str]
    scores: list[float]
    kinds: list[int]


@pytest.fixture(scope="session")
def smollm2_vocabulary() -> Vocabulary:
    """The default model's. Its ids 0 and 2 are <|endoftext|> and <|im_end|>; it wants no BOS."""
    data = json.loads(gzip.decompress((DATA / "smollm2.json.gz").read_bytes()))
    made = [merge.replace(" ", "") for merge in data["merges"]]
    return Vocabulary(
        model="gpt2",
        tokens=(*data["first_tokens"], *made),
        kinds=[*data["first_kinds"], *[TokenKind.NORMAL] * len(made)],
        merges=tuple(data["merges"]),
        pre=data["pre"],
        bos_id=data["bos_id"],
        eos_ids=frozenset({data["eos_id"]}),
    )


@pytest.fixture(scope="session")
def smollm2(smollm2_vocabulary: Vocabulary) -> BpeTokenizer:
    return BpeTokenizer.from_vocabulary(smollm2_vocabulary)


@pytest.fixture(scope="session")
def smollm2_texts() -> list[Encoded]:
    return msgspec.json.decode((DATA / "smollm2_ids.json").read_bytes(), type=_Texts).texts


@pytest.fixture(scope="session")
def sentencepiece_file() -> SentencePieceFile:
    return msgspec.json.decode((DATA / "sentencepiece.json").read_bytes(), type=SentencePieceFile)


@pytest.fixture(scope="session")
def sentencepiece_vocabulary(sentencepiece_file: SentencePieceFile) -> Vocabulary:
    """Of 700 tokens: <unk>, <s>, </s>, <turn> (user-defined), 256 bytes, pieces. It wants <s> in front."""
    return Vocabulary(
        model="llama",
        tokens=tuple(sentencepiece_file.tokens),
        kinds=sentencepiece_file.kinds,
        scores=tuple(sentencepiece_file.scores),
        bos_id=1,
        eos_ids=frozenset({2}),
        unknown_id=0,
        add_bos=True,
        add_space_prefix=True,
    )


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_vocabulary: Vocabulary) -> BpeTokenizer:
    return BpeTokenizer.from_vocabulary(sentencepiece_vocabulary)


@pytest.fixture(scope="session")
def cut_at_stop() -> Callable[[str, tuple[str, ...]], tuple[str, str | None]]:
    """What stop strings make of a whole text: the reference for the parts that see it in pieces."""

    def cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
        # the match that is complete first, of those the one that starts first
        matches = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
        if not matches:
            return text, None
        _, start, stop = min(matches)
        return text[:start], stop

    return cut


MakeVocabulary = Callable[..., Vocabulary]


@pytest.fixture(scope="session")
def make_vocabulary() -> MakeVocabulary:
    """Makes a small byte-level vocabulary: "a", "b", "ab", and the control token <end>; arguments change it."""

    def make(**changes: Any) -> Vocabulary:
        fields: dict[str, Any] = {
            "model": "gpt2",
            "tokens": ("a", "b", "ab", "<end>"),
            "kinds": (1, 1, 1, 3),
            "merges": ("a b",),
            "pre": "gpt-2",
            "eos_ids": frozenset({3}),
        }
        return Vocabulary(**fields | changes)

    return make


@pytest.fixture(scope="session")
def make_pieces_vocabulary() -> MakeVocabulary:
    """Makes a small SentencePiece vocabulary: <unk>, <s>, all bytes, then ``pieces`` with falling scores."""

    def make(pieces: tuple[str, ...], **changes: Any) -> Vocabulary:
        octets = tuple(f"<0x{byte:02X}>" for byte in range(256))
        fields: dict[str, Any] = {
            "model": "llama",
            "tokens": ("<unk>", "<s>", *octets, *pieces),
            "kinds": (2, 3, *[6] * 256, *[1] * len(pieces)),
            "scores": (*[0.0] * 258, *(-float(i) for i in range(len(pieces)))),
            "bos_id": 1,
            "unknown_id": 0,
        }
        return Vocabulary(**fields | changes)

    return make
