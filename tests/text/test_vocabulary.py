"""A Vocabulary is consistent once it exists; files that contradict themselves are refused with one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from trioserve.errors import ModelError
from trioserve.text.vocabulary import MAX_TOKEN_LENGTH, TokenKind, Vocabulary

MakeVocabulary = Callable[..., Vocabulary]


def test_kinds_may_be_given_as_numbers(make_vocabulary: MakeVocabulary) -> None:
    kinds = make_vocabulary().kinds
    assert kinds == (TokenKind.NORMAL, TokenKind.NORMAL, TokenKind.NORMAL, TokenKind.CONTROL)
    assert all(isinstance(kind, TokenKind) for kind in kinds)


def test_several_tokens_may_be_empty(make_vocabulary: MakeVocabulary) -> None:
    assert make_vocabulary(tokens=("a", "b", "ab", "<end>", "", ""), kinds=(1, 1, 1, 3, 5, 5)).tokens[4:] == ("", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"tokens": (), "kinds": ()}, "has no tokens"),
        ({"kinds": (1, 1, 1)}, "4 tokens but 3 token kinds"),
        ({"kinds": (1, 1, 1, 7)}, "unknown kind: 7"),
        ({"kinds": (1, 1, 1, 0)}, "unknown kind: 0"),
        ({"tokens": ("a", "b", "ab", "a")}, "token 'a' twice: ids 0 and 3"),
        ({"tokens": ("a", "b", "ab", "\ud800")}, "not valid Unicode"),
        ({"tokens": ("a", "b", "ab", "x" * (MAX_TOKEN_LENGTH + 1))}, "a token of more than"),
        ({"kinds": (1, 1, 1, 6)}, "token 3 of the vocabulary is '<end>', but its kind says it is a byte"),
        ({"bos_id": 4}, "the BOS token is 4, but ids go from 0 to 3"),
        ({"unknown_id": -1}, "the unknown token is -1"),
        ({"pad_id": 2**40}, "the padding token is 1099511627776"),
        ({"eos_ids": frozenset({3, 9})}, "the end token is 9"),
        ({"add_bos": True}, "asks for a BOS token"),
        ({"merges": ()}, "needs its list of merges"),
        ({"merges": ("ab",)}, "merge 'ab' is not two tokens"),
        ({"merges": ("a b b",)}, "merge 'a b b' is not two tokens"),
        ({"merges": (" b",)}, "merge ' b' is not two tokens"),
        ({"merges": ("a c",)}, "merge 'a c' needs token 'c'"),
        ({"merges": ("b a",)}, "merge 'b a' needs token 'ba'"),
        ({"model": "llama"}, "4 tokens but 0 scores"),
        ({"model": "llama", "scores": (0.0, 0.0, math.nan, 0.0)}, "a score that is not a number"),
    ],
)
def test_a_contradiction_is_an_error_of_one_line(
    make_vocabulary: MakeVocabulary, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        make_vocabulary(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
