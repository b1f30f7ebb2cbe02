"""Structures as matchers: what may come next, and what is refused."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import ParamError, StructureError
from trioserve.structure import Structure, StructureKind
from trioserve.testing.tokenizer import EOS, TURN, ByteTokenizer
from trioserve.text import grammar
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


def test_a_token_that_is_too_long_never_matches() -> None:
    # with it, llguidance would panic; the one before is as long as a token may be
    tokens = GrammarTokens(ByteTokenizer([b"=" * 1024, b"=" * 1025]), 261)
    assert allowed(compiled("regex", "=+", tokens), 261) == {ord("="), 259}


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


# Regular expressions as trees, and what is left of one after a byte: an oracle that knows no tokens.
Tree = tuple  # ("byte", b) ("cat", x, y) ("or", x, y) ("star", x) ("empty",) ("never",)
EMPTY, NEVER = ("empty",), ("never",)
PIECES = [b"ab", b"ba", b"aa", b"bab"]
AB_TOKENS = GrammarTokens(ByteTokenizer(PIECES), 259 + len(PIECES))

trees = st.recursive(
    st.sampled_from([("byte", "a"), ("byte", "b"), EMPTY]),
    lambda inner: st.one_of(st.tuples(st.sampled_from(["cat", "or"]), inner, inner), st.tuples(st.just("star"), inner)),
    max_leaves=8,
)


def as_regex(tree: Tree) -> str:
    match tree:
        case ("byte", char):
            return char
        case ("cat", left, right):
            return f"(?:{as_regex(left)}{as_regex(right)})"
        case ("or", left, right):
            return f"(?:{as_regex(left)}|{as_regex(right)})"
        case ("star", inner):
            return f"(?:{as_regex(inner)})*"
        case _:
            return "(?:)"


def may_end(tree: Tree) -> bool:
    match tree:
        case ("cat", left, right):
            return may_end(left) and may_end(right)
        case ("or", left, right):
            return may_end(left) or may_end(right)
        case ("star", _) | ("empty",):
            return True
        case _:
            return False


def after(tree: Tree, char: str) -> Tree:
    match tree:
        case ("byte", same) if same == char:
            return EMPTY
        case ("cat", left, right):
            first = cat(after(left, char), right)
            return either(first, after(right, char)) if may_end(left) else first
        case ("or", left, right):
            return either(after(left, char), after(right, char))
        case ("star", inner):
            return cat(after(inner, char), tree)
        case _:
            return NEVER


def cat(left: Tree, right: Tree) -> Tree:
    return NEVER if NEVER in (left, right) else ("cat", left, right)


def either(left: Tree, right: Tree) -> Tree:
    return right if left == NEVER else left if right == NEVER else ("or", left, right)


def after_all(tree: Tree, text: bytes) -> Tree:
    for char in text.decode():
        tree = after(tree, char)
    return tree


@given(tree=trees, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_mask_has_what_the_text_can_go_on_with_and_nothing_else(tree: Tree, data: st.DataObject) -> None:
    matcher = compiled("regex", as_regex(tree), AB_TOKENS)
    texts = {ord("a"): b"a", ord("b"): b"b", **{259 + i: piece for i, piece in enumerate(PIECES)}}
    for _ in range(6):
        expected = {token_id for token_id, text in texts.items() if after_all(tree, text) != NEVER}
        mask = allowed(matcher, AB_TOKENS.width)
        assert mask == (expected | {EOS} if may_end(tree) else expected)
        token_id = data.draw(st.sampled_from(sorted(mask)))
        is_complete = matcher.advance(token_id)
        if token_id == EOS:
            assert is_complete
            break
        tree = after_all(tree, texts[token_id])
        can_go_on = any(after(tree, char) != NEVER for char in "ab")
        assert is_complete == (not can_go_on)
        if is_complete:
            break


words = st.lists(st.text("ab", max_size=5), min_size=1, max_size=6, unique=True)


@given(words=words, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_mask_has_what_some_choice_can_go_on_with(words: list[str], data: st.DataObject) -> None:
    matcher = compiled("choice", words, AB_TOKENS)
    texts = {ord("a"): "a", ord("b"): "b", **{259 + i: piece.decode() for i, piece in enumerate(PIECES)}}
    written = ""
    while True:
        expected = {i for i, text in texts.items() if any(word.startswith(written + text) for word in words)}
        mask = allowed(matcher, AB_TOKENS.width)
        assert mask == (expected | {EOS} if written in words else expected)
        token_id = data.draw(st.sampled_from(sorted(mask)))
        is_complete = matcher.advance(token_id)
        written += texts.get(token_id, "")
        if is_complete:
            assert written in words
            break


def test_white_space_is_bounded() -> None:
    matcher = compiled("json_object", "")
    assert accepts(matcher, '{ "a" : 1 }')
    assert accepts(matcher, "{\n" + " " * 24 + '"a": [\n\t1,\n\t2\n]\n}')
    for text in ('{  "a": 1}', '{\n\n"a": 1}', "{\n" + " " * 25 + '"a": 1}', " {}", "{}\n", '{"a":\t1}', '{"a":\r\n1}'):
        assert not accepts(matcher, text), text


def test_a_free_name_is_none_of_the_named_ones_in_disguise() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    matcher = compiled("json_schema", schema)
    assert accepts(matcher, '{"a":1,"b":"x"}')
    for text in ('{"\\u0061":"x"}', '{"a":"x"}', '{"b":"x","a":"x"}', '{"\\ud800":"x"}'):
        assert not accepts(matcher, text), text


def test_properties_come_in_the_order_of_the_schema() -> None:
    matcher = compiled("json_schema", {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a"]})
    assert accepts(matcher, '{"b":1,"a":2}')
    assert not accepts(matcher, '{"a":2,"b":1}')


def test_a_grammar_may_hold_schemas_which_are_prepared_like_others() -> None:
    matcher = compiled("lark", 'start: "<" call ">"\ncall: %json {"type": "object", "maxProperties": 0} | "no"')
    assert accepts(matcher, "<{ }>")
    assert accepts(matcher, "<no>")
    assert not accepts(matcher, "<{  }>")
    with pytest.raises(ParamError, match="uniqueItems"):
        compiled("lark", 'start: %json {"uniqueItems": true}')
    with pytest.raises(ParamError, match="not valid JSON"):
        compiled("lark", 'start: %json {"type": nope}')


def test_a_grammar_may_name_special_tokens_but_not_end_before_it_does() -> None:
    matcher = compiled("lark", 'start: "a" <|turn|> "b" | "c" <|eos|> "d"')
    copy = matcher.copy()
    assert advance(copy, [ord("a"), TURN, ord("b")])
    advance(matcher, b"c")
    # nothing but the end may follow, and this end is none
    assert allowed(matcher) == {EOS}
    with pytest.raises(StructureError):
        matcher.advance(EOS)


@pytest.mark.parametrize("attribute", ["temperature=0.5", "max_tokens=3", 'stop="x"'])
def test_attributes_of_rules_that_no_matcher_keeps_are_refused(attribute: str) -> None:
    with pytest.raises(ParamError, match=attribute.partition("=")[0]):
        compiled("lark", f"start: x\nx[{attribute}]: /[a-z]+/")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", r"\bx", "lookarounds"),
        ("regex", "a{2,1}", "repetition"),
        ("choice", "[]", "1 to"),
        ("choice", "[1]", "array of strings"),
        ("choice", "x", "array of strings"),
        ("lark", "", "start"),
        ("lark", "start: nope", "nope"),
        ("lark", "start: a\na: b\nb: a", "no text"),
        ("lark", "start: <|nope|>", "nope"),
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[]", "must be an object"),
        ("json_schema", "false", "nothing"),
        ("regex", "\ud800", "lone surrogate"),
        ("choice", json.dumps(["a" * 262_145]), "at most 262144 characters"),
        ("regex", "a?" * 8_193, "at most 16384 characters"),
        ("lark", "start: " + '"a"? ' * 13_200, "at most 65536 characters beside schemas"),
    ],
)
def test_what_is_not_well_formed_is_refused_in_words(kind: StructureKind, text: str, words: str) -> None:
    # case grammar-bad-schema
    with pytest.raises(ParamError, match=words) as caught:
        compiled(kind, text)
    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format")
    assert "\n" not in str(caught.value)
    assert "no_forcing" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_limit_that_is_hit_in_mid_text_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = llguidance.LLParserLimits(max_lexer_states=40, verbose_errors=False)
    monkeypatch.setattr(grammar, "_limits", lambda: limits)
    matcher = compiled("json_schema", {"type": "string", "maxLength": 100})
    with pytest.raises(StructureError, match="can't go on"):
        for byte in b'"' + b"x" * 90:
            matcher.advance(byte if byte in allowed(matcher) else EOS)
    assert allowed(matcher) == {EOS}
    with pytest.raises(StructureError, match="can't go on"):
        matcher.advance(EOS)
    assert repr(matcher) == "<GrammarMatcher: failed>"


class Work:
    """A clock by which everything that is timed takes ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_a_matcher_and_its_copies_may_not_take_long_for_ever() -> None:
    work = Work(0.001)
    matcher = compile_structure(Structure(kind="regex", text="a*", param="p"), TOKENS, work)
    for _ in range(200):
        advance(matcher, b"a")
    work.seconds = 0.3
    copies = [matcher.copy() for _ in range(4)]
    for copy in copies:
        allowed(copy)
    # they have one debt, since a step has to wait for all of them
    for copy in (matcher, *copies):
        assert copy.is_slow
        assert allowed(copy) == {EOS}
        with pytest.raises(StructureError, match="takes too long"):
            copy.advance(EOS)


