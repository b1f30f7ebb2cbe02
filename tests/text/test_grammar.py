"""Structures as matchers: what may come next, and what is refused."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import ParamError, StructureError
from trioserve.structure import Structure, StructureKind
from trioserve.testing.tokenizer import EOS, TURN, ByteTokenizer
from trioserve.text.grammar import GrammarMatcher, GrammarTokens, compile_structure
from trioserve.text.tokenizer import BpeTokenizer

WIDTH = 300
TOKENS = GrammarTokens(ByteTokenizer([b'":', b"ab", b'{"', b"\xff\xfe"]), WIDTH)


def compiled(kind: StructureKind, text: object, tokens: GrammarTokens = TOKENS) -> GrammarMatcher:
    written = text if isinstance(text, str) else json.dumps(text)
    return compile_structure(Structure(kind=kind, text=written, param="response_format"), tokens)


def allowed(matcher: GrammarMatcher, width: int = WIDTH) -> set[int]:
    # every bit is set before, so that one that is not written shows
    mask = array("I", [2**32 - 1]) * ((width + 31) // 32)
    matcher.fill_mask(memoryview(mask))
    return {token_id for token_id in range(32 * len(mask)) if mask[token_id // 32] >> token_id % 32 & 1}


def advance(matcher: GrammarMatcher, ids: Iterable[int]) -> bool:
    """Whether the last of them completes the text; each must be allowed."""
    done = False
    for token_id in ids:
        assert not done
        assert token_id in allowed(matcher)
        done = matcher.advance(token_id)
    return done


def accepts(matcher: GrammarMatcher, text: str) -> bool:
    """Whether all of ``text`` may be written, and may end there."""
    matcher = matcher.copy()
    done = False
    for byte in text.encode():
        if done or byte not in allowed(matcher):
            return False
        done = matcher.advance(byte)
    return done or EOS in allowed(matcher)


def test_a_text_is_complete_when_nothing_can_follow() -> None:
    matcher = compiled("regex", "ab?c")
    assert not advance(matcher, b"ab")
    assert advance(matcher, b"c")


def test_the_end_of_a_sequence_is_allowed_where_the_text_may_end() -> None:
    matcher = compiled("regex", "ab?")
    assert EOS not in allowed(matcher)
    assert not advance(matcher, b"a")
    assert allowed(matcher) == {ord("b"), EOS}
    assert advance(matcher, [EOS])


def test_a_copy_goes_its_own_way() -> None:
    matcher = compiled("choice", ["ab", "ac"])
    advance(matcher, b"a")
    copy = matcher.copy()
    assert advance(matcher, b"b")
    assert allowed(copy) == {ord("b"), ord("c")}
    assert advance(copy, b"c")


def test_every_division_of_a_text_into_tokens_is_allowed() -> None:
    matcher = compiled("choice", ["ab"])
    assert allowed(matcher) == {ord("a"), 259 + 1}


def test_ids_that_are_no_text_never_match() -> None:
    # special tokens, a token that is not UTF-8, and ids beyond the tokenizer up to the last bit of the mask
    anything = allowed(compiled("regex", "(?s).*"))
    assert max(anything) < 262
    assert anything & {TURN, 257, 262} == set()
    assert {0, 0x7F, 0xC3, EOS, 259, 260, 261} <= anything


def test_a_vocabulary_that_is_wider_than_the_logits_is_cut_off() -> None:
    tokens = GrammarTokens(ByteTokenizer([b"ab"] * 100), 260)
    assert allowed(compiled("choice", ["ab"], tokens), 260) == {ord("a"), 259}


def test_a_model_without_an_end_of_sequence_is_refused(smollm2_vocabulary: object) -> None:
    class Endless(ByteTokenizer):
        eos_ids = frozenset()  # type: ignore[assignment]

    with pytest.raises(ParamError, match="no end-of-sequence"):
        GrammarTokens(Endless(), WIDTH)


@pytest.mark.parametrize("name", ["smollm2", "sentencepiece"])
def test_what_a_tokenizer_makes_of_a_text_is_allowed(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: BpeTokenizer = request.getfixturevalue(name)
    tokens = GrammarTokens(tokenizer, tokenizer.vocab_size + 5)
    for text in ('{"a":"déjà vu 😀","b":[1,-2.5e3,null]}', '{\n  "name": "x\\n\\"y"\n}'):
        matcher = compiled("json_object", "", tokens)
        ids = tokenizer.encode(text, add_special=False)
        # SentencePiece puts a space in front of a text, which is no part of it
        if tokenizer.decode(ids) != text:
            ids = [_byte_id(tokenizer, byte) for byte in text.encode()]
        for token_id in ids[:-1]:
            assert token_id in allowed(matcher, tokens.width)
            assert not matcher.advance(token_id)
        assert matcher.advance(ids[-1])


def _byte_id(tokenizer: BpeTokenizer, byte: int) -> int:
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))
