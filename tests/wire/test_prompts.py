"""The forms of the prompt of a completion."""

from __future__ import annotations

import json

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.wire.calls import CompletionCall
from trioserve.wire.decode import parse_completion


def parse(prompt: object, **fields: object) -> CompletionCall:
    return parse_completion(json.dumps({"model": "m", "prompt": prompt, **fields}).encode(), Limits())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ("hi",)),
        ("", ("",)),
        (["aa", "bb", "cc"], ("aa", "bb", "cc")),
        ([""], ("",)),
        ([5, 6], ((5, 6),)),
        ([0], ((0,),)),
        ([2**31 - 1], ((2**31 - 1,),)),
        ([[5, 6], [7, 8, 9]], ((5, 6), (7, 8, 9))),
        ([[5, 6]], ((5, 6),)),
        (["aa", [5]], ("aa", (5,))),
    ],
)
def test_each_form_gives_its_prompts_in_order(prompt: object, prompts: tuple[object, ...]) -> None:
    # FAN-4; case prompt-list-index
    assert parse(prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (1, "prompt"),
        (True, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([None], "prompt"),
        ([{}], "prompt"),
        ([-1], "prompt"),
        ([1, 2, -1], "prompt"),
        ([1180591620717411303424], "prompt"),
        ([2**31], "prompt"),
        ([1, True, 2.0], "prompt"),
        ([True], "prompt"),
        ([2.0, 1], "prompt"),
        ([1, "a"], "prompt"),
        ([1, None], "prompt"),
        ([1, [2]], "prompt"),
        ([["a"]], "prompt"),
        ([[[1]]], "prompt"),
        ([[1], []], "prompt.1"),
        ([[1], [-1]], "prompt.1"),
        (["a", 1], "prompt.1"),
        (["a", None], "prompt.1"),
        ([[True], [1]], "prompt.0"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: object, param: str) -> None:  # cases oov-token-ids, prompt-list-index
    with pytest.raises(ParamError) as caught:
        parse(prompt)
    assert caught.value.param == param


def test_the_refusal_of_an_id_tells_where_it_is() -> None:  # case oov-token-ids
    with pytest.raises(ParamError, match="got -1 at position 2"):
        parse([1, 2, -1])


def test_echo_is_asked_for_by_the_request() -> None:  # case prompt-list-index
    assert parse("hi", echo=True).echo
    assert not parse("hi", echo=False).echo
