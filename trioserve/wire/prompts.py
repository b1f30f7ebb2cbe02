"""The prompts of a completion: a text, a list of token ids, or a list of such prompts.

Owns: the forms of the field ``prompt``. Must not know: the vocabulary and the context, which are the engine's to
check, an empty text included.
"""

from __future__ import annotations

from typing import Final, cast

from trioserve.errors import ParamError
from trioserve.wire.calls import Prompt
from trioserve.wire.fields import shown

MAX_TOKEN_ID: Final = 2**31 - 1


def split_prompts(value: object, name: str = "prompt") -> list[object]:
    """The prompts in the field ``name`` of a request, unchecked, so that they can be counted before work is done on
    them.

    A list that starts with a number is one prompt.

    Raises:
        ParamError: the list is empty, or neither a list nor a text.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ParamError(f"{name} must be a string or an array, got {shown(value)}.", name)
    if not value:
        raise ParamError(f"{name} must not be empty.", name)
    return [value] if isinstance(value[0], (int, float)) else value


def build_prompts(items: list[object], name: str = "prompt") -> tuple[Prompt, ...]:
    """The prompts, checked.

    Raises:
        ParamError: one is neither a text nor a list of token ids; ``param`` is "prompt" for an only one, else
            "prompt.0" and so on.
    """
    if len(items) == 1:
        return (_build_prompt(items[0], name),)
    return tuple(_build_prompt(item, f"{name}.{i}") for i, item in enumerate(items))


def _build_prompt(value: object, path: str) -> Prompt:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ParamError(f"{path} must be a string or an array of token ids, got {shown(value)}.", path)
    if not value:
        raise ParamError(f"{path} must have at least one token id.", path)
    return build_token_ids(value, path)


def build_token_ids(value: list[object], path: str) -> tuple[int, ...]:
    """The token ids in a list that was found at ``path``.

    Raises:
        ParamError: something in it is none.
    """
    if not value:
        return ()
    # in C, not item by item: there may be millions. The type is compared because true is an int in Python.
    if set(map(type, value)) == {int}:
        ids = cast("list[int]", value)
        if min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID:
            return tuple(ids)
    at, wrong = next(
        (i, item) for i, item in enumerate(value) if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID
    )
    raise ParamError(
        f"{path} must hold token ids, integers from 0 to {MAX_TOKEN_ID}; got {shown(wrong)} at position {at}.", path
    )