def test_one_mask_that_takes_long_is_forgiven() -> None:
    work = Work(0.9)
    matcher = compile_structure(Structure(kind="regex", text="a*", param="p"), TOKENS, work)
    allowed(matcher)
    work.seconds = 0.0
    for _ in range(50):
        advance(matcher, b"a")
    work.seconds = 0.9
    allowed(matcher)
    assert not matcher.is_slow


def test_what_the_vocabulary_cant_write_is_refused_or_fails() -> None:
    class NoDigits(ByteTokenizer):
        def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
            text = super().token_bytes(token_id, skip_special=skip_special)
            return b"" if text.isdigit() else text

    tokens = GrammarTokens(NoDigits(), WIDTH)
    with pytest.raises(ParamError, match="no text that the model can write"):
        compiled("regex", "[0-9]+", tokens)
    matcher = compiled("regex", "a[0-9]", tokens)
    advance(matcher, b"a")
    assert allowed(matcher) == {EOS}
    with pytest.raises(StructureError):
        matcher.advance(EOS)


def test_a_token_that_is_not_allowed_is_an_error_that_stays() -> None:
    matcher = compiled("regex", "ab")
    assert not matcher.is_spent
    copy = matcher.copy()
    for token_id in (ord("b"), ord("a"), EOS):
        with pytest.raises(StructureError):
            copy.advance(token_id)
    assert matcher.is_spent
    assert repr(matcher) == "<GrammarMatcher: incomplete>"
