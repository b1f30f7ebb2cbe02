"""Reads the text of a Hugging Face ``tokenizer.json``.

Owns: what of that file is understood. Must not know: where it was found.

The compiled ``tokenizers`` package reads the whole file and does all the work. What is read here besides is what it
does not tell: the exact bytes of each id, and how much text one token may stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from tokenizers import Tokenizer

from trioserve.errors import ModelError
from trioserve.text.bpe import NFC_SHRINK, UNBOUNDED, BpeParts, longest_token
from trioserve.text.pieces import BYTE_LETTERS, SPACE, byte_level_bytes, byte_value, sentencepiece_bytes

MAX_TOKENS: Final = 2**22
"""Ids must be below this: what follows makes lists of that length."""


class _Component(msgspec.Struct):
    """A normalizer, pre-tokenizer or decoder, or a sequence of them."""

    type: str
    normalizers: list[_Component] = []
    pretokenizers: list[_Component] = []
    decoders: list[_Component] = []
    pattern: dict[str, str] = {}
    content: str = ""
    behavior: str = ""

    def leaves(self) -> Iterator[_Component]:
        if self.type != "Sequence":
            yield self
        for inner in (*self.normalizers, *self.pretokenizers, *self.decoders):
            yield from inner.leaves()


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    # "Unigram" has a list here
    vocab: dict[str, int] | list[object]
    type: str = "BPE"
    dropout: float | None = None
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []
    normalizer: _Component | None = None
    pre_tokenizer: _Component | None = None
    decoder: _Component | None = None


def parts_of_json(text: str | bytes, vocab_size: int) -> BpeParts:
    """The tokenizer of a file. Ids up to ``vocab_size`` without a token stand for nothing.

    Raises:
        ModelError: the file is broken, or not a BPE tokenizer of a kind that is known here.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        file = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    vocabulary = _vocabulary(file)
    byte_level = _is_byte_level(file)
    backend = _backend(text)
    pieces = _pieces(file, vocabulary, byte_level, vocab_size)
    marks = {token.id: token.content for token in file.added_tokens if token.special}
    bounded = _keeps_all_text(file, vocabulary, byte_level)
    shrink = NFC_SHRINK if any(step.type == "NFC" for step in _leaves(file.normalizer)) else 1
    return BpeParts(
        backend=backend,
        pieces=pieces,
        marks=marks,
        max_token_bytes=longest_token(pieces, marks) * shrink if bounded else UNBOUNDED,
    )


def _backend(text: str) -> Tokenizer:
    try:
        backend = Tokenizer.from_str(text)
        # some files carry the limits of the program that saved them
        backend.no_truncation()
        backend.no_padding()
        # what is wrong with unknown characters or special tokens comes out when they are met
        backend.encode("\U0010fffd", add_special_tokens=True)
    except BaseException as error:
        # the package raises Exception itself, and its panics are not even that
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _unreadable(error) from error  # noqa: ASYNC104  # no Cancelled comes here
        raise
    return backend


def _unreadable(error: BaseException) -> ModelError:
    return ModelError(f"tokenizer.json can't be read: {' '.join(str(error).split())}")


def _leaves(component: _Component | None) -> list[_Component]:
    return [] if component is None else list(component.leaves())


def _vocabulary(file: _File) -> Mapping[str, int]:
    model = file.model
    if model.type != "BPE" or not isinstance(model.vocab, dict):
        raise ModelError(f"tokenizer.json holds a {model.type} tokenizer; only BPE is supported")
    if model.dropout:
        raise ModelError("tokenizer.json makes tokens at random (dropout); that is for training only")
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise ModelError("tokenizer.json marks parts of words by a prefix or suffix, which is not supported")
    for token_id in (*model.vocab.values(), *(token.id for token in file.added_tokens)):
        if not 0 <= token_id < MAX_TOKENS:
            raise ModelError(f"tokenizer.json has a token with id {token_id}; ids go from 0 to {MAX_TOKENS - 1}")
    return model.vocab


def _is_byte_level(file: _File) -> bool:
    decoders = _leaves(file.decoder)
    if any(step.type == "ByteLevel" for step in decoders):
        return True
    if any(step.type in ("ByteFallback", "Metaspace") or step.pattern == {"String": SPACE} for step in decoders):
        return False
    raise ModelError(
        "tokenizer.json turns tokens into text in a way that is not known (neither bytes nor SentencePiece)"
    )


def _pieces(file: _File, vocabulary: Mapping[str, int], byte_level: bool, vocab_size: int) -> tuple[bytes, ...]:
    highest = max((*vocabulary.values(), *(token.id for token in file.added_tokens)), default=-1)
    size = max(highest + 1, vocab_size)
    if size == 0:
        raise ModelError("tokenizer.json has no tokens")
    pieces = [b""] * size
    spell = byte_level_bytes if byte_level else sentencepiece_bytes
    for token, token_id in vocabulary.items():
        pieces[token_id] = spell(token)
    if file.model.byte_fallback:
        for token, token_id in vocabulary.items():
            byte = byte_value(token)
            if byte is not None:
                pieces[token_id] = bytes([byte])
    for added in file.added_tokens:
        # a token looked for in normalized text is written as that is: with U+2581 for a space
        text = sentencepiece_bytes(added.content) if added.normalized and not byte_level else added.content.encode()
        pieces[added.id] = b"" if added.special else text
    return tuple(pieces)


def _keeps_all_text(file: _File, vocabulary: Mapping[str, int], byte_level: bool) -> bool:
    """Whether every character of a text ends up in some token, so that a token's length bounds the text it is for."""
    for step in _leaves(file.normalizer):
        grows = step.type == "Replace" and 0 < len(step.pattern.get("String", "").encode()) <= len(
            step.content.encode()
        )
        if not (grows or step.type in ("NFC", "Prepend")):
            return False
    for step in _leaves(file.pre_tokenizer):
        kept = step.type == "Split" and step.behavior != "Removed"
        if not (kept or step.type in ("ByteLevel", "Digits", "Metaspace")):
            return False
    if any(token.lstrip or token.rstrip for token in file.added_tokens):
        return False
    # else unknown characters, however many, may become one unknown token
    return byte_level or (
        file.model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(len(BYTE_LETTERS)))
    )
