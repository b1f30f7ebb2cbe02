"""Fields of a request that both endpoints share, and those that tell the endpoints apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import get_type_hints

import openai.types
import openai.types.chat
import pytest

from trioserve.errors import ModelNotFoundError, ParamError
from trioserve.params import INT64_MAX, INT64_MIN, Limits, SamplingParams
from trioserve.wire.calls import Call, ChatCall, CompletionCall
from trioserve.wire.decode import check_model, parse_chat, parse_completion

LEAST: dict[str, dict[str, object]] = {
    "chat": {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]},
    "completion": {"model": "tiny-chat", "prompt": "hi"},
}
PARSE: dict[str, Callable[[bytes, Limits], Call]] = {"chat": parse_chat, "completion": parse_completion}

DEFAULT_LIMITS = Limits()

both = pytest.mark.parametrize("kind", ["chat", "completion"])


def parse(kind: str, limits: Limits = DEFAULT_LIMITS, /, **fields: object) -> Call:
    return PARSE[kind](json.dumps({**LEAST[kind], **fields}).encode(), limits)


def refusal(kind: str, limits: Limits = DEFAULT_LIMITS, /, **fields: object) -> ParamError:
    with pytest.raises(ParamError) as caught:
        parse(kind, limits, **fields)
    return caught.value


def test_a_chat_of_the_fewest_fields_has_every_default() -> None:  # FAN-5, FAN-7
    assert parse("chat") == ChatCall(
        model="tiny-chat",
        messages=({"role": "user", "content": "hi"},),
        params=SamplingParams(n=1, max_tokens=None),
        stream=False,
        include_usage=False,
        continuous_usage=False,
        names={"prompt": "messages", "max_tokens": "max_tokens"},
    )


def test_a_completion_of_the_fewest_fields_has_every_default() -> None:  # FAN-5, FAN-7
    assert parse("completion") == CompletionCall(
        model="tiny-chat",
        prompts=("hi",),
        echo=False,
        params=SamplingParams(n=1, max_tokens=None),
        stream=False,
        include_usage=False,
        continuous_usage=False,
    )


@both
def test_every_sampling_field_reaches_the_params(kind: str) -> None:
    given: dict[str, object] = {
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -7,
        "max_tokens": 5,
    }
    call = parse(kind, **given, stop=["a", "b"], ignore_eos=True, prompt_lookup=False)
    assert call.params == SamplingParams(
        n=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=-7,
        max_tokens=5,
        stop=("a", "b"),
        ignore_eos=True,
        prompt_lookup=False,
    )


@both
def test_every_field_about_tokens_reaches_the_params(kind: str) -> None:
    call = parse(
        kind,
        stop_token_ids=[5, 0],
        include_stop_str_in_output=True,
        min_tokens=2,
        presence_penalty=-2,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={"0": -100, "7": 0.5},
        skip_special_tokens=False,
        prompt_logprobs=4,
        priority=-3,
        cache_salt="mine",
        return_token_ids=True,
    )
    assert call.params == SamplingParams(
        stop_token_ids=(5, 0),
        include_stop=True,
        min_tokens=2,
        presence_penalty=-2,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={0: -100, 7: 0.5},
        skip_special_tokens=False,
        prompt_logprobs=4,
        priority=-3,
        cache_salt="mine",
    )
    assert (call.return_token_ids, call.prompt_logprobs) == (True, 4)


def test_a_chat_says_whether_and_a_completion_how_many_log_probabilities_it_wants() -> None:
    # case logprobs-shape-and-inf
    assert parse("chat", logprobs=True).params.logprobs == 0
    assert parse("chat", logprobs=True, top_logprobs=0).params.logprobs == 0
    assert parse("chat", logprobs=True, top_logprobs=20).params.logprobs == 20
    assert parse("completion", logprobs=0).params.logprobs == 0
    assert parse("completion", logprobs=20).params.logprobs == 20


def test_an_echo_with_log_probabilities_needs_those_of_the_prompt() -> None:  # case echo-logprobs
    call = parse("completion", echo=True, logprobs=2)
    assert (call.params.logprobs, call.params.prompt_logprobs, call.prompt_logprobs) == (2, 2, None)
    call = parse("completion", echo=True, logprobs=2, prompt_logprobs=5)
    assert (call.params.prompt_logprobs, call.prompt_logprobs) == (5, 5)
    assert parse("completion", echo=True).params.prompt_logprobs is None


def test_a_suffix_is_refused_for_want_of_a_form_for_it() -> None:
    assert str(refusal("completion", suffix="x")).startswith("The model has no form for filling in the middle")


@pytest.mark.parametrize(
    ("kind", "name"), [("chat", "model"), ("chat", "messages"), ("completion", "model"), ("completion", "prompt")]
)
def test_required_fields_are_missed_by_name(kind: str, name: str) -> None:  # case model-404
    rest = {other: value for other, value in LEAST[kind].items() if other != name}
    for body in (rest, {**rest, name: None}):
        with pytest.raises(ParamError, match="is required") as caught:
            PARSE[kind](json.dumps(body).encode(), Limits())
        assert caught.value.param == name


@both
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [1, ["a"], {}, True]),
        ("n", [0, -1, 129, 10**6, 2**64, 1.5, 1.0, True, "1", [1]]),
        ("max_tokens", [-1, 3.5, True, "5", 2**64]),
        ("temperature", [-0.1, 2.1, True, "0.7", 10**400, []]),
        ("top_p", [-0.1, 1.1, 7, True, "0.7"]),
        ("min_p", [-0.1, 1.1, True, "0.7"]),
        ("top_k", [-2, 1.5, True, "1"]),
        ("seed", [1e30, 1.5, True, "1", INT64_MAX + 1, INT64_MIN - 1]),
        ("stop", [1, [1], ["a", None], "", [""], ["x"] * 65, "x" * 1025, {}]),
        ("ignore_eos", [1, "true"]),
        ("prompt_lookup", [0, "true", []]),
        ("stream", [1, "yes"]),
        ("stream_options", [True, []]),
        ("user", [1]),
        ("presence_penalty", [-2.1, 3, True, False, "0", 10**400]),
        ("frequency_penalty", [-2.1, 3, True, False, "0"]),
        ("repetition_penalty", [0, -1, 10.1, True, "1"]),
        ("logit_bias", [{"9999999999": 5}, {"-1": 5}, {"abc": 5}, {"": 5}, {"05": 5}, {" 5": 5}, {"1e1": 5}, {"٣": 5}]),
        ("logit_bias", [{"5": 101}, {"5": None}, {"5": "1"}, {"5": True}, {"5": 1e300}, [1], {"5" * 5000: 1}]),
        ("logit_bias", [{str(token_id): 1 for token_id in range(1025)}]),
        ("stop_token_ids", [5, [-1], [2**31], [10**4000], [True], ["5"], [None], [1.0], {}, [1] * 257]),
        ("include_stop_str_in_output", [1, "true"]),
        ("skip_special_tokens", [0, "false"]),
        ("min_tokens", [-1, 1.5, True, 2**31]),
        ("prompt_logprobs", [-1, 21, True, "1"]),
        ("return_token_ids", [1, "true"]),
        ("priority", [2**31, -(2**31) - 1, 0.5, True]),
        ("cache_salt", ["", "x" * 257, 5]),
        ("logprobs", [-1, 21, "1", 1.0, 10**4000, {}]),
        ("foo", [None, 0]),
    ],
)
def test_a_wrong_or_unserved_value_is_refused_by_name(kind: str, name: str, values: list[object]) -> None:
    # FAN-1, FAN-2, FAN-14; cases nonfinite-numbers, huge-n, max-tokens-edges, oov-token-ids
    for value in values:
        assert refusal(kind, **{name: value}).param == name, value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tools", [{}]),
        ("tool_choice", ["required", {"type": "function", "function": {"name": "f"}}, 1]),
        ("functions", [[{"name": "f"}]]),
        ("function_call", [{"name": "f"}]),
        # without logprobs; case logprobs-shape-and-inf
        ("top_logprobs", [-1, 2, 1000, False]),
        ("logprobs", [1, 0]),
        ("audio", [{}]),
        ("modalities", [["audio"], ["text", "audio"], "text"]),
        ("web_search_options", [{}]),
        ("reasoning_effort", ["very"]),
        ("verbosity", ["high"]),
        ("store", ["x", 0]),
        ("service_tier", [1]),
        ("metadata", ["x"]),
        ("parallel_tool_calls", [1]),
        ("max_completion_tokens", [0, -1, 1.5, True]),
        ("max_tokens", [0]),
        ("echo", [True]),
        ("prompt", ["hi"]),
    ],
)
def test_a_chat_refuses_by_name_what_it_does_not_serve(name: str, values: list[object]) -> None:  # FAN-1
    for value in values:
        assert refusal("chat", **{name: value}).param == name, value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("suffix", ["x", 1]),
        ("top_logprobs", [1, 0]),
        ("logprobs", [True]),
        ("echo", [1, "true"]),
        ("max_completion_tokens", [5]),
        ("tools", [[]]),
        ("messages", [[]]),
        ("prediction", [{"type": "content", "content": "x"}]),
    ],
)
def test_a_completion_refuses_by_name_what_it_does_not_serve(name: str, values: list[object]) -> None:  # FAN-1
    for value in values:
        assert refusal("completion", **{name: value}).param == name, value


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 0),
        ("frequency_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("logit_bias", {}),
        ("logprobs", False),
        ("user", "someone"),
        ("stop", []),
    ],
)
def test_a_value_that_asks_for_nothing_is_accepted(kind: str, name: str, value: object) -> None:
    assert parse(kind, **{name: value}) == parse(kind)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("functions", []),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("store", True),
        ("service_tier", "auto"),
        ("service_tier", "flex"),
        ("parallel_tool_calls", True),
        ("parallel_tool_calls", False),
        ("top_logprobs", 0),
    ],
)
def test_a_chat_accepts_a_value_that_asks_for_nothing(name: str, value: object) -> None:
    assert parse("chat", **{name: value}) == parse("chat")


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("chat", openai.types.chat.completion_create_params.CompletionCreateParamsStreaming),
        ("completion", openai.types.completion_create_params.CompletionCreateParamsStreaming),
    ],
)
def test_every_field_of_the_official_client_is_known_and_null_in_it_is_the_same_as_absent(
    kind: str, schema: type
) -> None:  # FAN-5; case nonfinite-numbers
    extensions = {"top_k", "min_p", "ignore_eos", "repetition_penalty", "prompt_lookup", "min_tokens", "stop_token_ids"}
    extensions |= {"skip_special_tokens", "cache_salt", "priority", "prompt_logprobs", "return_token_ids"}
    for name in (get_type_hints(schema).keys() | extensions) - LEAST[kind].keys():
        assert parse(kind, **{name: None}) == parse(kind), name


@pytest.mark.parametrize(
    "content",
    ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], [{"type": "text", "text": "a\nb"}]],
)
def test_a_prediction_is_a_text_in_the_forms_of_a_message(content: object) -> None:
    assert parse("chat", prediction={"type": "content", "content": content}).params.prediction == "a\nb"
    assert parse("chat", prediction={"type": "content", "content": content}, n=3).params.n == 3


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("a", "prediction"),
        (1, "prediction"),
        ([], "prediction"),
        (True, "prediction"),
        ({}, "prediction.type"),
        ({"content": "a"}, "prediction.type"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": 1, "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": 1}, "prediction.content"),
        ({"type": "content", "content": []}, "prediction.content"),
        ({"type": "content", "content": ["a"]}, "prediction.content.0"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content.0.type"),
        ({"type": "content", "content": [{"type": "text", "text": 1}]}, "prediction.content.0.text"),
        ({"type": "content", "content": "a", "x": 1}, "prediction.x"),
    ],
)
def test_a_wrong_prediction_is_refused_by_the_path_of_its_fault(prediction: object, param: str) -> None:  # FAN-1
    assert refusal("chat", prediction=prediction).param == param


@both
def test_an_unknown_field_is_refused_in_the_words_of_openai(kind: str) -> None:
    assert str(refusal(kind, foo=1)) == "Unrecognized request argument supplied: foo"


@both
def test_the_messages_about_n_are_those_clients_match(kind: str) -> None:  # FAN-2, FAN-6
    assert str(refusal(kind, n=0)) == "n must be at least 1, got 0."
    assert str(refusal(kind, n=129)) == "n must be at most 128, got 129."
    assert str(refusal(kind, n=3, temperature=0)) == "n must be 1 when using greedy sampling, got 3."


@both
def test_the_bounds_of_the_server_are_kept(kind: str) -> None:  # FAN-2, FAN-6
    assert parse(kind, Limits(max_n=200), n=200).params.n == 200
    assert parse(kind, Limits(greedy_n="replicate"), n=3, temperature=0).params.n == 3
    assert parse(kind, n=3, temperature=1e-6).params.greedy is False


def test_prompts_times_n_are_bounded() -> None:  # FAN-3; case huge-n
    assert refusal("completion", prompt=["x"] * 5000, n=50).param == "prompt"
    assert refusal("completion", Limits(max_choices=5), prompt=["x"] * 3, n=2).param == "prompt"
    assert parse("completion", Limits(max_choices=6), prompt=["x"] * 3, n=2).params.n == 2


def test_too_many_choices_are_refused_before_any_prompt_is_looked_at() -> None:  # case huge-n
    assert refusal("completion", prompt=["x", {}], n=129).param == "n"
    assert refusal("completion", Limits(max_choices=1), prompt=["x", {}]).param == "prompt"
    assert refusal("chat", messages=[{}], n=129).param == "n"
    assert refusal("chat", messages=[{}], foo=1).param == "foo"


@both
def test_the_seeds_of_int64_are_accepted_and_minus_one_is_none(kind: str) -> None:  # FAN-14
    for seed in (INT64_MIN, -2, 0, INT64_MAX):
        assert parse(kind, seed=seed).params.seed == seed
        assert parse(kind, seed=seed).params.seeded
    assert not parse(kind, seed=-1).params.seeded


@both
def test_a_single_stop_string_is_a_list_of_one(kind: str) -> None:
    assert parse(kind, stop="END").params.stop == ("END",)


def test_a_completion_of_no_tokens_is_served() -> None:  # case max-tokens-edges
    assert parse("completion", max_tokens=0).params.max_tokens == 0


def test_of_two_names_for_the_length_of_a_chat_the_smaller_value_counts() -> None:  # case max-tokens-edges
    assert parse("chat", max_completion_tokens=3).params.max_tokens == 3
    assert parse("chat", max_tokens=5, max_completion_tokens=3).params.max_tokens == 3
    assert parse("chat", max_tokens=3, max_completion_tokens=5).params.max_tokens == 3
    assert parse("chat", max_tokens=1000000000).params.max_tokens == 1000000000


@both
def test_best_of_is_n_at_least_and_the_most_choices_at_most(kind: str) -> None:  # FAN-32
    assert parse(kind).params.best_of is None
    assert parse(kind, best_of=None).params.best_of is None
    assert parse(kind, n=2, best_of=5).params.best_of == 5
    for wrong in (1, 0, 129, 10**30, True, 3.0, "3"):
        assert refusal(kind, n=2, best_of=wrong).param == "best_of", wrong
    assert str(refusal(kind, best_of=129)) == "best_of must be at most 128, got 129."
    assert str(refusal(kind, n=2, best_of=1)) == "best_of must be at least 2, got 1."


@both
def test_what_has_to_be_ranked_cannot_be_streamed(kind: str) -> None:  # FAN-32
    error = refusal(kind, stream=True, n=2, best_of=3)
    assert (error.param, str(error)) == (
        "best_of",
        "best_of must be n when stream is true, got best_of = 3 with n = 2.",
    )
    assert parse(kind, stream=True, n=2, best_of=2).stream


def test_prompts_are_counted_with_their_candidates() -> None:  # FAN-3, FAN-32
    limits = Limits(max_choices=6)
    assert parse("completion", limits, prompt=["a", "b"], best_of=3)
    assert refusal("completion", limits, prompt=["a", "b", "c"], best_of=3).param == "prompt"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "max_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 5}, "max_tokens"),
    ],
)
def test_a_chat_remembers_what_it_called_the_length_that_counts(fields: dict[str, object], name: str) -> None:
    assert parse("chat", **fields).names["max_tokens"] == name


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 2**31])
def test_a_length_out_of_range_is_refused_by_the_name_it_was_given(name: str, value: int) -> None:
    error = refusal("chat", **{name: value})
    assert error.param == name
    assert str(error).startswith(f"{name} must be ")


@both
def test_stream_options_choose_the_usage_of_a_stream(kind: str) -> None:  # case n-usage-and-usage-chunk
    plain = parse(kind, stream=True)
    assert (plain.stream, plain.include_usage, plain.continuous_usage) == (True, False, False)
    last = parse(kind, stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert (last.include_usage, last.continuous_usage) == (True, False)
    every = parse(kind, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (every.include_usage, every.continuous_usage) == (True, True)


@both
@pytest.mark.parametrize(
    ("stream", "options", "param"),
    [
        (False, {"include_usage": True}, "stream_options"),
        (None, {}, "stream_options"),
        (True, {"include_usage": 1}, "stream_options.include_usage"),
        (True, {"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        (True, {"include_obfuscation": True}, "stream_options.include_obfuscation"),
        (True, {"foo": 1}, "stream_options.foo"),
    ],
)
def test_stream_options_that_mean_nothing_are_refused(
    kind: str, stream: bool | None, options: dict[str, object], param: str
) -> None:  # case n-usage-and-usage-chunk
    assert refusal(kind, stream=stream, stream_options=options).param == param


@both
def test_a_request_is_refused_the_same_whether_streamed_or_not(kind: str) -> None:
    # case error-before-first-byte-is-http-status
    bad: list[dict[str, object]] = [{"top_p": 7}, {"model": 1}, {"response_format": {"type": "json_schema"}}]
    for fields in bad:
        plain, streamed = refusal(kind, **fields), refusal(kind, **fields, stream=True)
        assert (str(plain), plain.param, plain.code) == (str(streamed), streamed.param, streamed.code)


def test_a_model_is_looked_up_by_its_exact_name() -> None:  # case model-404
    check_model("tiny-chat", ["tiny-chat", "other"])
    for name in ("nope", "Tiny-Chat", ""):
        with pytest.raises(ModelNotFoundError, match="tiny-chat, other") as caught:
            check_model(name, ["tiny-chat", "other"])
        assert caught.value.param == "model"


def test_no_error_gives_back_megabytes_of_the_request() -> None:
    long = "x" * 10**6
    values: dict[str, object] = {long: 1, "temperature": long, "tool_choice": long, "stop": [[long]], "user": [long]}
    errors: list[ParamError] = [refusal("chat", **{name: value}) for name, value in values.items()]
    with pytest.raises(ModelNotFoundError) as caught:
        check_model(long, ["tiny-chat"])
    for error in [*errors, caught.value]:
        assert len(str(error)) < 200
        assert len(error.param or "") < 100
