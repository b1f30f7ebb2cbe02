"""The parts of what a choice says as events, and events joined.

Owns: which event stands for which part, and which of them tells of the tokens. Must not know: how parts are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from trioserve.abc import Part
from trioserve.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from trioserve.text.pipeline import Piece


def deltas(index: int, parts: Sequence[Part], piece: Piece) -> list[Delta]:
    """The events of a choice for some tokens: the first tells of all of them.

    Args:
        index: that of the choice.
        parts: what they mean; may be empty.
        piece: their ids and log-probabilities.
    """
    events = [_delta(index, part) for part in parts]
    if not events and (piece.token_ids or piece.logprobs):
        events = [TextDelta(index, "", ())]
    if events:
        events[0] = attrs.evolve(events[0], token_ids=piece.token_ids, logprobs=piece.logprobs)
    return events


def join_deltas(events: Iterable[Delta]) -> list[Delta]:
    """The events of a choice, with those joined that go on with the same."""
    runs: list[list[Delta]] = []
    for event in events:
        if runs and _goes_on(runs[-1][0], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_joined(run) for run in runs]


def _delta(index: int, part: Part) -> Delta:
    if part.kind == "text":
        return TextDelta(index, part.text, ())
    if part.kind == "reasoning":
        return ReasoningDelta(index, part.text, ())
    return ToolCallDelta(index, part.call, part.id, part.name, part.text, ())


def _goes_on(first: Delta, event: Delta) -> bool:
    if isinstance(first, ToolCallDelta) and isinstance(event, ToolCallDelta):
        return first.call == event.call
    return type(first) is type(event)


def _joined(run: list[Delta]) -> Delta:
    first = run[0]
    token_ids = tuple(token_id for event in run for token_id in event.token_ids)
    logprobs = tuple(score for event in run for score in event.logprobs)
    if isinstance(first, ToolCallDelta):
        arguments = "".join(event.arguments for event in run if isinstance(event, ToolCallDelta))
        return attrs.evolve(first, arguments=arguments, token_ids=token_ids, logprobs=logprobs)
    text = "".join(event.text for event in run if not isinstance(event, ToolCallDelta))
    return attrs.evolve(first, text=text, token_ids=token_ids, logprobs=logprobs)
