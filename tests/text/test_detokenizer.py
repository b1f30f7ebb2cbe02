"""The detokeniser gives what decoding all bytes at once gives, as soon as it can be known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.text.detokenizer import Detokenizer

# bytes that begin, go on or break characters of every length
BYTES = st.binary(max_size=12) | st.lists(st.sampled_from(list(b"a\x80\xc3\xe4\xb8\x96\xf0\x9f\x98\xff")), max_size=12)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(parts=st.lists(BYTES.map(bytes), max_size=8))
def test_any_cut_gives_the_text_of_the_whole(parts: list[bytes]) -> None:
    # utf8-across-tokens, FAN-22
    detokenizer = Detokenizer()
    texts = [detokenizer.feed(part) for part in parts]
    assert "".join(texts) + detokenizer.flush() == b"".join(parts).decode(errors="replace")


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(data=BYTES.map(bytes))
def test_no_text_is_held_back_that_no_byte_could_change(data: bytes) -> None:
    # utf8-across-tokens
    text = Detokenizer().feed(data)
    # what is sure of data: the start on which all ways to go on agree
    more = [b"a", *(bytes([second, 0x80, 0x80]) for second in range(0x80, 0xC0, 0x10))]
    ways = [(data + rest).decode(errors="replace") for rest in more]
    sure = 0
    while all(len(way) > sure and way[sure] == ways[0][sure] for way in ways):
        sure += 1
    assert len(text) >= sure


def test_characters_come_whole_and_a_bad_byte_as_soon_as_it_is_known() -> None:
    # utf8-across-tokens
    detokenizer = Detokenizer()
    tokens = [b"\xe4\xb8", b"\x96", b"a", b"\xf0\x9f", b"\x98", b"\x80", b"\xff", b"b", b"\xe4\xb8"]
    texts = [detokenizer.feed(token) for token in tokens]
    assert texts == ["", "世", "a", "", "", "😀", "\ufffd", "b", ""]
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (b"", ""),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xe4\xb8", "\ufffd"),
        (b"\xc3", "\ufffd"),
    ],
)
def test_a_character_that_is_cut_short_is_one_replacement_character(tail: bytes, text: str) -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(tail) == ""
    assert detokenizer.flush() == text


def test_a_start_that_goes_on_wrongly_is_one_replacement_character_at_once() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"\xe4\xb8") == ""
    assert detokenizer.feed(b"x") == "\ufffdx"
    assert repr(detokenizer) == "<Detokenizer: 0 bytes of a character>"
