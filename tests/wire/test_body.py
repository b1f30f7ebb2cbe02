"""Whatever bytes arrive, they are a call or a ParamError."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trioserve.errors import ParamError
from trioserve.params import Limits, SamplingParams
from trioserve.wire.calls import Call
from trioserve.wire.decode import parse_chat, parse_completion
from trioserve.wire.errors import error_body

Parse = Callable[[bytes, Limits], Call]

VALID: dict[Parse, bytes] = {
    parse_chat: b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}',
    parse_completion: b'{"model": "m", "prompt": "hi"}',
}

both = pytest.mark.parametrize("parse", list(VALID))


def refusal(parse: Parse, body: bytes) -> ParamError:
    with pytest.raises(ParamError) as caught:
        parse(body, Limits())
    assert str(caught.value)
    return caught.value


def with_field(parse: Parse, field: bytes) -> bytes:
    return VALID[parse].removesuffix(b"}") + b", " + field + b"}"


@both
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b'{"a":"\xff"}',
        b'{"\xff":1}',
        '{"model": "m"}'.encode("utf-16"),
        '{"model": "m"}'.encode("utf-16-le"),
        '{"model": "m"}'.encode("utf-32"),
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"[1]",
        b"null",
        b"true",
        b'"x"',
        b"1",
        b"NaN",
        b'{"a": 1} {}',
        b'{"a": 1}\x00',
        b"{'a': 1}",
        b'{"a": "\n"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800x"}',
        b'{"\\udc00": 1}',
        b'{"\\udc00": NaN}',
        b"<html>",
        b"model=m&prompt=hi",
    ],
)
def test_junk_is_refused(parse: Parse, body: bytes) -> None:  # case json-body-junk
    refusal(parse, body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":1}', "model"),
        (b'{"model":"m","messages":"hi"}', "messages"),
        (b'{"model":"m","messages":[1]}', "messages.0"),
        (b'{"model":"m","messages":[],"stream":"yes"}', "stream"),
    ],
)
def test_fields_of_a_wrong_type_are_refused_by_name(body: bytes, param: str) -> None:  # case json-body-junk
    assert refusal(parse_chat, body).param == param


@both
def test_a_byte_order_mark_is_skipped(parse: Parse) -> None:  # case json-body-junk
    assert parse(codecs.BOM_UTF8 + VALID[parse], Limits()) == parse(VALID[parse], Limits())
    refusal(parse, codecs.BOM_UTF8 * 2 + VALID[parse])


@both
def test_of_a_field_given_twice_the_last_counts(parse: Parse) -> None:  # case json-body-junk
    assert (
        parse(with_field(parse, b'"n": 2, "n": 3'), Limits()).params
        == parse(with_field(parse, b'"n": 3'), Limits()).params
    )


@both
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"]
)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000])
def test_a_number_that_is_none_is_refused_by_the_name_of_its_field(
    parse: Parse, field: str, number: str
) -> None:  # case nonfinite-numbers
    assert refusal(parse, with_field(parse, f'"{field}": {number}'.encode())).param == field


@both
def test_a_number_that_is_none_is_found_inside_a_field(parse: Parse) -> None:  # case nonfinite-numbers
    assert refusal(parse, with_field(parse, b'"logit_bias": {"5": NaN}')).param == "logit_bias"
    assert refusal(parse, with_field(parse, b'"stop": ["a", [[1e999]]], "n": 1')).param == "stop"


@both
def test_an_integer_of_many_digits_is_refused_by_name(parse: Parse) -> None:  # case json-body-junk
    for digits in (30, 4000, 5000):
        assert refusal(parse, with_field(parse, b'"max_tokens": ' + b"9" * digits)).param == "max_tokens"


@both
def test_a_body_that_is_both_bad_json_and_has_a_bad_number_is_refused(parse: Parse) -> None:
    assert refusal(parse, b'{"temperature": NaN').param is None
    assert refusal(parse, b"[NaN]").param is None
    assert refusal(parse, b'{"temperature": NaN, "stop": ' + b"[" * 200_000).param is None


def test_every_whitespace_of_json_is_accepted() -> None:
    body = b' \t\r\n{ "model" : "m" ,\n"prompt":"hi"}\n'
    assert parse_completion(body, Limits()).params == SamplingParams()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVERYTHING: dict[str, object] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"q":1}'}}],
            "refusal": None,
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ],
    "prompt": [[1, 2], "x", [3]],
    "n": 2,
    "seed": 1,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "max_tokens": 5,
    "user": "u",
    "logit_bias": {},
}
fields = st.sampled_from([*EVERYTHING, "echo", "best_of", "tools", "response_format", "logprobs", "foo"])


def check_never_another_error(body: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        try:
            parse(body, Limits())
        except ParamError as error:
            status, answer = error_body(error)
            assert status == 400
            assert json.loads(answer)["error"]["message"]


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b'{"\\ud800": NaN}')
def test_random_bytes_raise_nothing_but_a_param_error(body: bytes) -> None:
    check_never_another_error(body)


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.dictionaries(fields | st.text(max_size=5), json_values, max_size=5))
def test_random_fields_raise_nothing_but_a_param_error(body: dict[str, object]) -> None:
    check_never_another_error(json.dumps(body).encode())


def paths(value: object) -> list[tuple[str | int, ...]]:
    """The places inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, inner in items for rest in paths(inner))]


@hypothesis_settings(max_examples=400, deadline=None)
@given(st.sampled_from(["messages", "prompt"]), st.randoms(use_true_random=False), json_values)
def test_a_valid_body_with_any_one_value_replaced_raises_nothing_but_a_param_error(
    other: str, rng: random.Random, value: object
) -> None:
    body = json.loads(json.dumps({name: field for name, field in EVERYTHING.items() if name != other}))
    check_never_another_error(json.dumps(body).encode())
    *way, last = rng.choice(paths(body)[1:])
    inside = body
    for key in way:
        inside = inside[key]
    inside[last] = value
    check_never_another_error(json.dumps(body).encode())


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.binary(max_size=3))
def test_a_valid_body_with_bytes_replaced_raises_nothing_but_a_param_error(at: int, cut: int, new: bytes) -> None:
    body = json.dumps({name: field for name, field in EVERYTHING.items() if name != "prompt"}).encode()
    at %= len(body)
    check_never_another_error(body[:at] + new + body[at + cut :])


def test_the_body_that_the_random_tests_start_from_is_valid() -> None:
    for parse, other in ((parse_chat, "prompt"), (parse_completion, "messages")):
        parse(json.dumps({name: field for name, field in EVERYTHING.items() if name != other}).encode(), Limits())
