"""The bytes of a request into a Call, or a ParamError that names the field at fault.

Owns: the fields of each endpoint, and the order of the checks: what is cheap to refuse is refused before a message
or a prompt is looked at.
Must not know: tokens, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from trioserve.errors import ModelNotFoundError, ParamError
from trioserve.params import INT32_MAX, Limits
from trioserve.wire import neutral
from trioserve.wire.body import open_body
from trioserve.wire.calls import ChatCall, CompletionCall
from trioserve.wire.fields import Fields, shorten
from trioserve.wire.messages import build_messages
from trioserve.wire.options import (
    check_best_of,
    take_chat_logprobs,
    take_params,
    take_prediction,
    take_streaming,
    take_top_count,
)
from trioserve.wire.prompts import build_prompts, split_prompts
from trioserve.wire.rendering import take_rendering
from trioserve.wire.structured import take_response_format
from trioserve.wire.tools import take_tools

DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's max_tokens for a completion that gives none, where there is room. A chat goes on to the context's end."""


def parse_chat(body: bytes, limits: Limits) -> ChatCall:
    """A request to /v1/chat/completions.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    streaming = take_streaming(fields)
    max_tokens, max_tokens_name = _take_chat_max_tokens(fields)
    prompt_logprobs = take_top_count(fields, "prompt_logprobs")
    params = take_params(
        fields,
        max_tokens,
        request=fields,
        logprobs=take_chat_logprobs(fields),
        prompt_logprobs=prompt_logprobs,
        prediction=take_prediction(fields),
        response_format=take_response_format(fields),
    )
    return_token_ids = fields.flag("return_token_ids")
    limits.check(params, prompts=1)
    check_best_of(params, streaming)
    tools = take_tools(fields)
    rendering = take_rendering(fields)
    neutral.take_neutral(fields, neutral.CHAT)
    neutral.take_labels(fields, neutral.CHAT_LABELS)
    messages = fields.array("messages")
    fields.finish()
    if messages is None:
        raise fields.missing("messages")
    return ChatCall(
        model=model,
        params=params,
        stream=streaming.stream,
        include_usage=streaming.include_usage,
        continuous_usage=streaming.continuous_usage,
        return_token_ids=return_token_ids,
        prompt_logprobs=prompt_logprobs,
        names={"prompt": "messages", "max_tokens": max_tokens_name},
        messages=build_messages(messages, "messages"),
        tools=tools,
        rendering=rendering,
    )


def parse_completion(body: bytes, limits: Limits) -> CompletionCall:
    """A request to /v1/completions.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    streaming = take_streaming(fields)
    echo = fields.flag("echo")
    logprobs = _take_completion_logprobs(fields)
    prompt_logprobs = take_top_count(fields, "prompt_logprobs")
    params = take_params(
        fields,
        fields.integer("max_tokens", None),
        request=fields,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    if echo and logprobs is not None:
        # an echo is scored like the rest of the text
        params = attrs.evolve(params, prompt_logprobs=max(logprobs, prompt_logprobs or 0))
    return_token_ids = fields.flag("return_token_ids")
    neutral.take_neutral(fields, neutral.COMPLETION)
    neutral.take_labels(fields, neutral.COMPLETION_LABELS)
    prompt = fields.take("prompt")
    fields.finish()
    if prompt is None:
        raise fields.missing("prompt")
    prompts = split_prompts(prompt)
    limits.check(params, len(prompts))
    check_best_of(params, streaming)
    return CompletionCall(
        model=model,
        params=params,
        stream=streaming.stream,
        include_usage=streaming.include_usage,
        continuous_usage=streaming.continuous_usage,
        return_token_ids=return_token_ids,
        prompt_logprobs=prompt_logprobs,
        prompts=build_prompts(prompts),
        echo=echo,
    )


def _take_completion_logprobs(fields: Fields) -> int | None:
    """``logprobs``: how many of the likeliest tokens to tell. False, which is none, is what a chat writes."""
    if fields.is_false("logprobs"):
        fields.take("logprobs")
    return take_top_count(fields, "logprobs")


def check_model(name: str, served: Sequence[str]) -> None:
    """Raise ModelNotFoundError unless ``name`` is one of the models ``served``."""
    if name not in served:
        raise ModelNotFoundError(shorten(name), tuple(served))


def _take_chat_max_tokens(fields: Fields) -> tuple[int | None, str]:
    """``max_completion_tokens``, or its older name ``max_tokens``; of both, the smaller one counts. And its name.

    Unlike a completion, which can echo its prompt, a chat of no tokens would be of no use: 0 is refused.
    """
    given: list[tuple[int, str]] = []
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.integer(name, None)
        if value is None:
            continue
        if not 1 <= value <= INT32_MAX:
            raise ParamError(f"{name} must be between 1 and {INT32_MAX}, got {value}.", name)
        given.append((value, name))
    return min(given, default=(None, "max_tokens"))
