"""From what a caller gives as a prompt to token ids that fit the model.

Owns: tokenizing and the checks against vocabulary and context. Must not know: scheduling, HTTP.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import trio

from trioserve.abc import DeviceInfo, Tokenizer
from trioserve.errors import ContextLengthError, ParamError

Prompt = str | Sequence[int]


def as_prompts(prompt: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or a list of prompts, as a list. A flat sequence of ids is one prompt.

    Raises:
        ParamError: neither, or an empty list.
    """
    if isinstance(prompt, str):
        return [prompt]
    if len(prompt) == 0:
        raise ParamError("prompt must not be empty.", "prompt")
    first = prompt[0]
    if isinstance(first, int):
        return [prompt]  # type: ignore[list-item]  # checked item by item in check_ids
    return list(prompt)  # type: ignore[arg-type]  # the same


def check_ids(ids: Sequence[object], tokenizer: Tokenizer, info: DeviceInfo, param: str) -> array[int]:
    """The ids as the scheduler takes them.

    Raises:
        ParamError: one is not an integer or not in the vocabulary.
        ContextLengthError: there is no room for a single token after them.
    """
    if len(ids) >= info.context_length:
        raise ContextLengthError(info.context_length, len(ids), param)
    if not ids:
        raise ParamError("A prompt must have at least one token.", param)
    # the logits may be wider than the vocabulary: an id in between was never trained
    vocab_size = min(info.vocab_size, tokenizer.vocab_size)
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool):
            raise ParamError(f"A prompt is a text or a list of token ids; {item!r} is neither.", param)
        if not 0 <= item < vocab_size:
            raise ParamError(f"Token id {item} is out of the vocabulary (0 to {vocab_size - 1}).", param)
    return array("i", ids)  # type: ignore[arg-type]  # they are ints, just checked


async def encode(
    text: str, tokenizer: Tokenizer, info: DeviceInfo, param: str, *, add_special: bool = True, inline: int
) -> array[int]:
    """The ids of a prompt given as text; more than ``inline`` characters are encoded in a thread.

    Raises:
        ParamError: the text is empty, or not valid Unicode.
        ContextLengthError: it does not fit; found without tokenizing where its size alone shows it.
    """
    size = _size(text, param)
    fewest = -(-size // tokenizer.max_token_bytes)
    if fewest >= info.context_length:
        await trio.lowlevel.checkpoint()
        raise ContextLengthError(info.context_length, fewest, param, at_least=True)
    ids = await tokenize(text, tokenizer, param, add_special=add_special, inline=inline)
    return check_ids(ids, tokenizer, info, param)


async def tokenize(text: str, tokenizer: Tokenizer, param: str, *, add_special: bool, inline: int) -> list[int]:
    """The ids of any text, whether the model has room for them or not; encoded like a prompt.

    Raises:
        ParamError: the text is not valid Unicode.
    """
    _size(text, param)
    if len(text) <= inline:
        await trio.lowlevel.checkpoint()
        return tokenizer.encode(text, add_special=add_special)
    return await trio.to_thread.run_sync(lambda: tokenizer.encode(text, add_special=add_special))


def _size(text: str, param: str) -> int:
    """Bytes of the text in UTF-8."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ParamError("The text is not valid Unicode (it has a lone surrogate).", param) from None


async def encode_prediction(text: str, tokenizer: Tokenizer, info: DeviceInfo, *, inline: int) -> array[int]:
    """The ids of a text that answers may repeat; an empty one has none.

    Raises:
        ParamError: it is not valid Unicode, or longer than any answer can be.
    """
    if not text:
        await trio.lowlevel.checkpoint()
        return array("i")
    try:
        return await encode(text, tokenizer, info, "prediction", add_special=False, inline=inline)
    except ContextLengthError as error:
        raise ParamError(
            f"The prediction is longer than any answer: this model's maximum context length is "
            f"{error.context_length} tokens.",
            "prediction",
            "context_length_exceeded",
        ) from None


def resolve_max_tokens(
    requested: int | None, default: int | None, prompt_tokens: int, info: DeviceInfo, param: str
) -> int:
    """How many tokens a choice may have.

    A number that the caller asked for must fit the context; a default takes what room there is.

    Raises:
        ParamError: prompt and requested tokens together are over the context.
    """
    room = info.context_length - prompt_tokens
    if requested is None:
        return room if default is None else min(default, room)
    if requested > room:
        raise ParamError(
            f"This model's maximum context length is {info.context_length} tokens. However, you requested "
            f"{prompt_tokens + requested} tokens ({prompt_tokens} in the prompt, {requested} in the completion). "
            "Please reduce the prompt or the completion.",
            param,
            "context_length_exceeded",
        )
    return requested
