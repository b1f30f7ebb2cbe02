"""Tokens in, tokens out: /inference/v1/generate. The shapes are vLLM's, with n choices.

Owns: the fields of a request, the answer and the chunks. Must not know: texts.
A client that has the tokenizer asks here; ``wire.rendered`` writes such requests for one that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from trioserve.errors import ParamError
from trioserve.events import ChoiceFinished, Event, PromptScored, TokenLogprob
from trioserve.params import Limits, SamplingParams
from trioserve.wire.body import open_body
from trioserve.wire.calls import Call
from trioserve.wire.chunks import DONE, PING, error_event, frame
from trioserve.wire.fields import Fields
from trioserve.wire.line import json_line
from trioserve.wire.logprobs import id_logprobs
from trioserve.wire.neutral import GENERATE, GENERATE_PARAMS, take_neutral
from trioserve.wire.options import (
    ABOUT_REQUEST,
    check_best_of,
    inside,
    take_params,
    take_prediction,
    take_streaming,
    take_top_count,
)
from trioserve.wire.tally import Head, Tally, ending_fields
from trioserve.wire.tokenizing import take_token_ids

MAX_REQUEST_ID: Final = 128


@attrs.frozen(kw_only=True)
class GenerateCall(Call):
    """A request to /inference/v1/generate."""

    request_id: str | None
    """None: the server makes one."""
    token_ids: tuple[int, ...]
    """At least one."""


def parse_generate(body: bytes, limits: Limits) -> GenerateCall:
    """A request to /inference/v1/generate.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.text("model", None)
    if model == "":
        raise fields.wrong("model", "the id of a model", model)
    request_id = _take_request_id(fields)
    streaming = take_streaming(fields)
    given = fields.nested("sampling_params") or Fields({}, "sampling_params")
    with inside(given, but=ABOUT_REQUEST):
        params = _take_params(given, fields)
        limits.check(params, prompts=1)
        check_best_of(params, streaming)
    take_neutral(fields, GENERATE)
    token_ids = take_token_ids(fields, "token_ids")
    fields.finish()
    if not token_ids:
        raise ParamError("token_ids must have at least one token id.", "token_ids")
    return GenerateCall(
        model=model or "",
        request_id=request_id,
        params=params,
        stream=streaming.stream,
        include_usage=streaming.include_usage,
        continuous_usage=streaming.continuous_usage,
        prompt_logprobs=params.prompt_logprobs,
        names={"prompt": "token_ids", **_names(params)},
        token_ids=token_ids,
    )


def _take_params(given: Fields, fields: Fields) -> SamplingParams:
    params = take_params(
        given,
        given.integer("max_tokens", None),
        request=fields,
        logprobs=take_top_count(given, "logprobs"),
        prompt_logprobs=take_top_count(given, "prompt_logprobs"),
        prediction=take_prediction(given),
    )
    take_neutral(given, GENERATE_PARAMS)
    given.finish()
    return params


def _names(params: SamplingParams) -> dict[str, str]:
    """What the errors of the engine about params are to be called."""
    names = [
        *(attribute.name for attribute in attrs.fields(SamplingParams) if attribute.name not in ABOUT_REQUEST),
        *(f"choice_params.{j}.max_tokens" for j in range(len(params.choice_params))),
    ]
    return {name: f"sampling_params.{name}" for name in names}


def _take_request_id(fields: Fields) -> str | None:
    request_id = fields.text("request_id", None)
    if request_id is not None and not (
        0 < len(request_id) <= MAX_REQUEST_ID and request_id.isascii() and request_id.isprintable()
    ):
        raise ParamError(f"request_id must be 1 to {MAX_REQUEST_ID} printable ASCII characters.", "request_id")
    return request_id


