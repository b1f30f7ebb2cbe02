"""Texts to tokens and back, for clients: /tokenize, /detokenize, /tokenizer_info. The shapes are vLLM's.

Owns: the fields of both. Must not know: the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from trioserve.errors import ParamError
from trioserve.params import Limits
from trioserve.rendering import AS_USUAL, Rendering
from trioserve.tools import ToolUse
from trioserve.wire.body import open_body
from trioserve.wire.calls import Message
from trioserve.wire.fields import Fields
from trioserve.wire.line import json_line
from trioserve.wire.messages import build_messages
from trioserve.wire.prompts import build_token_ids
from trioserve.wire.rendering import take_rendering
from trioserve.wire.token_texts import TokenTexts
from trioserve.wire.tools import take_tools

WITH_MESSAGES: Final = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields of /tokenize that say how a conversation is written."""


@attrs.frozen(kw_only=True)
class TokenizeCall:
    """A request to /tokenize: a text, or a conversation."""

    model: str | None
    """None: the one that is served."""
    prompt: str | None
    messages: tuple[Message, ...] | None
    tools: ToolUse | None
    rendering: Rendering
    add_special: bool
    """Put the model's BOS in front of a text, if the model wants one."""
    with_texts: bool
    """Tell the text of every token."""


@attrs.frozen(kw_only=True)
class DetokenizeCall:
    """A request to /detokenize."""

    model: str | None
    token_ids: tuple[int, ...]


def parse_tokenize(body: bytes, limits: Limits) -> TokenizeCall:
    """A request to /tokenize. ``limits`` bound nothing of it.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.text("model", None)
    prompt = fields.text("prompt", None)
    messages = fields.array("messages")
    if (prompt is None) == (messages is None):
        raise ParamError("Exactly one of prompt and messages is required.", "prompt" if prompt is None else "messages")
    add_special = fields.switch("add_special_tokens")
    if messages is not None and add_special:
        # a template writes the special tokens itself
        raise ParamError("add_special_tokens goes with prompt only.", "add_special_tokens")
    with_texts = fields.flag("return_token_strs")
    tools, rendering = None, AS_USUAL
    if messages is not None:
        tools, rendering = take_tools(fields), take_rendering(fields)
    else:
        for name in WITH_MESSAGES:
            if fields.take(name) is not None:
                raise ParamError(f"{name} goes with messages only.", name)
    fields.finish()
    return TokenizeCall(
        model=model,
        prompt=prompt,
        messages=None if messages is None else build_messages(messages, "messages"),
        tools=tools,
        rendering=rendering,
        add_special=prompt is not None and add_special is not False,
        with_texts=with_texts,
    )


def parse_detokenize(body: bytes, limits: Limits) -> DetokenizeCall:
    """A request to /detokenize. ``limits`` bound nothing of it.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.text("model", None)
    tokens = take_token_ids(fields, "tokens")
    fields.finish()
    return DetokenizeCall(model=model, token_ids=tokens)


def take_token_ids(fields: Fields, name: str) -> tuple[int, ...]:
    """An array of token ids that has to be there; it may be empty.

    Raises:
        ParamError: it isn't, or holds something else.
    """
    items = fields.array(name)
    if items is None:
        raise fields.missing(name)
    return build_token_ids(items, fields.path(name))


def tokenize_body(token_ids: Sequence[int], context_length: int, texts: TokenTexts | None) -> bytes:
    """The answer of /tokenize. ``texts``: those of the tokens, if they were asked for."""
    return json_line(
        {
            "count": len(token_ids),
            "max_model_len": context_length,
            "tokens": token_ids,
            "token_strs": None if texts is None else [texts.shown(token_id)[0] for token_id in token_ids],
        }
    )


def tokenizer_body(
    *, bos_token: str | None, eos_token: str | None, chat_template: str | None, vocab_size: int, context_length: int
) -> bytes:
    """The answer of /tokenizer_info, with the names of tokenizer_config.json."""
    return json_line(
        {
            "tokenizer_class": "trioserve",
            "bos_token": bos_token,
            "eos_token": eos_token,
            "pad_token": None,
            "chat_template": chat_template,
            "vocab_size": vocab_size,
            "model_max_length": context_length,
        }
    )


def detokenize_body(text: str) -> bytes:
    """The answer of /detokenize."""
    return json_line({"prompt": text})
