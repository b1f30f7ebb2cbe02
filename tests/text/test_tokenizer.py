"""BpeTokenizer from a vocabulary: ids, bytes, special tokens, BOS."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.abc import Tokenizer
from trioserve.errors import ModelError, ParamError
from trioserve.text.pieces import BYTE_LETTERS
from trioserve.text.tokenizer import BpeTokenizer
from trioserve.text.vocabulary import Vocabulary

MakeVocabulary = Callable[..., Vocabulary]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class Encoded(Protocol):
    text: str
    ids: list[int]


class SentencePieceFile(Protocol):
    texts: Sequence[Encoded]


def encode(tokenizer: BpeTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False)


# Ids


def test_ids_of_a_byte_level_model_are_those_of_transformers(
    smollm2: BpeTokenizer, smollm2_texts: list[Encoded]
) -> None:
    assert [encode(smollm2, item.text) for item in smollm2_texts] == [item.ids for item in smollm2_texts]


def test_ids_of_a_sentencepiece_model_are_those_of_sentencepiece(
    sentencepiece: BpeTokenizer, sentencepiece_file: SentencePieceFile
) -> None:
    texts = sentencepiece_file.texts
    assert [encode(sentencepiece, item.text) for item in texts] == [item.ids for item in texts]


@pytest.mark.parametrize("pre", ["", "default"])
def test_without_a_rule_for_words_the_default_one_is_used(make_vocabulary: MakeVocabulary, pre: str) -> None:
    # gguf-pretokenizer: "!" is a word of its own there, and so are three digits of six
    tokens = ("!", "1", "11", "111", "1111", "a", "a!", "!a", "<end>")
    vocabulary = make_vocabulary(
        tokens=tokens, kinds=(*[1] * 8, 3), merges=("1 1", "11 1", "11 11", "a !", "! a"), pre=pre, eos_ids={8}
    )
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary)
    assert [tokens[i] for i in encode(tokenizer, "a!a1111")] == ["a", "!", "a", "111", "1"]


def test_an_unknown_rule_for_words_is_refused(make_vocabulary: MakeVocabulary) -> None:
    # gguf-pretokenizer
    with pytest.raises(ModelError, match="'made-up'"):
        BpeTokenizer.from_vocabulary(make_vocabulary(pre="made-up"))


def test_a_rule_of_whole_words_takes_a_word_that_no_merge_makes(make_vocabulary: MakeVocabulary) -> None:
    tokens, kinds = ("a", "b", "ab", "abb", "<end>"), (1, 1, 1, 1, 3)
    by_merges, whole = (
        BpeTokenizer.from_vocabulary(make_vocabulary(tokens=tokens, kinds=kinds, pre=pre, eos_ids={4}))
        for pre in ("dbrx", "llama-bpe")
    )
    assert encode(by_merges, "abb") == [2, 1]
    assert encode(whole, "abb") == [3]


def test_a_character_without_tokens_is_left_out_as_the_models_own_tokenizer_does(smollm2: BpeTokenizer) -> None:
    assert encode(smollm2, "a\x04 b") == encode(smollm2, "a b")
    assert encode(smollm2, "\x04") == []


def test_sentencepiece_puts_a_space_in_front_only_where_the_model_wants_it(
    make_pieces_vocabulary: MakeVocabulary,
) -> None:
    pieces = ("a", "▁", "▁a")
    without, with_space = (
        BpeTokenizer.from_vocabulary(make_pieces_vocabulary(pieces, add_space_prefix=prefix))
        for prefix in (False, True)
    )
    assert encode(without, "a<s>a") == [258, 1, 258]
    assert encode(with_space, "a<s>a") == [260, 1, 260]
    assert encode(with_space, " a") == [259, 260]
    assert encode(with_space, "") == []


def test_text_without_a_piece_becomes_bytes_or_else_unknown(make_pieces_vocabulary: MakeVocabulary) -> None:
    tokenizer = BpeTokenizer.from_vocabulary(make_pieces_vocabulary(("a",)))
    assert encode(tokenizer, "aé") == [258, 2 + 0xC3, 2 + 0xA9]
    no_bytes = make_pieces_vocabulary((), tokens=("<unk>", "<s>", "a"), kinds=(2, 3, 1), scores=(0.0, 0.0, 0.0))
    assert encode(BpeTokenizer.from_vocabulary(no_bytes), "aéé") == [2, 0]


def test_a_vocabulary_that_has_no_token_for_some_text_is_refused(make_pieces_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_pieces_vocabulary(
        (), tokens=("<s>", "a"), kinds=(3, 1), scores=(0.0, 0.0), bos_id=0, unknown_id=None
    )
    with pytest.raises(ModelError, match="neither a token for each byte nor one for unknown text"):
        BpeTokenizer.from_vocabulary(vocabulary)


def test_a_lone_surrogate_is_a_param_error(smollm2: BpeTokenizer) -> None:
    with pytest.raises(ParamError, match="not valid Unicode") as caught:
        encode(smollm2, "a\ud83d")
    assert caught.value.param is None


def test_threads_may_encode_at_the_same_time(smollm2: BpeTokenizer, smollm2_texts: list[Encoded]) -> None:
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda item: encode(smollm2, item.text), smollm2_texts * 4))
    assert many == [item.ids for item in smollm2_texts] * 4


def test_other_threads_run_while_a_long_text_is_encoded(smollm2: BpeTokenizer) -> None:
    text = "the quick brown fox " * 20_000
    started = threading.Event()
    turns = 0

    def turns_during_encode() -> int:
        started.set()
        encode(smollm2, text)
        return turns

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # so that no thread runs unless another one lets it
    try:
        with ThreadPoolExecutor(1) as pool:
            encoding = pool.submit(turns_during_encode)
            started.wait()
            while not encoding.done():
                turns += 1
                time.sleep(0)
    finally:
        sys.setswitchinterval(interval)
    assert encoding.result() > 100


# Special tokens


def test_control_and_user_defined_tokens_are_recognised_in_a_text(
    smollm2: BpeTokenizer, sentencepiece: BpeTokenizer
) -> None:
    assert encode(smollm2, "<|im_start|>")[0] == 1
    assert encode(smollm2, "a<|im_end|>b")[1] == 2
    assert 3 in encode(sentencepiece, "a<turn>b")
    assert encode(sentencepiece, "</s>") == [2]


def test_the_longest_special_token_is_taken(make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_vocabulary(tokens=("a", "b", "ab", "<a>", "<a><a>"), kinds=(1, 1, 1, 3, 4))
    assert encode(BpeTokenizer.from_vocabulary(vocabulary), "<a><a><a>") == [4, 3]


# BOS


@pytest.fixture(scope="module")
def with_bos(sentencepiece_vocabulary: Vocabulary) -> BpeTokenizer:
    return BpeTokenizer.from_vocabulary(sentencepiece_vocabulary)


def test_bos_comes_once_where_the_model_wants_it(with_bos: BpeTokenizer) -> None:
    # double-bos
    assert with_bos.encode("a", add_special=True) == [1, *encode(with_bos, "a")]
    assert with_bos.encode("<s>a", add_special=True) == encode(with_bos, "<s>a")
    assert with_bos.encode("", add_special=True) == [1]
    assert encode(with_bos, "a")[0] != 1


def test_no_bos_where_the_model_wants_none(smollm2: BpeTokenizer) -> None:
    # double-bos: SmolLM2's files name a BOS token, and say not to add it
    assert smollm2.encode("a", add_special=True) == encode(smollm2, "a")
    assert smollm2.encode("<|im_start|>a", add_special=True)[:2] == [1, encode(smollm2, "a")[0]]


# Bytes and text


def test_bytes_of_each_kind_of_token(make_pieces_vocabulary: MakeVocabulary, make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_pieces_vocabulary(
        (), tokens=("<unk>", "<s>", "▁a", "▁<u>", "[PAD]", "<0xE9>"), kinds=(2, 3, 1, 4, 5, 6), scores=(0.0,) * 6
    )
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary)
    assert [tokenizer.token_bytes(i) for i in range(6)] == [b"", b"", b" a", "▁<u>".encode(), b"", b"\xe9"]
    vocabulary = make_vocabulary(tokens=("Ġ", "b", "Ġb", "<é>", "<end>"), kinds=(1, 1, 1, 4, 3), merges=("Ġ b",))
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary)
    assert [tokenizer.token_bytes(i) for i in range(5)] == [b" ", b"b", b" b", "<é>".encode(), b""]


@pytest.mark.parametrize("token_id", [-1, 49152])
def test_an_id_that_is_not_in_the_vocabulary_is_an_index_error(smollm2: BpeTokenizer, token_id: int) -> None:
    with pytest.raises(IndexError):
        smollm2.token_bytes(token_id)
    with pytest.raises(IndexError):
        smollm2.decode([token_id])
    with pytest.raises(IndexError):
        smollm2.decode([token_id], skip_special=False)


def test_decode_leaves_special_tokens_out_unless_asked(smollm2: BpeTokenizer) -> None:
    ids = encode(smollm2, "<|im_start|>user\nhé<|im_end|>")
    assert smollm2.decode(ids) == "user\nhé"
    assert smollm2.decode(ids, skip_special=False) == "<|im_start|>user\nhé<|im_end|>"


def test_bytes_that_are_no_characters_decode_as_one_replacement(sentencepiece: BpeTokenizer) -> None:
    first_byte = 4
    assert sentencepiece.decode([first_byte + byte for byte in b"a\xe4\xb8b\xff"]) == "a\ufffdb\ufffd"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(text=TEXT)
def test_the_bytes_of_a_texts_ids_are_the_text(smollm2: BpeTokenizer, sentencepiece: BpeTokenizer, text: str) -> None:
    spelled = "".join(letter for letter in text if smollm2.decode(encode(smollm2, letter)) == letter)
    pieces = b"".join(map(smollm2.token_bytes, encode(smollm2, spelled)))
    assert pieces == spelled.encode()
    pieces = b"".join(map(sentencepiece.token_bytes, encode(sentencepiece, text)))
    # U+2581 is how a space is written, and there is one more in front
    assert pieces == (b" " if text else b"") + text.replace("▁", " ").encode()


# The bound on a token's length


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(text=TEXT)
def test_a_text_has_at_least_its_bytes_over_the_bound_tokens(
    smollm2: BpeTokenizer, sentencepiece: BpeTokenizer, text: str
) -> None:
    spelled = smollm2.decode(encode(smollm2, text))
    for tokenizer, size in ((smollm2, len(spelled.encode())), (sentencepiece, len(text.encode()))):
        assert size <= tokenizer.max_token_bytes * len(encode(tokenizer, text))


def test_the_bound_is_reached_by_the_longest_token_and_by_special_ones(
    smollm2: BpeTokenizer, make_vocabulary: MakeVocabulary
) -> None:
    longest = "\n" + " " * 80
    assert len(encode(smollm2, longest)) == 1
    assert smollm2.max_token_bytes == len(longest)
    assert BpeTokenizer.from_vocabulary(make_vocabulary()).max_token_bytes == len("<end>")


def test_the_bound_allows_for_what_normal_form_c_makes_shorter(make_vocabulary: MakeVocabulary) -> None:
    letters = {byte: letter for letter, byte in BYTE_LETTERS.items()}
    one, two, three = (letters[byte] for byte in "한".encode())
    vocabulary = make_vocabulary(
        tokens=(one, two, three, one + two, one + two + three),
        kinds=(1,) * 5,
        merges=(f"{one} {two}", f"{one + two} {three}"),
        pre="qwen2",
        eos_ids=frozenset(),
    )
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary)
    apart = "\u1112\u1161\u11ab"
    assert encode(tokenizer, apart) == [4]
    assert tokenizer.max_token_bytes == len(apart.encode())


def test_there_is_no_bound_where_any_text_may_become_one_unknown_token(make_pieces_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_pieces_vocabulary((), tokens=("<unk>", "<s>", "a"), kinds=(2, 3, 1), scores=(0.0,) * 3)
    assert BpeTokenizer.from_vocabulary(vocabulary).max_token_bytes == sys.maxsize


def test_it_is_a_tokenizer(smollm2: BpeTokenizer) -> None:
    tokenizer: Tokenizer = smollm2
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == {2}
    assert repr(smollm2) == "<BpeTokenizer: 49152 tokens, BOS None, EOS [2]>"
