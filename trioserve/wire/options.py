"""The fields that both endpoints share: how to draw, and how to stream.

Owns: their names and defaults in a request. Must not know: prompts, messages.
The ranges are those of SamplingParams.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from trioserve.errors import ParamError
from trioserve.params import ChoiceParams, SamplingParams, StopWhen
from trioserve.wire.fields import Fields
from trioserve.wire.messages import take_content
from trioserve.wire.neutral import STREAM_OPTIONS, take_neutral

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


def take_params(fields: Fields, max_tokens: int | None, prediction: str | None = None) -> SamplingParams:
    """All that SamplingParams holds, but for what differs between the endpoints: max_tokens, which has another name
    and default in each, and prediction, which only a chat has.

    Raises:
        ParamError: a value of the wrong type or out of range.
    """
    return SamplingParams(
        n=fields.integer("n", _DEFAULTS.n),
        best_of=fields.integer("best_of", _DEFAULTS.best_of),
        max_tokens=max_tokens,
        temperature=fields.number("temperature", _DEFAULTS.temperature),
        top_p=fields.number("top_p", _DEFAULTS.top_p),
        top_k=fields.integer("top_k", _DEFAULTS.top_k),
        min_p=fields.number("min_p", _DEFAULTS.min_p),
        seed=fields.integer("seed", _DEFAULTS.seed),
        stop=_take_stop(fields),
        ignore_eos=fields.flag("ignore_eos"),
        choice_params=_take_choice_params(fields),
        stop_when=_take_stop_when(fields),
        choice_errors=_take_choice_errors(fields),
        prompt_lookup=fields.switch("prompt_lookup"),
        prediction=prediction,
    )


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
    try:
        own = ChoiceParams(
            max_tokens=fields.integer("max_tokens", None),
            temperature=fields.number("temperature", None),
            top_p=fields.number("top_p", None),
            top_k=fields.integer("top_k", None),
            min_p=fields.number("min_p", None),
            seed=fields.integer("seed", None),
        )
    except ParamError as error:
        # of a range, which ChoiceParams knows without knowing where it stands; of a type, the path is there already
        if error.param is None or error.param.startswith(fields.path("")):
            raise
        raise ParamError(f"{fields.path('')}{error}", fields.path(error.param)) from None
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


def _take_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise fields.wrong("stop", "a string or an array of strings", value)
    return tuple(texts)
