"""The tokenizer part of a GGUF file's metadata.

Owns: the tokenizer.* keys, and their defaults. Must not know: how text is tokenized, tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np

from trioserve.model.fields import Fields
from trioserve.model.files import shown
from trioserve.text.vocabulary import TokenKind, Vocabulary

END_TOKENS: Final = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|eot|>",
        "<EOT>",
    }
)
"""Control tokens that end a turn or a text wherever they exist. Files name one end token; chat models use several."""

_PRE_WITH_BOS: Final = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "tekken"})
"""Values of tokenizer.ggml.pre whose models want a BOS token unless the file says otherwise."""
_END_ID_KEYS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@attrs.frozen
class GgufVocabulary:
    """A vocabulary, and what had to be assumed to make it."""

    vocabulary: Vocabulary
    bos_token: str
    """How the BOS token is written, for templates; "" if there is none."""
    eos_token: str
    """... and the one that the file names as its end-of-sequence token."""
    template: str | None
    """Source of the chat template."""
    warnings: tuple[str, ...]


def read_vocabulary(fields: Fields, vocab_size: int) -> GgufVocabulary:
    """The tokenizer of a GGUF file whose embedding has ``vocab_size`` rows.

    Raises:
        ModelError: a key is missing or of another type, or they contradict each other.
    """
    model = fields.text("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise fields.fault("tokenizer.ggml.model", f"{shown(model)} is not supported (supported: gpt2, llama)")
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    if tokens is None:
        raise fields.fault("tokenizer.ggml.tokens", "is missing")
    if len(tokens) != vocab_size:
        raise fields.fault("tokenizer.ggml.tokens", f"has {len(tokens)} tokens, but the embedding {vocab_size} rows")
    warnings = []
    kinds = _integers(fields, "tokenizer.ggml.token_type")
    if kinds is None:
        warnings.append("the file has no tokenizer.ggml.token_type: special tokens are taken for text")
        kinds = [int(TokenKind.NORMAL)] * len(tokens)
    pre = fields.text("tokenizer.ggml.pre", "")
    if model == "gpt2" and not pre:
        warnings.append("the file has no tokenizer.ggml.pre: text may be split into other tokens than in training")
    is_sentencepiece = model == "llama"
    vocabulary = Vocabulary(
        model="llama" if is_sentencepiece else "gpt2",
        tokens=tokens,
        kinds=kinds,
        scores=tuple(_floats(fields, "tokenizer.ggml.scores") or ()) if is_sentencepiece else (),
        merges=() if is_sentencepiece else _strings(fields, "tokenizer.ggml.merges") or (),
        pre="" if is_sentencepiece else pre,
        bos_id=fields.integer("tokenizer.ggml.bos_token_id", None),
        eos_ids=_eos_ids(fields, tokens, kinds),
        unknown_id=fields.integer("tokenizer.ggml.unknown_token_id", None),
        pad_id=fields.integer("tokenizer.ggml.padding_token_id", None),
        # where a file leaves these two out, its makers rely on what llama.cpp assumes
        add_bos=fields.boolean("tokenizer.ggml.add_bos_token", is_sentencepiece or pre in _PRE_WITH_BOS),
        add_space_prefix=fields.boolean("tokenizer.ggml.add_space_prefix", is_sentencepiece),
        add_eos=fields.boolean("tokenizer.ggml.add_eos_token", False),
    )
    if not vocabulary.eos_ids:
        warnings.append("the file names no end-of-sequence token: answers end at max_tokens only")
    # the Vocabulary has checked both ids
    bos_id, eos_id = vocabulary.bos_id, fields.integer(_END_ID_KEYS[0], None)
    return GgufVocabulary(
        vocabulary=vocabulary,
        bos_token="" if bos_id is None else tokens[bos_id],
        eos_token="" if eos_id is None else tokens[eos_id],
        template=fields.text("tokenizer.chat_template", None),
        warnings=tuple(warnings),
    )


def _eos_ids(fields: Fields, tokens: tuple[str, ...], kinds: Iterable[int]) -> frozenset[int]:
    named = {fields.integer(key, None) for key in _END_ID_KEYS}
    known = {
        token_id
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == TokenKind.CONTROL and token in END_TOKENS
    }
    return frozenset(known | {token_id for token_id in named if token_id is not None})


def _strings(fields: Fields, key: str) -> tuple[str, ...] | None:
    value = fields.value(key)
    if value is None or isinstance(value, tuple):
        return value
    raise fields.fault(key, "is not an array of strings")


def _integers(fields: Fields, key: str) -> list[int] | None:
    value = fields.value(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise fields.fault(key, "is not an array of integers")
    return [int(number) for number in value.tolist()]


def _floats(fields: Fields, key: str) -> list[float] | None:
    value = fields.value(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        raise fields.fault(key, "is not an array of floating-point numbers")
    return [float(number) for number in value.tolist()]
