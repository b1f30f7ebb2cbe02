"""Tokens to text: the parts of one choice together."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.testing.tokenizer import EOS, ByteTokenizer
from trioserve.text.pipeline import ChoiceText, Piece
from trioserve.text.tokenizer import BpeTokenizer

CutAtStop = Callable[[str, tuple[str, ...]], tuple[str, str | None]]
PIECES = (b"ab", b"ba", b"\xe4\xb8", b"\x96a", b"\xf0\x9f", b"\x98\x80", b" <e", b"nd>")
TOKENIZER = ByteTokenizer(PIECES)
FIRST_PIECE = TOKENIZER.vocab_size - len(PIECES)
IDS = st.lists(st.sampled_from([*b"ab\xff\xe4\x96", EOS, *range(FIRST_PIECE, TOKENIZER.vocab_size)]), max_size=12)
STOPS = st.lists(st.sampled_from(["a", "ab", "bab", "世", "世a", "😀", "\ufffd", "<end>", " <", "aab"]), max_size=3)


def ids_of(*pieces: bytes) -> list[int]:
    return [FIRST_PIECE + PIECES.index(piece) for piece in pieces]


def run(feeds: Iterable[list[int]], stops: tuple[str, ...], **options: Any) -> Piece:
    """All that comes of tokens fed in these lists, as one Piece."""
    choice = ChoiceText(TOKENIZER, stops, **options)
    pieces = []
    for ids in feeds:
        pieces.append(choice.feed(ids))
        if pieces[-1].stop is not None:
            break
    else:
        pieces.append(choice.end())
    token_ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
    return Piece("".join(piece.text for piece in pieces), token_ids, pieces[-1].stop)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(
    ids=IDS,
    cuts=st.lists(st.integers(0, 12), max_size=6),
    stops=STOPS.map(tuple),
    min_tokens=st.sampled_from([0, 0, 1, 2, 3, 12]),
    include_stop=st.booleans(),
)
def test_any_division_of_the_tokens_gives_the_text_and_stop_of_the_whole(
    cut_at_stop: CutAtStop,
    ids: list[int],
    cuts: list[int],
    stops: tuple[str, ...],
    min_tokens: int,
    include_stop: bool,
) -> None:
    # FAN-22
    whole = b"".join(map(TOKENIZER.token_bytes, ids)).decode(errors="replace")
    # of a character that is cut in two there, the end is not of the first tokens, but nor is it before they are over
    first = whole if min_tokens >= len(ids) else known(ids[:min_tokens])
    rest, stop = cut_at_stop(whole[len(first) :], stops)
    text = first + rest
    taken = len(ids) if stop is None else tokens_for(ids, len(text) + len(stop))
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    feeds = [ids[start:end] for start, end in itertools.pairwise(edges)]
    shown = text + stop if include_stop and stop is not None else text
    said = run(feeds, stops, min_tokens=min_tokens, include_stop=include_stop)
    assert said == Piece(shown, tuple(ids[:taken]), stop)


def known(ids: list[int]) -> str:
    """The text of tokens up to a character that the next one may go on with."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(b"".join(map(TOKENIZER.token_bytes, ids)))


def tokens_for(ids: list[int], characters: int) -> int:
    """How many of the tokens it takes until this many characters are known."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    known = 0
    for taken, token_id in enumerate(ids, start=1):
        known += len(decoder.decode(TOKENIZER.token_bytes(token_id)))
        if known >= characters:
            return taken
    return len(ids)  # the last character is one that the end cuts short


def test_tokens_after_the_one_that_completes_a_stop_string_are_not_taken() -> None:
    ids = ids_of(b"ab", b" <e", b"nd>", b"ba", b"ba")
    assert run([ids], ("<end>",)) == Piece("ab ", tuple(ids[:3]), "<end>")
    assert run([ids], ("b <",)) == Piece("a", tuple(ids[:2]), "b <")


def test_what_is_left_of_the_token_with_the_stop_string_is_dropped() -> None:
    assert run([ids_of(b"ab", b" <e")], ("<",)).text == "ab "


def test_text_held_back_comes_at_the_end() -> None:
    # stop-split-and-holdback
    choice = ChoiceText(TOKENIZER, ("<end>",))
    assert choice.feed(ids_of(b"ab", b" <e")) == Piece("ab ", tuple(ids_of(b"ab", b" <e")))
    assert choice.end() == Piece("<e", ())


@pytest.mark.parametrize("stops", [(), ("x",)])
def test_a_character_cut_short_by_the_end_is_one_replacement_character(stops: tuple[str, ...]) -> None:
    # utf8-across-tokens
    assert run([ids_of(b"ab", b"\xf0\x9f")], stops).text == "ab\ufffd"


def test_a_stop_string_may_be_completed_by_the_end() -> None:
    assert run([ids_of(b"ab", b"\xf0\x9f")], ("b\ufffd",)) == Piece("a", tuple(ids_of(b"ab", b"\xf0\x9f")), "b\ufffd")


def test_no_stop_string_ends_a_choice_before_it_has_so_many_tokens_not_even_by_the_end() -> None:
    ids = ids_of(b"ab", b"\xf0\x9f")
    assert run([ids], ("\ufffd",), min_tokens=2) == Piece("ab\ufffd", tuple(ids))
    assert run([ids], ("\ufffd",), min_tokens=1) == Piece("ab", tuple(ids), "\ufffd")


@pytest.mark.parametrize("stops", [(), ("b",)])
def test_nothing_may_follow_the_end(stops: tuple[str, ...]) -> None:
    choice = ChoiceText(TOKENIZER, stops)
    choice.end()
    with pytest.raises(AssertionError, match="after the end"):
        choice.feed(ids_of(b"ab"))
    with pytest.raises(AssertionError, match="ends once"):
        choice.end()


def test_a_stop_string_is_an_end() -> None:
    choice = ChoiceText(TOKENIZER, ("b",))
    choice.feed(ids_of(b"ab"))
    assert "ended" in repr(choice)
    with pytest.raises(AssertionError, match="after the end"):
        choice.feed([])


@pytest.mark.parametrize("stops", [(), ("b",)])
def test_an_id_that_is_not_in_the_vocabulary_is_an_index_error(stops: tuple[str, ...]) -> None:
    with pytest.raises(IndexError):
        ChoiceText(TOKENIZER, stops).feed([TOKENIZER.vocab_size])


def test_choices_share_nothing() -> None:
    # FAN-9
    first, second = ChoiceText(TOKENIZER, ("ab",)), ChoiceText(TOKENIZER, ("ab",))
    first.feed([*b"a", FIRST_PIECE + 4])
    assert second.feed([*b"b", *ids_of(b"\xe4\xb8", b"\x96a")]).text == "b世"
    assert second.end().text == "a"


def test_spaces_and_marks_at_the_start_of_an_answer_stay_as_the_model_wrote_them(sentencepiece: BpeTokenizer) -> None:
    text = " Hello\n"
    ids = sentencepiece.encode(text[1:], add_special=False)
    choice = ChoiceText(sentencepiece, ())
    assert choice.feed([*ids, 2]).text + choice.end().text == text