class TokenAnswerBuilder:
    """Makes the body of one answer: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head, logprobs: int | None) -> None:
        """``logprobs``: how many of the likeliest tokens to tell; None: no log-probabilities."""
        self._head: Final = head
        self._logprobs: Final = logprobs
        self._tally: Final = Tally(head)
        self._scored: PromptScored | None = None
        self._token_ids: Final[list[list[int]]] = [[] for _ in range(head.choices)]
        self._scores: Final[list[list[TokenLogprob]]] = [[] for _ in range(head.choices)]

    def __repr__(self) -> str:
        return f"<TokenAnswerBuilder of {self._head.id}: {self._tally!r}>"

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, PromptScored):
            self._scored = event
        elif isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        else:
            self._tally.add(event)
            self._token_ids[event.index] += event.token_ids
            self._scores[event.index] += event.logprobs

    def answer(self) -> bytes:
        """The body, in JSON, its choices in index order. Only once all choices have finished."""
        head = self._head
        return json_line(
            {
                "request_id": head.id,
                "choices": [
                    {
                        "index": event.index,
                        **ending_fields(event),
                        "logprobs": self._told(event.index),
                        "token_ids": self._token_ids[event.index],
                        **({"mean_logprob": event.mean_logprob} if head.ranked else {}),
                    }
                    for event in self._tally.endings()
                ],
                "usage": self._tally.usage(),
                "prompt_logprobs": None,
                **head.of_prompt(0, self._scored),
            }
        )

    def _told(self, index: int) -> dict[str, object] | None:
        return None if self._logprobs is None else id_logprobs(self._scores[index], self._logprobs)


class TokenChunkBuilder:
    """Makes the bytes of one stream: ``start``, ``feed`` for every event, ``end``; or ``fail`` in place of the rest."""

    def __init__(self, head: Head, logprobs: int | None, *, include_usage: bool, continuous_usage: bool) -> None:
        """``logprobs``: how many of the likeliest tokens to tell; None: no log-probabilities."""
        assert include_usage or not continuous_usage
        self._head: Final = head
        self._logprobs: Final = logprobs
        self._tally: Final = Tally(head)
        self._include_usage: Final = include_usage
        self._continuous_usage: Final = continuous_usage

    def __repr__(self) -> str:
        return f"<TokenChunkBuilder of {self._head.id}: {self._tally!r}>"

    def start(self) -> bytes:
        """There is nothing to say before the first event."""
        return b""

    def feed(self, event: Event) -> bytes:
        """The chunk of one event; b"" for a delta that has nothing to tell yet."""
        if isinstance(event, PromptScored):
            return self._chunk([], self._head.of_prompt(0, event))
        choice: dict[str, object] = {"index": event.index, "token_ids": []}
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
            return self._of_choice(event.index, {**choice, **ending_fields(event)})
        self._tally.add(event)
        if not event.token_ids and not event.logprobs:
            return b""
        has_logprobs = self._logprobs is not None and event.logprobs
        told = id_logprobs(event.logprobs, self._logprobs or 0) if has_logprobs else None
        return self._of_choice(
            event.index, {**choice, "token_ids": event.token_ids, "logprobs": told, "finish_reason": None}
        )

    def end(self) -> bytes:
        """The end of the stream, after all choices have finished: the usage if it was asked for, and [DONE]."""
        usage = self._tally.usage()
        return self._chunk([], {"usage": usage}) + DONE if self._include_usage else DONE

    def fail(self, error: BaseException) -> bytes:
        """What takes the place of the rest when the request fails after its headers."""
        return error_event(error)

    def ping(self) -> bytes:
        """What fills a long silence (FAN-20)."""
        return PING

    def _of_choice(self, index: int, choice: dict[str, object]) -> bytes:
        usage = {"usage": self._tally.choice_usage(index)} if self._continuous_usage else {}
        return self._chunk([choice], usage)

    def _chunk(self, choices: list[dict[str, object]], beside: Mapping[str, object]) -> bytes:
        return frame(json_line({"request_id": self._head.id, "choices": choices, **beside}))
