"""What clients wish for besides a number of choices: the fields of a request that change what is said, or told.

Owns: their values, at random, and what they mean to the oracle. Must not know: paths, prompts.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, Final

from oracle import Wishes
from world import POISON, WORD

from trioserve.testing.tokenizer import EOS, TURN

STOPS: Final = ("a", "bc", "the ", "X", "😀", ", ,", "語\n", "never ever", "\ufffd")
TOP: Final = 4
"""How many of the likeliest tokens are asked for at most."""

# What a structure allows is a list of texts, so that the oracle needs no grammar.
_NAMES: Final = ("a", "abc", "abd", "b the X", "é😀", "é😁", "語字")
_REGEX: Final = "(ab|ba){1,3}[XY]?"
_REGEX_TEXTS: Final = tuple(
    "".join(pairs) + end
    for count in (1, 2, 3)
    for pairs in itertools.product(("ab", "ba"), repeat=count)
    for end in ("", "X", "Y")
)
_LARK: Final = 'start: ("b" "a"* | "é") "!"'
_ENUM: Final = ["ab c", 12, None, {"k": True}]
STRUCTURES: Final[tuple[tuple[dict[str, Any], tuple[str, ...]], ...]] = (
    ({"structured_outputs": {"choice": list(_NAMES)}}, _NAMES),
    ({"structured_outputs": {"regex": _REGEX}}, _REGEX_TEXTS),
    ({"structured_outputs": {"grammar": _LARK}}, ("é!", *(f"b{'a' * count}!" for count in range(200)))),
    ({"structured_outputs": {"json": {"enum": _ENUM[:3]}}}, tuple(map(json.dumps, _ENUM[:3]))),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "the b"}}}},
        ('"the b"',),
    ),
)
"""Fields, and the texts that they allow. The last is for chats only."""
LONG_STRUCTURE: Final = STRUCTURES[2][0]
"""A text may be as long as a request allows."""

TOOLS: Final = ("look", "listen")
PARAMETERS: Final = {
    "type": "object",
    "properties": {"at": {"enum": ["a", "bb", 7]}, "loud": {"type": "boolean"}},
    "required": ["at"],
    "additionalProperties": False,
}


def add_wishes(rng: random.Random, fields: dict[str, Any], *, chat: bool) -> None:
    """Add some, or none, to the fields of a request that say how to draw."""
    if rng.random() < 0.15:
        fields["presence_penalty"] = rng.choice((1.5, 0.5, -1.25))
    if rng.random() < 0.15:
        fields["frequency_penalty"] = rng.choice((1.5, 0.25, -0.5))
    if rng.random() < 0.1:
        fields["repetition_penalty"] = rng.choice((2.0, 0.5))
    if rng.random() < 0.1:
        fields["logit_bias"] = rng.choice(({str(EOS): -100}, {"97": 1.5, "98": 2.5}, {str(POISON): -100, "900": 0}))
        fields["logit_bias"].pop("900", None)
    if rng.random() < 0.1:
        fields["skip_special_tokens"] = False
    if rng.random() < 0.12:
        fields |= rng.choice(STRUCTURES if chat else STRUCTURES[:-1])[0]
        for name in ("stop", "ignore_eos"):
            fields.pop(name, None)
        return
    if rng.random() < 0.1:
        fields["stop_token_ids"] = rng.choice(([WORD], [88, 10], [TURN, 0xC3]))
    if rng.random() < 0.1:
        fields["include_stop_str_in_output"] = True
    if rng.random() < 0.1:
        fields["min_tokens"] = rng.randint(0, min(8, fields.get("max_tokens", 8)))


def wishes_of(fields: dict[str, Any], max_tokens: int | None) -> Wishes:
    """What the fields mean; they have ``max_tokens`` under different names, or not at all."""
    stop = fields.get("stop") or ()
    return Wishes(
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_ids=frozenset(fields.get("stop_token_ids", ())),
        include_stop=fields.get("include_stop_str_in_output", False),
        ignore_eos=fields.get("ignore_eos", False),
        min_tokens=fields.get("min_tokens", 0),
        skip_special=fields.get("skip_special_tokens", True),
        presence=fields.get("presence_penalty", 0.0),
        frequency=fields.get("frequency_penalty", 0.0),
        repetition=fields.get("repetition_penalty", 1.0),
        biases={int(token): bias for token, bias in fields.get("logit_bias", {}).items()},
        words=_words(fields),
    )


def _words(fields: dict[str, Any]) -> tuple[bytes, ...]:
    for structure, texts in STRUCTURES:
        if structure.items() <= fields.items():
            return tuple(text.encode() for text in texts)
    return ()


def tools() -> list[dict[str, Any]]:
    """The definitions of TOOLS."""
    return [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": True}} for name in TOOLS
    ]


_BAD: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("presence_penalty", {"presence_penalty": 2.5}),
    ("frequency_penalty", {"frequency_penalty": "much"}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("logit_bias", {"logit_bias": {"1": 101}}),
    ("logit_bias", {"logit_bias": {"01": 1}}),
    ("logit_bias", {"logit_bias": {str(POISON + 1): 1}}),
    ("stop_token_ids", {"stop_token_ids": [1, -1]}),
    ("stop_token_ids", {"stop_token_ids": [POISON + 1]}),
    ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
    ("min_tokens", {"min_tokens": -1}),
    ("ignore_eos", {"ignore_eos": 1}),
    ("skip_special_tokens", {"skip_special_tokens": "no"}),
    ("include_stop_str_in_output", {"include_stop_str_in_output": "yes"}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("priority", {"priority": 2**31}),
    ("cache_salt", {"cache_salt": ""}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs.regex", {"structured_outputs": {"regex": "(a"}}),
    ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": "start: nothing"}}),
    ("structured_outputs.json", {"structured_outputs": {"json": {"not": {}}}}),
    ("stop", {"structured_outputs": {"regex": "a+"}, "stop": ["a"]}),
    ("guided_regex", {"guided_regex": "a"}),
)
"""The parameter that is wrong, and the fields."""
BAD_OF_CHATS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("logprobs", {"logprobs": 3}),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    (
        "response_format",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "what"}}}},
    ),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice.function.name", {"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "x"}}}),
    ("tools.0.function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools.1.function.name", {"tools": [tools()[0], tools()[0]]}),
)
BAD_OF_COMPLETIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    *_BAD,
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": True}),
    ("suffix", {"suffix": "x"}),
)
