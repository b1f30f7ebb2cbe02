"""What is read and written of /tokenize and /detokenize."""

from __future__ import annotations

import json

import pytest

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.testing.tokenizer import BOS, ByteTokenizer
from trioserve.wire.token_texts import TokenTexts
from trioserve.wire.tokenizing import DetokenizeCall, TokenizeCall, parse_detokenize, parse_tokenize, tokenize_body


def tokenize(**fields: object) -> TokenizeCall:
    return parse_tokenize(json.dumps(fields).encode(), Limits())


def detokenize(**fields: object) -> DetokenizeCall:
    return parse_detokenize(json.dumps(fields).encode(), Limits())


def test_a_text_or_a_conversation_can_be_tokenized() -> None:
    text = tokenize(prompt="")
    assert (text.model, text.prompt, text.messages, text.add_special, text.with_texts) == (None, "", None, True, False)
    assert not tokenize(prompt="x", add_special_tokens=False).add_special
    chat = tokenize(messages=[{"role": "user", "content": "x"}], add_special_tokens=False, return_token_strs=True)
    assert (chat.prompt, chat.add_special, chat.with_texts) == (None, False, True)
    assert chat.messages == ({"role": "user", "content": "x"},)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": [1]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ({"prompt": "x", "n": 1}, "n"),
    ],
)
def test_what_can_not_be_tokenized_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ParamError) as caught:
        tokenize(**fields)
    assert caught.value.param == param


def test_any_list_of_ids_can_be_made_a_text() -> None:
    assert detokenize(tokens=[]).token_ids == ()
    assert detokenize(tokens=[1, 2], model="m") == DetokenizeCall(model="m", token_ids=(1, 2))
    for fields, param in (({}, "tokens"), ({"tokens": ["1"]}, "tokens"), ({"tokens": [-1]}, "tokens")):
        with pytest.raises(ParamError) as caught:
            detokenize(**fields)
        assert caught.value.param == param


def test_the_texts_of_tokens_are_told_if_asked_for() -> None:
    ids = [BOS, 97, 0xE2]
    assert json.loads(tokenize_body(ids, 99, None)) == {
        "count": 3,
        "max_model_len": 99,
        "tokens": ids,
        "token_strs": None,
    }
    told = json.loads(tokenize_body(ids, 99, TokenTexts(ByteTokenizer())))
    assert told["token_strs"] == ["<|bos|>", "a", r"bytes:\xe2"]
