"""The parts of a BPE tokenizer, and how a vocabulary becomes them.

Owns: BpeParts, and the assembly of the compiled tokenizer from a Vocabulary.
Must not know: JSON, which texts are encoded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import attrs
from tokenizers import AddedToken, Tokenizer, models, normalizers

from trioserve.errors import ModelError
from trioserve.text.pieces import SPACE, byte_level_bytes, byte_value, merges_by_score, sentencepiece_bytes
from trioserve.text.pretokenizers import word_rule
from trioserve.text.vocabulary import TokenKind, Vocabulary

UNBOUNDED: Final = sys.maxsize
"""BpeParts.max_token_bytes where one token may stand for any amount of text."""
NFC_SHRINK: Final = 3
"""A text has at most this many times the UTF-8 bytes of its normal form C: three Hangul letters, 3 bytes each, become
one syllable of 3 bytes."""
_MARKS: Final = (TokenKind.CONTROL, TokenKind.UNKNOWN)


@attrs.frozen(eq=False, kw_only=True)
class BpeParts:
    """What a tokenizer consists of. V ids, 0 to V - 1."""

    backend: Tokenizer
    """Splits and merges; puts nothing around a text."""
    pieces: tuple[bytes, ...]
    """[V] what each id stands for inside a text; b"" for marks and for ids that stand for nothing."""
    marks: Mapping[int, str]
    """The ids that are recognised in a text but stand for none -> how they are written."""
    max_token_bytes: int
    """UTF-8 bytes of text that one token may stand for, characters aside for which there is no token at all."""


def longest_token(pieces: tuple[bytes, ...], marks: Mapping[int, str]) -> int:
    """Bytes of the longest piece or mark."""
    return max(max(map(len, pieces)), max((len(mark.encode()) for mark in marks.values()), default=0))


def parts_of_vocabulary(vocabulary: Vocabulary) -> BpeParts:
    """The tokenizer that a vocabulary describes.

    Raises:
        ModelError: its ``pre`` is not known, or it has no token for some texts.
    """
    pieces = _pieces(vocabulary)
    kinds = enumerate(vocabulary.kinds)
    marks = {token_id: vocabulary.tokens[token_id] for token_id, kind in kinds if kind in _MARKS}
    longest = longest_token(pieces, marks)
    if vocabulary.model == "gpt2":
        backend = _byte_level(vocabulary)
        bound = longest * NFC_SHRINK if word_rule(vocabulary.pre).nfc else longest
    else:
        backend = _sentencepiece(vocabulary)
        # without a token for each byte, a run of unknown characters becomes one unknown token
        bound = longest if _has_all_bytes(vocabulary) else UNBOUNDED
    return BpeParts(backend=backend, pieces=pieces, marks=marks, max_token_bytes=bound)


def _pieces(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    spell = byte_level_bytes if vocabulary.model == "gpt2" else sentencepiece_bytes
    pieces = []
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind is TokenKind.NORMAL:
            pieces.append(spell(token))
        elif kind is TokenKind.USER_DEFINED:
            pieces.append(token.encode())
        elif kind is TokenKind.BYTE:
            pieces.append(bytes([int(token[3:5], 16)]))
        else:
            pieces.append(b"")
    return tuple(pieces)


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    rule = word_rule(vocabulary.pre)
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    backend = Tokenizer(models.BPE(vocab=_ids(vocabulary), merges=merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.pre_tokenizer()
    _add_tokens(backend, vocabulary)
    return backend


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.unknown_id is None and not _has_all_bytes(vocabulary):
        raise ModelError("the vocabulary has neither a token for each byte nor one for unknown text")
    scored = zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True)
    scores = {token: score for token, kind, score in scored if kind is TokenKind.NORMAL}
    model = models.BPE(
        vocab=_ids(vocabulary),
        merges=merges_by_score(scores),
        unk_token=None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    if vocabulary.add_space_prefix:
        # in front of the text and after each token that is recognised in it, as llama.cpp and the models' own do
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    else:
        backend.normalizer = spaces
    _add_tokens(backend, vocabulary)
    return backend


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}


def _has_all_bytes(vocabulary: Vocabulary) -> bool:
    kinds = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return len({byte_value(token) for token, kind in kinds if kind is TokenKind.BYTE}) == 256


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    """Have the tokens that are not made by merges recognised wherever they are written, the longest first."""
    written = [(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if token]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token, kind in written if kind in _MARKS])
    user_defined = [token for token, kind in written if kind is TokenKind.USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
