"""A message of the assistant and its blocks, as JSON.

Owns: their fields. Must not know: in which order they are written.

Beside the fields of that API, a message has ``choices``: how each of the n choices ended, what it cost, and the seed by
which it can be had again; and a block has ``choice``, the index of the one that it belongs to. What the API has once,
``stop_reason`` and ``stop_sequence``, is said of choice 0 (FAN-17).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from trioserve.events import FinishReason
from trioserve.wire.segments import Segment
from trioserve.wire.tally import Head, Tally, choice_fields

_STOP_REASONS: Final[dict[FinishReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
"""The API has no word for a choice that was cancelled or has failed."""


def opening(head: Head) -> dict[str, object]:
    """The message before its first block. How much of the prompt was in the cache is known in the end only."""
    return {
        **_shared(head),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(sum(head.prompt_tokens), 0, 0, 0),
    }


def whole(head: Head, tally: Tally, segments: Iterable[Segment]) -> dict[str, object]:
    """The message whose choices have all finished."""
    return {
        **_shared(head),
        "content": [block(segment) for segment in segments],
        **stop(tally),
        "usage": usage(tally),
        "choices": choices(head, tally),
    }


def stop(tally: Tally) -> dict[str, object]:
    """Why the first choice has ended."""
    first = tally.endings()[0]
    if isinstance(first.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": first.stop}
    return {"stop_reason": _STOP_REASONS.get(first.reason), "stop_sequence": None}


def usage(tally: Tally) -> dict[str, object]:
    """The tokens of the message. Only once all choices have finished."""
    totals = tally.totals()
    return _usage(totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens, totals.reasoning_tokens)


def choices(head: Head, tally: Tally) -> list[dict[str, object]]:
    """How each choice ended."""
    return [choice_fields(head, event) for event in tally.endings()]


def block(segment: Segment, *, empty: bool = False) -> dict[str, object]:
    """A segment as a block; or the block before anything is in it."""
    text = "" if empty else segment.text
    if segment.kind == "tool_call":
        said: dict[str, object] = {"id": segment.call_id, "name": segment.name, "input": _input(text)}
        return {"type": "tool_use", **said, "choice": segment.choice}
    if segment.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": "", "choice": segment.choice}
    return {"type": "text", "text": text, "citations": None, "choice": segment.choice}


def _shared(head: Head) -> dict[str, object]:
    return {"id": head.id, "type": "message", "role": "assistant", "model": head.model}


def _input(arguments: str) -> dict[str, object]:
    """The arguments of a call. The API has them as an object, also when a model has written something else."""
    if not arguments:
        return {}
    try:
        value: object = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": arguments}


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int, reasoning_tokens: int) -> dict[str, object]:
    return {
        # in this API, unlike in the others, those that were cached are counted by themselves
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens},
    }
