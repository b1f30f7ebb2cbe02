"""The fields that both endpoints share: how to draw, and how to stream.

Owns: their names and defaults in a request. Must not know: prompts, messages.
The ranges are those of SamplingParams.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import attrs

from trioserve.errors import ParamError
from trioserve.params import INT32_MAX, MAX_LOGPROBS, ChoiceParams, SamplingParams, StopWhen
from trioserve.structure import Structure
from trioserve.wire.fields import Fields, shown
from trioserve.wire.messages import take_content
from trioserve.wire.neutral import STREAM_OPTIONS, take_neutral
from trioserve.wire.prompts import build_token_ids
from trioserve.wire.structured import choose_structure, take_structured_outputs

_DEFAULTS: Final = SamplingParams()


@attrs.frozen
class Streaming:
    """Whether an answer is streamed, and which chunks tell its usage."""

    stream: bool
    include_usage: bool
    continuous_usage: bool


def take_streaming(fields: Fields) -> Streaming:
    """``stream`` and ``stream_options``.

    Raises:
        ParamError: stream_options without stream, or continuous_usage_stats without include_usage.
    """
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    if options is None:
        return Streaming(stream, include_usage=False, continuous_usage=False)
    if not stream:
        raise ParamError("stream_options is only allowed when stream is true.", "stream_options")
    include_usage = options.flag("include_usage")
    continuous_usage = options.flag("continuous_usage_stats")
    if continuous_usage and not include_usage:
        path = options.path("continuous_usage_stats")
        raise ParamError(f"{path} is only allowed when include_usage is true.", path)
    take_neutral(options, STREAM_OPTIONS)
    options.finish()
    return Streaming(stream, include_usage, continuous_usage)


def check_best_of(params: SamplingParams, streaming: Streaming) -> None:
    """Raise ParamError for a stream of choices that are not known before all candidates have finished (FAN-32)."""
    if streaming.stream and params.ranked:
        raise ParamError(
            f"best_of must be n when stream is true, got best_of = {params.candidates} with n = {params.n}.", "best_of"
        )


def take_params(
    fields: Fields,
    max_tokens: int | None,
    *,
    request: Fields,
    logprobs: int | None,
    prompt_logprobs: int | None,
    prediction: str | None = None,
    response_format: Structure | None = None,
    stop_name: str = "stop",
) -> SamplingParams:
    """All that SamplingParams holds, but for what differs between the endpoints: max_tokens, which has another name
    and default in each; the log-probabilities; prediction and response_format, which not all have; and what stop is
    called. ``request`` has the fields that are about the request and not about how to draw; they may be the same.

    Raises:
        ParamError: a value of the wrong type or out of range.
    """
    structure = choose_structure(response_format, take_structured_outputs(fields))
    include_stop = fields.flag("include_stop_str_in_output")
    if include_stop and structure is not None:
        name = "include_stop_str_in_output"
        raise ParamError(f"{name} can't be given together with {structure.param}.", name)
    return SamplingParams(
        n=fields.integer("n", _DEFAULTS.n),
        best_of=fields.integer("best_of", _DEFAULTS.best_of),
        max_tokens=max_tokens,
        temperature=fields.number("temperature", _DEFAULTS.temperature),
        top_p=fields.number("top_p", _DEFAULTS.top_p),
        top_k=fields.integer("top_k", _DEFAULTS.top_k),
        min_p=fields.number("min_p", _DEFAULTS.min_p),
        seed=fields.integer("seed", _DEFAULTS.seed),
        stop=_take_stop(fields, stop_name),
        stop_token_ids=_take_stop_token_ids(fields),
        include_stop=include_stop,
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", _DEFAULTS.min_tokens),
        presence_penalty=fields.number("presence_penalty", _DEFAULTS.presence_penalty),
        frequency_penalty=fields.number("frequency_penalty", _DEFAULTS.frequency_penalty),
        repetition_penalty=fields.number("repetition_penalty", _DEFAULTS.repetition_penalty),
        logit_bias=_take_logit_bias(fields),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=_take_skip_special(fields),
        priority=request.integer("priority", _DEFAULTS.priority),
        cache_salt=request.text("cache_salt", None),
        choice_params=_take_choice_params(fields),
        stop_when=_take_stop_when(fields),
        choice_errors=_take_choice_errors(fields),
        prompt_lookup=fields.switch("prompt_lookup"),
        prediction=prediction,
        structure=structure,
    )


ABOUT_REQUEST: Final = ("priority", "cache_salt")
"""What params have that is not about how to draw."""


@contextmanager
def inside(fields: Fields, but: Sequence[str] = ()) -> Iterator[None]:
    """Let errors about params, which know only the name of a field, tell its path in ``fields``.

    ``but``: the fields that are not in there.
    """
    try:
        yield
    except ParamError as error:
        # of a range, which params know without knowing where it stands; of a type, the path is there already
        path = fields.path("")
        if error.param is None or error.param in but or error.param.startswith(path):
            raise
        raise ParamError(f"{path}{error}", fields.path(error.param)) from None


def take_top_count(fields: Fields, name: str) -> int | None:
    """How many of the likeliest tokens to tell; None: no log-probabilities.

    Raises:
        ParamError: it is no integer from 0 to MAX_LOGPROBS.
    """
    value = fields.integer(name, None)
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise fields.wrong(name, f"an integer from 0 to {MAX_LOGPROBS}", value)
    return value


def take_chat_logprobs(fields: Fields) -> int | None:
    """``logprobs`` and ``top_logprobs`` of a chat: how many of the likeliest tokens to tell; None: nothing.

    Raises:
        ParamError: top_logprobs without logprobs, or out of range.
    """
    wanted = fields.flag("logprobs")
    top = take_top_count(fields, "top_logprobs")
    if not wanted:
        # none of the likeliest ones is what a client without log-probabilities gets
        if top:
            raise ParamError("top_logprobs is only allowed when logprobs is true.", "top_logprobs")
        return None
    return top or 0


def take_prediction(fields: Fields) -> str | None:
    """The text of ``prediction``, an object with the type "content".

    Raises:
        ParamError: it is anything else.
    """
    prediction = fields.nested("prediction")
    if prediction is None:
        return None
    kind = prediction.required_text("type")
    if kind != "content":
        raise prediction.wrong("type", "'content'", kind)
    text = take_content(prediction)
    prediction.finish()
    return text


def _take_choice_params(fields: Fields) -> tuple[ChoiceParams, ...]:
    path = fields.path("choice_params")
    items = fields.array("choice_params") or []
    return tuple(_build_choice_params(Fields.of(item, f"{path}.{j}")) for j, item in enumerate(items))


def _build_choice_params(fields: Fields) -> ChoiceParams:
    with inside(fields):
        own = ChoiceParams(
            max_tokens=fields.integer("max_tokens", None),
            temperature=fields.number("temperature", None),
            top_p=fields.number("top_p", None),
            top_k=fields.integer("top_k", None),
            min_p=fields.number("min_p", None),
            seed=fields.integer("seed", None),
        )
    fields.finish()
    return own


def _take_stop_when(fields: Fields) -> StopWhen | None:
    rule = fields.nested("stop_when")
    if rule is None:
        return None
    stop_when = StopWhen(
        finished=rule.integer("finished", None),
        agree=rule.integer("agree", None),
        pattern=rule.text("pattern", None),
    )
    rule.finish()
    return stop_when


def _take_choice_errors(fields: Fields) -> Literal["fail", "isolate"]:
    value = fields.text("choice_errors", "fail")
    if value == "fail":
        return "fail"
    if value == "isolate":
        return "isolate"
    raise fields.wrong("choice_errors", "'fail' or 'isolate'", value)


def _take_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    """Token ids, as JSON names a field of an object, and what is added to their logits."""
    biases = fields.nested("logit_bias")
    return () if biases is None else tuple(_take_biases(biases, fields.path("logit_bias")))


def _take_biases(biases: Fields, path: str) -> Iterator[tuple[int, float]]:
    for name in biases.names():
        # one way to write an id, so that no two names are the same token
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", name) or int(name) > INT32_MAX:
            raise ParamError(f"The names of {path} must be token ids, from 0 to {INT32_MAX}; got {shown(name)}.", path)
        try:
            bias = biases.number(name, None)
        except ParamError as error:
            raise ParamError(str(error), path) from None
        if bias is None:
            raise ParamError(f"{path}.{name} must be a number, got null.", path)
        yield int(name), bias


def _take_stop_token_ids(fields: Fields) -> tuple[int, ...]:
    return build_token_ids(fields.array("stop_token_ids") or [], fields.path("stop_token_ids"))


def _take_skip_special(fields: Fields) -> bool:
    skip = fields.switch("skip_special_tokens")
    return _DEFAULTS.skip_special_tokens if skip is None else skip


def _take_stop(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.take(name)
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise fields.wrong(name, "a string or an array of strings", value)
    return tuple(texts)
