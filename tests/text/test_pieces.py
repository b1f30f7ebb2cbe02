"""What tokens spell."""

from __future__ import annotations

from trioserve.text.pieces import BYTE_LETTERS, byte_level_bytes, byte_value, merges_by_score, sentencepiece_bytes


def test_gpt2s_alphabet_has_a_letter_for_each_byte() -> None:
    assert sorted(BYTE_LETTERS.values()) == list(range(256))
    assert byte_level_bytes("Ġhi") == b" hi"
    assert byte_level_bytes("Ċ") == b"\n"
    assert byte_level_bytes("Ã©") == "é".encode()
    assert byte_level_bytes("ĀŃ") == b"\x00\xad"


def test_a_token_outside_the_alphabet_is_plain_text() -> None:
    assert byte_level_bytes("<｜end｜>") == "<｜end｜>".encode()
    assert byte_level_bytes("two words") == b"two words"


def test_sentencepiece_writes_a_space_as_a_letter() -> None:
    assert sentencepiece_bytes("▁a▁é") == " a é".encode()


def test_byte_tokens() -> None:
    assert byte_value("<0x0A>") == 10
    assert byte_value("<0xff>") == 255
    assert byte_value("<0x1FF>") is None
    assert byte_value("<0xGG>") is None
    assert byte_value("a<0x0A>") is None


def test_merges_follow_scores_and_need_both_parts() -> None:
    scores = {"a": 0.0, "b": 0.0, "ab": -2.0, "bb": -1.0, "abb": -3.0, "xy": -0.5}
    assert merges_by_score(scores) == [("b", "b"), ("a", "b"), ("ab", "b"), ("a", "bb")]
