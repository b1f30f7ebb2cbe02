"""Each rule splits texts into the words that other programs' code gives (see make_golden.py)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trioserve.errors import ModelError
from trioserve.text.pieces import byte_level_bytes
from trioserve.text.pretokenizers import WordRule, word_rule

WORDS = Path(__file__).parent / "data" / "words.json"


class Split(msgspec.Struct):
    text: str
    words: list[str]


class File(msgspec.Struct):
    rules: dict[str, list[Split]]


EXPECTED = msgspec.json.decode(WORDS.read_bytes(), type=File).rules


def words(rule: WordRule, text: str) -> list[str]:
    normalizer = rule.normalizer()
    if normalizer is not None:
        text = normalizer.normalize_str(text)
    return [byte_level_bytes(word).decode() for word, _ in rule.pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", EXPECTED)
def test_words_are_those_of_the_models_own_tokenizers(name: str) -> None:
    # gguf-pretokenizer
    rule = word_rule(name)
    assert [words(rule, item.text) for item in EXPECTED[name]] == [item.words for item in EXPECTED[name]]


def test_the_rules_differ_where_their_models_do() -> None:
    assert words(word_rule("gpt-2"), " 12345") == [" 12345"]
    assert words(word_rule("smollm"), " 12345") == [" ", "1", "2", "3", "4", "5"]
    assert words(word_rule("llama-bpe"), " 12345") == [" ", "123", "45"]
    assert words(word_rule("qwen2"), "e\u0301") == ["\u00e9"]
    assert words(word_rule("llama-bpe"), "e\u0301") == ["e", "\u0301"]


def test_only_some_rules_take_whole_words_before_merges() -> None:
    assert word_rule("llama-bpe").whole_words
    assert word_rule("tekken").whole_words
    assert not word_rule("dbrx").whole_words


def test_no_name_means_the_default_rule() -> None:
    # gguf-pretokenizer
    assert word_rule("") == word_rule("default")


def test_an_unknown_name_is_an_error_that_tells_it() -> None:
    # gguf-pretokenizer
    with pytest.raises(ModelError, match="the rule 'made-up', which is not known"):
        word_rule("made-up")


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("part", [" ", "a", "A", "\u0301"])
def test_time_grows_with_the_text_and_not_faster(name: str, part: str) -> None:
    # a pattern that tries the whole run again from each of its characters would need minutes
    assert "".join(words(word_rule(name), part * 100_000 + "1")) == part * 100_000 + "1"
