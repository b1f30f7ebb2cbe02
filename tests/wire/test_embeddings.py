"""What is read and written of /v1/embeddings."""

from __future__ import annotations

import base64
import json
import struct
from array import array

import pytest
from openai.types import CreateEmbeddingResponse

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.wire.embeddings import EmbeddingsCall, embeddings_body, parse_embeddings


def parse(**fields: object) -> EmbeddingsCall:
    return parse_embeddings(json.dumps({"model": "m", **fields}).encode(), Limits(max_choices=3))


def test_texts_and_token_ids_in_every_form_are_read() -> None:
    forms: list[tuple[object, tuple[object, ...]]] = [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ]
    for given, prompts in forms:
        assert parse(input=given, user="me").prompts == prompts
    assert (parse(input="a").encoding, parse(input="a").dimensions) == ("float", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": ["a"] * 4}, "input"),
        ({"input": ["a", 1]}, "input.1"),
        ({"input": [[]]}, "input"),
        ({"input": [1, -1]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "3"}, "dimensions"),
        ({"input": "a", "user": 1}, "user"),
        ({"input": "a", "n": 1}, "n"),
    ],
)
def test_a_fault_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ParamError) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_dimensions_are_those_of_the_model() -> None:
    parse(input="a").check_dimensions(5)
    parse(input="a", dimensions=5).check_dimensions(5)
    with pytest.raises(ParamError, match="must be 5") as caught:
        parse(input="a", dimensions=4).check_dimensions(5)
    assert caught.value.param == "dimensions"


def test_both_encodings_say_the_same_numbers() -> None:
    vectors = [array("f", [0.6, -0.8]), array("f", [1.0, 0.0])]
    plain = json.loads(embeddings_body(parse(input=["a", "b"]), vectors, 7))
    assert plain == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": vectors[0].tolist()},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    packed = json.loads(embeddings_body(parse(input=["a", "b"], encoding_format="base64"), vectors, 7))
    for one, other in zip(packed["data"], plain["data"], strict=True):
        assert list(struct.unpack("<2f", base64.b64decode(one["embedding"]))) == other["embedding"]
    assert CreateEmbeddingResponse.model_validate(plain).data[1].embedding == [1.0, 0.0]
