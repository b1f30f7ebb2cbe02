"""From GGUF metadata to a Vocabulary: case gguf-pretokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trioserve.errors import ModelError
from trioserve.model.fields import Fields
from trioserve.model.gguf_vocabulary import GgufVocabulary, read_vocabulary
from trioserve.text.vocabulary import TokenKind

PREFIX = "tokenizer.ggml."
BYTE_LEVEL = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"),
    "token_type": np.array([3, 3, 3, 1, 1, 1], dtype=np.int32),
    "merges": ("a b",),
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SENTENCEPIECE = {
    "model": "llama",
    "tokens": ("<unk>", "<s>", "</s>", "▁a", "b"),
    "token_type": np.array([2, 3, 3, 1, 1], dtype=np.int32),
    "scores": np.array([0, 0, 0, -1, -2], dtype=np.float32),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}


def vocabulary(base: dict[str, object], **changes: object) -> GgufVocabulary:
    """What is read from these tokenizer.ggml.* keys; the embedding has a row for every token of ``base``."""
    values = {f"{PREFIX}{key}": value for key, value in (base | changes).items()}
    return read_vocabulary(Fields(Path("a.gguf"), values), len(base["tokens"]))


def error(base: dict[str, object], **changes: object) -> str:
    with pytest.raises(ModelError) as caught:
        vocabulary(base, **changes)
    return str(caught.value)


def test_a_byte_level_vocabulary() -> None:
    found = vocabulary(BYTE_LEVEL)

    ours = found.vocabulary
    assert found.warnings == ()
    assert found.template is None
    assert (ours.model, ours.pre, ours.tokens, ours.merges) == ("gpt2", "smollm", BYTE_LEVEL["tokens"], ("a b",))
    assert ours.kinds == (TokenKind.CONTROL,) * 3 + (TokenKind.NORMAL,) * 3
    assert (ours.bos_id, ours.unknown_id, ours.pad_id) == (1, None, None)
    assert (found.bos_token, found.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (ours.add_bos, ours.add_eos, ours.add_space_prefix) == (False, False, False)


def test_a_sentencepiece_vocabulary() -> None:
    found = vocabulary(SENTENCEPIECE)

    ours = found.vocabulary
    assert found.warnings == ()
    assert (ours.model, ours.tokens, ours.scores) == ("llama", SENTENCEPIECE["tokens"], (0.0, 0.0, 0.0, -1.0, -2.0))
    assert (ours.bos_id, ours.unknown_id, ours.eos_ids) == (1, 0, {2})
    assert (ours.add_bos, ours.add_space_prefix) == (True, True)


def test_the_file_decides_about_bos_eos_and_the_space() -> None:
    flags = {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}

    ours = vocabulary(SENTENCEPIECE, **flags).vocabulary

    assert (ours.add_bos, ours.add_eos, ours.add_space_prefix) == (False, True, False)


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("smollm", False)])
def test_a_bos_token_is_the_default_where_models_want_one(pre: str, expected: bool) -> None:
    assert vocabulary(BYTE_LEVEL, pre=pre).vocabulary.add_bos is expected
    assert vocabulary(BYTE_LEVEL, pre=pre, add_bos_token=False).vocabulary.add_bos is False


def test_without_a_pre_tokenizer_there_is_a_warning() -> None:
    found = vocabulary(BYTE_LEVEL, pre=None)

    assert found.vocabulary.pre == ""
    assert [warning.split(":")[0] for warning in found.warnings] == ["the file has no tokenizer.ggml.pre"]


def test_without_token_types_there_is_a_warning() -> None:
    found = vocabulary(BYTE_LEVEL, token_type=None)

    assert set(found.vocabulary.kinds) == {TokenKind.NORMAL}
    assert [warning.split(":")[0] for warning in found.warnings] == ["the file has no tokenizer.ggml.token_type"]


def test_all_tokens_that_end_something_end_a_sequence() -> None:
    assert vocabulary(BYTE_LEVEL).vocabulary.eos_ids == {0, 2}  # <|endoftext|> is known by its name
    assert vocabulary(BYTE_LEVEL, eos_token_id=3, eot_token_id=4, eom_token_id=5).vocabulary.eos_ids == {0, 2, 3, 4, 5}


def test_text_that_looks_like_an_end_token_is_none() -> None:
    kinds = np.array([1, 3, 1, 1, 1, 1], dtype=np.int32)

    assert vocabulary(BYTE_LEVEL, token_type=kinds, eos_token_id=3).vocabulary.eos_ids == {3}


def test_without_any_end_token_there_is_a_warning() -> None:
    found = vocabulary(SENTENCEPIECE, eos_token_id=None)

    assert found.vocabulary.eos_ids == frozenset()
    assert [warning.split(":")[0] for warning in found.warnings] == ["the file names no end-of-sequence token"]


def test_the_chat_template_is_taken_along() -> None:
    values = {f"{PREFIX}{key}": value for key, value in BYTE_LEVEL.items()} | {"tokenizer.chat_template": "{{ x }}"}

    assert read_vocabulary(Fields(Path("a.gguf"), values), 6).template == "{{ x }}"


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.int64])
def test_token_types_may_be_any_integers(kind: type) -> None:
    kinds = np.array([3, 3, 3, 1, 1, 1], dtype=kind)

    assert vocabulary(BYTE_LEVEL, token_type=kinds).vocabulary.kinds[0] is TokenKind.CONTROL


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (BYTE_LEVEL, {"model": None}, "a.gguf: tokenizer.ggml.model is missing"),
        (BYTE_LEVEL, {"model": "t5"}, "a.gguf: tokenizer.ggml.model 't5' is not supported (supported: gpt2, llama)"),
        (BYTE_LEVEL, {"tokens": None}, "a.gguf: tokenizer.ggml.tokens is missing"),
        (
            BYTE_LEVEL,
            {"tokens": ("a", "b")},
            "a.gguf: tokenizer.ggml.tokens has 2 tokens, but the embedding 6 rows",
        ),
        (BYTE_LEVEL, {"tokens": np.arange(6)}, "a.gguf: tokenizer.ggml.tokens is not an array of strings"),
        (BYTE_LEVEL, {"tokens": "abc"}, "a.gguf: tokenizer.ggml.tokens is not an array of strings"),
        (
            BYTE_LEVEL,
            {"token_type": np.ones(6, dtype=np.float32)},
            "a.gguf: tokenizer.ggml.token_type is not an array of integers",
        ),
        (BYTE_LEVEL, {"token_type": ("1",) * 6}, "a.gguf: tokenizer.ggml.token_type is not an array of integers"),
        (BYTE_LEVEL, {"token_type": 1}, "a.gguf: tokenizer.ggml.token_type is not an array of integers"),
        (BYTE_LEVEL, {"merges": 3}, "a.gguf: tokenizer.ggml.merges is not an array of strings"),
        (BYTE_LEVEL, {"eos_token_id": "2"}, "a.gguf: tokenizer.ggml.eos_token_id is '2', not an integer"),
        (BYTE_LEVEL, {"add_bos_token": 1}, "a.gguf: tokenizer.ggml.add_bos_token is 1, not a boolean"),
        (
            SENTENCEPIECE,
            {"scores": np.zeros(5, dtype=np.int32)},
            "a.gguf: tokenizer.ggml.scores is not an array of floating-point numbers",
        ),
        # the Vocabulary's own checks
        (BYTE_LEVEL, {"token_type": np.ones(5, dtype=np.int32)}, "the vocabulary has 6 tokens but 5 token kinds"),
        (BYTE_LEVEL, {"token_type": np.full(6, 9)}, "the vocabulary has a token of an unknown kind"),
        (BYTE_LEVEL, {"eos_token_id": 6}, "the end token is 6, but ids go from 0 to 5"),
        (BYTE_LEVEL, {"merges": None}, "a byte-level BPE vocabulary needs its list of merges"),
        (SENTENCEPIECE, {"scores": None}, "the vocabulary has 5 tokens but 0 scores"),
    ],
)
def test_metadata_of_the_wrong_type_is_refused(
    base: dict[str, object], changes: dict[str, object], message: str
) -> None:
    assert error(base, **changes).startswith(message)
