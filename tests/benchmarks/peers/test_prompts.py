"""Prompts that no server has seen before, of an exact length."""

from __future__ import annotations

from peers.prompts import fresh_prompt, repeating_prompt


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_prompts_have_the_length_that_is_asked_for() -> None:
    # more than all the sentences there are, too
    for tokens in (1, 100, 20_000):
        assert len(fresh_prompt(encode, 1, tokens)) == tokens


def test_prompts_of_different_seeds_begin_differently() -> None:
    prompts = [fresh_prompt(encode, seed, 40) for seed in range(200)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 200


def test_the_rest_of_a_passage_follows_what_is_begun() -> None:
    ids, rest = repeating_prompt(encode, 5, 300)
    text = "".join(map(chr, ids))
    first, second, begun = text.split("\n\n")
    assert first == second == begun + rest
    assert len(rest) >= 200
