"""The fields that are known but not served, and the values of them that ask for nothing.

Many clients write every field they know, most of them with its default. Such a value changes no answer, so it is
accepted; any other value is refused by name, never ignored. Null asks for nothing everywhere.

Owns: the tables. A feature that comes to be served takes its fields from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.wire.fields import Fields

Neutral = Mapping[str, tuple[object, ...]]
"""Of each field, the values besides null that ask for nothing."""

CHAT: Final[Neutral] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
COMPLETION: Final[Neutral] = {"suffix": ("",)}
GENERATE: Final[Neutral] = {"features": (), "kv_transfer_params": ()}
GENERATE_PARAMS: Final[Neutral] = {
    # there is no text in what is answered, whatever this says
    "detokenize": (True, False),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "bad_words": ([],),
}
"""Fields of vLLM's sampling params."""
MESSAGE: Final[Neutral] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}
"""Fields of an assistant message, as clients give an answer of ours back."""

STREAM_OPTIONS: Final[Neutral] = {"include_obfuscation": (False,)}

_REASONS: Final[Mapping[str, str]] = {
    "suffix": "The model has no form for filling in the middle of a text",
}
"""Why a field is not served, where there is more to say."""

Labels = Mapping[str, tuple[type, str]]
"""Fields that say something about a request and ask for nothing: their type, in Python and in words."""

CHAT_LABELS: Final[Labels] = {
    "metadata": (dict, "an object"),
    "prompt_cache_key": (str, "a string"),
    "safety_identifier": (str, "a string"),
    # there is one tier, and nothing is stored
    "service_tier": (str, "a string"),
    "store": (bool, "true or false"),
    "user": (str, "a string"),
}
COMPLETION_LABELS: Final[Labels] = {"user": (str, "a string")}
EMBEDDING_LABELS: Final = COMPLETION_LABELS


def take_neutral(fields: Fields, table: Neutral) -> None:
    """Take every field of ``table``.

    Raises:
        ParamError: one asks for something.
    """
    for name, accepted in table.items():
        value = fields.take(name)
        if not is_neutral(value, accepted):
            path = fields.path(name)
            reason = f"{_REASONS[name]}: " if name in _REASONS else ""
            raise ParamError(f"{reason}{path} is not supported by this server; leave it out.", path)


def is_neutral(value: object, accepted: tuple[object, ...]) -> bool:
    """Whether a value asks for nothing, as null and all that are ``accepted`` do."""
    return value is None or any(_same(value, neutral) for neutral in accepted)


def take_labels(fields: Fields, table: Labels) -> None:
    """Take every field of ``table``.

    Raises:
        ParamError: one has the wrong type.
    """
    for name, (kind, words) in table.items():
        value = fields.take(name)
        # bool is an int in Python
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise fields.wrong(name, words, value)


def _same(value: object, other: object) -> bool:
    # in Python, unlike in JSON, false equals 0 and true equals 1
    return value == other and isinstance(value, bool) == isinstance(other, bool)
