"""BpeTokenizer from a Hugging Face tokenizer.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from tokenizers import decoders

from trioserve.errors import ModelError
from trioserve.text.bpe import parts_of_vocabulary
from trioserve.text.tokenizer import BpeTokenizer
from trioserve.text.vocabulary import Vocabulary

BYTES = {f"<0x{byte:02X}>": 10 + byte for byte in range(256)}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LOWER = {"type": "Lowercase"}
NFC = {"type": "NFC"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}


class Encoded(Protocol):
    text: str
    ids: list[int]


class SentencePieceFile(Protocol):
    texts: Sequence[Encoded]


def added(token_id: int, content: str, **changes: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags, **changes}


def byte_level(model: dict[str, Any] | None = None, **changes: Any) -> str:
    """A file with the tokens "a", "b", "ab", "Ġ", and the special token <s> with id 4."""
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}
    fields = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(4, "<s>")],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": bpe | (model or {}),
    }
    return json.dumps(fields | changes)


def sentencepiece_like(**changes: Any) -> str:
    """A file with the tokens <unk> (0), <s> (1), "▁" (2), "a" (3) and all bytes (10 to 265)."""
    model = {
        "vocab": {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3} | BYTES,
        "merges": [],
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    fields: dict[str, Any] = {
        "model": model,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>")],
        "normalizer": {"type": "Sequence", "normalizers": [PREPEND, SPACES]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    }
    return byte_level(**fields | changes)


def load(text: str | bytes, **arguments: Any) -> BpeTokenizer:
    return BpeTokenizer.from_json(text, **{"eos_ids": [], **arguments})


def encode(tokenizer: BpeTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False)


# The same tokenizer from a vocabulary and from a file


def test_a_byte_level_file_gives_the_same_tokenizer_as_the_vocabulary(
    smollm2_vocabulary: Vocabulary, smollm2: BpeTokenizer, smollm2_texts: list[Encoded]
) -> None:
    backend = parts_of_vocabulary(smollm2_vocabulary).backend
    backend.decoder = decoders.ByteLevel()
    tokenizer = load(backend.to_str(), eos_ids=[2])
    assert [encode(tokenizer, item.text) for item in smollm2_texts] == [item.ids for item in smollm2_texts]
    assert tokenizer.vocab_size == smollm2.vocab_size
    assert tokenizer.max_token_bytes == smollm2.max_token_bytes
    assert all(tokenizer.token_bytes(i) == smollm2.token_bytes(i) for i in range(smollm2.vocab_size))


def test_a_sentencepiece_file_gives_the_same_tokenizer_as_the_vocabulary(
    sentencepiece_vocabulary: Vocabulary, sentencepiece: BpeTokenizer, sentencepiece_file: SentencePieceFile
) -> None:
    backend = parts_of_vocabulary(sentencepiece_vocabulary).backend
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = load(backend.to_str().encode(), bos_id=1, add_bos=True)
    texts = sentencepiece_file.texts
    assert [encode(tokenizer, item.text) for item in texts] == [item.ids for item in texts]
    assert tokenizer.encode("a", add_special=True)[0] == 1
    assert tokenizer.max_token_bytes == sentencepiece.max_token_bytes
    assert all(tokenizer.token_bytes(i) == sentencepiece.token_bytes(i) for i in range(sentencepiece.vocab_size))


# What a file says besides


def test_limits_of_the_program_that_saved_the_file_do_not_count() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    assert encode(load(byte_level(truncation=truncation, padding=padding)), "a a a") == [0, 3, 0, 3, 0]


PUTS_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
}


@pytest.mark.parametrize(
    ("post_processor", "add_bos", "ids"),
    [
        (PUTS_BOS, None, [4, 0]),
        (PUTS_BOS, True, [4, 0]),
        (PUTS_BOS, False, [0]),
        (None, None, [0]),
        (None, True, [4, 0]),
        (BYTE_LEVEL, None, [0]),
    ],
)
def test_bos_is_put_in_front_if_asked_for_or_if_the_file_does_so(
    post_processor: object, add_bos: bool | None, ids: list[int]
) -> None:
    # double-bos
    tokenizer = load(byte_level(post_processor=post_processor), bos_id=4, add_bos=add_bos)
    assert tokenizer.encode("a", add_special=True) == ids
    assert tokenizer.encode("a", add_special=False) == [0]
    assert tokenizer.encode("<s>a", add_special=True) == [4, 0]


def test_a_bos_that_is_to_be_added_must_exist() -> None:
    with pytest.raises(ModelError, match="has none"):
        load(byte_level(), add_bos=True)


def test_ids_of_a_larger_embedding_stand_for_nothing() -> None:
    tokenizer = load(byte_level(), vocab_size=10)
    assert tokenizer.vocab_size == 10
    assert tokenizer.token_bytes(9) == b""
    with pytest.raises(IndexError):
        tokenizer.token_bytes(10)
    assert load(byte_level()).vocab_size == 5


def test_added_tokens_are_text_unless_special() -> None:
    tokens = [added(4, "<s>"), added(5, "<think>", special=False), added(6, "é", special=False)]
    tokenizer = load(byte_level(added_tokens=tokens))
    assert encode(tokenizer, "<think>é<s>") == [5, 6, 4]
    assert [tokenizer.token_bytes(i) for i in (4, 5, 6)] == [b"", b"<think>", "é".encode()]
    assert tokenizer.decode([5, 4], skip_special=False) == "<think><s>"


def test_an_added_token_of_normalized_text_writes_a_space_as_sentencepiece_does() -> None:
    tokens = [added(0, "<unk>"), added(5, "▁▁", special=False, normalized=True), added(6, "▁", special=False)]
    tokenizer = load(sentencepiece_like(added_tokens=tokens))
    assert tokenizer.token_bytes(5) == b"  "
    assert tokenizer.token_bytes(6) == "▁".encode()


def test_byte_tokens_are_bytes_only_where_the_file_falls_back_to_them() -> None:
    assert load(sentencepiece_like()).token_bytes(10 + 0xE9) == b"\xe9"
    tokens = {"vocab": {"a": 0, "<0x41>": 1}, "merges": []}
    assert load(byte_level(tokens)).token_bytes(1) == b"<0x41>"


# The bound on a token's length


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (byte_level(), len("<s>")),
        (byte_level(normalizer=NFC), 3 * len("<s>")),
        (byte_level(normalizer={"type": "Sequence", "normalizers": [NFC]}), 3 * len("<s>")),
        (byte_level(normalizer=LOWER), sys.maxsize),
        (byte_level(normalizer={"type": "Replace", "pattern": {"String": "  "}, "content": ""}), sys.maxsize),
        (byte_level(normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}), sys.maxsize),
        (byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, BYTE_LEVEL]}), None),
        (byte_level(added_tokens=[added(4, "<s>", rstrip=True)]), sys.maxsize),
        (byte_level(added_tokens=[added(4, "<s>", lstrip=True)]), sys.maxsize),
        (sentencepiece_like(), len("<unk>")),
        (
            sentencepiece_like(
                model={"vocab": {"<unk>": 0, "a": 1, "b": 2}, "merges": [], "unk_token": "<unk>", "fuse_unk": True},
                added_tokens=[],
            ),
            sys.maxsize,
        ),
    ],
)
def test_the_bound_holds_whatever_the_file_does_to_a_text(text: str, bound: int | None) -> None:
    assert load(text).max_token_bytes == (sys.maxsize if bound is None else bound)


@pytest.mark.parametrize(("behavior", "bounded"), [("Isolated", True), ("Removed", False)])
def test_a_split_that_drops_what_it_finds_leaves_no_bound(behavior: str, bounded: bool) -> None:
    split = {"type": "Split", "pattern": {"String": "-"}, "behavior": behavior, "invert": False}
    tokenizer = load(byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}))
    assert (tokenizer.max_token_bytes < sys.maxsize) is bounded


# Broken files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "can't be read"),
        ("[]", "can't be read"),
        ("{}", "missing required field `model`"),
        (b"\xff{}", "can't be read"),
        (byte_level().encode().replace(b'"1.0"', b'"\xff"'), "can't be read"),
        ('{"a": "\ud800"}', "can't be read"),
        ("[" * 100_000, "can't be read"),
        (byte_level({"vocab": {"a": "x"}}), r"\$.model.vocab"),
        (byte_level({"merges": ["a c"]}), "can't be read"),
        (byte_level({"merges": "ab"}), "can't be read"),
        (byte_level({"vocab": {"a": -1}, "merges": []}), "can't be read|id -1"),
        (byte_level({"vocab": {"a": 2**30}, "merges": []}), "id 1073741824"),
        (byte_level(added_tokens=[added(2**31, "x")]), "id 2147483648"),
        (byte_level({"vocab": {}, "merges": []}, added_tokens=[]), "has no tokens"),
        (byte_level(post_processor=PUTS_BOS | {"special_tokens": {}}), "can't be read"),
        (byte_level({"unk_token": "<unk>"}, pre_tokenizer=None), "can't be read"),
        (byte_level({"dropout": 0.1}), "at random"),
        (byte_level({"continuing_subword_prefix": "##"}), "prefix or suffix"),
        (byte_level({"end_of_word_suffix": "</w>"}), "prefix or suffix"),
        (byte_level(decoder=None), "in a way that is not known"),
        (byte_level(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "in a way that is not known"),
        (
            byte_level(model={"type": "WordPiece", "unk_token": "a", "max_input_chars_per_word": 9, "vocab": {"a": 0}}),
            "holds a WordPiece tokenizer",
        ),
        (json.dumps({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}}), "can't be read|Unigram"),
        (byte_level(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}), "can't be"),
    ],
)
def test_a_file_that_is_broken_or_of_another_kind_is_refused_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", [{"eos_ids": [5]}, {"eos_ids": [-1]}, {"bos_id": 5, "add_bos": True}])
def test_special_ids_must_be_tokens(arguments: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="is not one of the tokenizer's 5 tokens"):
        load(byte_level(), **arguments)
