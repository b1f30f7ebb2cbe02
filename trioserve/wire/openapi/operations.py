"""The paths, as a client sees them.

Owns: what each path reads and answers. Must not know: their handlers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
import msgspec

from trioserve.wire.openapi import (
    answers,
    embeddings,
    message_answers,
    message_events,
    message_requests,
    requests,
    response_answers,
    response_events,
    response_requests,
    tokens,
)
from trioserve.wire.openapi.marks import extension_marks
from trioserve.wire.openapi.refusals import (
    ANTHROPIC,
    OPENAI,
    Envelope,
    Refusal,
    refusals_of_cancelling,
    refusals_of_generating,
    refusals_of_looking,
    refusals_of_models,
    refusals_of_tokenizing,
)


@attrs.frozen(kw_only=True)
class Operation:
    """A method of a path."""

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    answer: type[msgspec.Struct] | type[attrs.AttrsInstance] | None
    """None: text."""
    many: bool = False
    """The answer is an array of these."""
    refusals: list[Refusal] = attrs.field(factory=refusals_of_looking)
    request: type[msgspec.Struct] | None = None
    chunk: type[msgspec.Struct] | None = None
    """The event of a streamed answer that ends with [DONE]."""
    events: tuple[type[msgspec.Struct], ...] = ()
    """The events of a streamed answer that are named."""
    stream: str = ""
    """What is said of a stream of named events."""
    parts: tuple[type[msgspec.Struct], ...] = ()
    """Schemas that only others written by hand refer to."""
    envelope: Envelope = OPENAI
    """What errors look like."""
    parameters: tuple[str, ...] = ()
    """Names in ``components.parameters``."""
    marks: Mapping[str, bool | str] = attrs.field(factory=dict)
    keyless: bool = False
    """It is answered without an API key, whatever the server wants."""


def operations_of(engine: type[attrs.AttrsInstance]) -> list[Operation]:
    """All operations. ``engine``: the class that /v1/engine gives the fields of."""
    return [
        *_generating(),
        *_in_other_dialects(),
        *_about_tokens(),
        *_about_models(),
        *_cancelling(),
        *_about_the_server(engine),
    ]


def _generating() -> list[Operation]:
    return [
        Operation(
            method="post",
            path="/v1/chat/completions",
            summary="Answer a conversation.",
            request=requests.ChatRequest,
            answer=answers.ChatCompletion,
            chunk=answers.ChatChunk,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
        ),
        Operation(
            method="post",
            path="/v1/completions",
            summary="Continue texts or token ids.",
            request=requests.CompletionRequest,
            answer=answers.Completion,
            chunk=answers.CompletionChunk,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
        ),
        Operation(
            method="post",
            path="/v1/embeddings",
            summary="Make vectors of texts, if the model is made for it or the server was told to.",
            request=embeddings.EmbeddingsRequest,
            answer=embeddings.EmbeddingList,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
        ),
    ]


def _in_other_dialects() -> list[Operation]:
    ours = extension_marks(None)
    return [
        Operation(
            method="post",
            path="/v1/responses",
            summary="Answer a conversation, in the form of OpenAI's newer API. Nothing is stored.",
            request=response_requests.ResponsesRequest,
            answer=response_answers.Response,
            events=response_events.EVENTS,
            stream=response_events.STREAM,
            parts=response_requests.INPUT_ITEMS,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
        ),
        Operation(
            method="post",
            path="/v1/messages",
            summary="Answer a conversation, in the form of Anthropic's API.",
            request=message_requests.MessagesRequest,
            answer=message_answers.AssistantAnswer,
            events=message_events.EVENTS,
            stream=message_events.STREAM,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
            envelope=ANTHROPIC,
            marks=ours,
        ),
        Operation(
            method="post",
            path="/v1/messages/count_tokens",
            summary="Count the tokens of a conversation, in the form of Anthropic's API.",
            request=message_requests.CountRequest,
            answer=message_answers.TokenCount,
            refusals=refusals_of_tokenizing(),
            envelope=ANTHROPIC,
            marks=ours,
        ),
    ]


def _about_models() -> list[Operation]:
    return [
        Operation(method="get", path="/v1/models", summary="What is served.", answer=answers.Models),
        Operation(
            method="get",
            path="/v1/models/{id}",
            summary="One model that is served.",
            answer=answers.Model,
            parameters=("model",),
            refusals=refusals_of_models(),
        ),
    ]


def _cancelling() -> list[Operation]:
    marks = extension_marks(34)
    return [
        Operation(
            method="delete",
            path="/v1/requests/{id}",
            summary="End a running request: all its choices.",
            answer=answers.Cancelled,
            parameters=("request",),
            refusals=refusals_of_cancelling(),
            marks=marks,
        ),
        Operation(
            method="delete",
            path="/v1/requests/{id}/choices/{index}",
            summary="End one choice of a running request.",
            answer=answers.Cancelled,
            parameters=("request", "index"),
            refusals=refusals_of_cancelling(),
            marks=marks,
        ),
    ]


def _about_the_server(engine: type[attrs.AttrsInstance]) -> list[Operation]:
    ours = extension_marks(None)
    return [
        Operation(method="get", path="/v1/engine", summary="What runs at this moment.", answer=engine, marks=ours),
        Operation(
            method="get",
            path="/metrics",
            summary="What ran, for Prometheus: its text format, or OpenMetrics if the Accept header asks for it.",
            answer=None,
            marks=ours,
        ),
        Operation(
            method="get",
            path="/health",
            summary="Whether the server runs.",
            answer=answers.Health,
            marks=ours,
            keyless=True,
        ),
        Operation(
            method="get",
            path="/version",
            summary="The server's version.",
            answer=answers.Version,
            marks=ours,
            keyless=True,
        ),
        Operation(method="get", path="/openapi.json", summary="This document.", answer=answers.Document, marks=ours),
    ]


def _about_tokens() -> list[Operation]:
    ours = extension_marks(None)
    return [
        Operation(
            method="post",
            path="/v1/chat/completions/render",
            summary="The prompt of a conversation, in tokens, as a request to /inference/v1/generate.",
            request=requests.ChatRequest,
            answer=tokens.RenderedPrompt,
            refusals=refusals_of_tokenizing(),
            marks=ours,
        ),
        Operation(
            method="post",
            path="/v1/completions/render",
            summary="The prompts of a completion, in tokens, as requests to /inference/v1/generate.",
            request=requests.CompletionRequest,
            answer=tokens.RenderedPrompt,
            many=True,
            refusals=refusals_of_tokenizing(),
            marks=ours,
        ),
        Operation(
            method="post",
            path="/inference/v1/generate",
            summary="Continue token ids with token ids.",
            request=tokens.GenerateRequest,
            answer=tokens.Generated,
            chunk=tokens.GeneratedChunk,
            parameters=("X-Request-Id",),
            refusals=refusals_of_generating(),
            marks=ours,
        ),
        Operation(
            method="post",
            path="/tokenize",
            summary="The tokens of a text or a conversation.",
            request=tokens.TokenizeRequest,
            answer=tokens.Tokenized,
            refusals=refusals_of_tokenizing(),
            marks=ours,
        ),
        Operation(
            method="post",
            path="/detokenize",
            summary="The text of tokens.",
            request=tokens.DetokenizeRequest,
            answer=tokens.Detokenized,
            refusals=refusals_of_tokenizing(),
            marks=ours,
        ),
        Operation(
            method="get",
            path="/tokenizer_info",
            summary="What marks the beginning and the end of a text, and the chat template.",
            answer=tokens.TokenizerInfo,
            marks=ours,
        ),
    ]
