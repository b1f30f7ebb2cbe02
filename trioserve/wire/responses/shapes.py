"""A response and its items, as JSON.

Owns: their fields. Must not know: in which order they are written.

Beside the fields of that API, a response has ``choices``: how each of the n choices ended, what it cost, and the seed
by which it can be had again; and an item has ``choice``, the index of the one that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from trioserve.errors import TrioserveError, error_row
from trioserve.events import ChoiceFinished, TokenLogprob
from trioserve.wire.logprobs import token_entries
from trioserve.wire.segments import Segment
from trioserve.wire.tally import Head, Tally, choice_fields
from trioserve.wire.token_texts import TokenTexts

Status = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]

_ITEM_STATUS: Final = {"growing": "in_progress", "complete": "completed", "cut": "incomplete"}
_ID_PREFIX: Final = {"text": "msg", "reasoning": "rs", "tool_call": "fc"}
_ERROR_CODES: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Of the words that the API has for a response that failed, those that fit one of our statuses."""


class Shapes:
    """Writes one response, and parts of it, as often as they are needed."""

    def __init__(
        self,
        head: Head,
        repeated: Mapping[str, object],
        *,
        temperature: float | None,
        top_p: float,
        texts: TokenTexts,
        top: int,
    ) -> None:
        self._head: Final = head
        self._texts: Final = texts
        self._top: Final = top
        self._constants: Final[dict[str, object]] = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "temperature": temperature,
            "top_p": top_p,
            "truncation": "disabled",
            **repeated,
        }

    def __repr__(self) -> str:
        return f"<Shapes of {self._head.id}>"

    def opening(self) -> dict[str, object]:
        """The response before its first item."""
        return self._response("in_progress", [])

    def closing(self, tally: Tally, segments: Iterable[Segment]) -> dict[str, object]:
        """The response whose choices have all finished."""
        endings = tally.endings()
        totals = tally.totals()
        status = _status(endings)
        return {
            **self._response(status, segments),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                "input_tokens": totals.prompt_tokens,
                "input_tokens_details": {"cached_tokens": totals.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": totals.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": totals.reasoning_tokens},
                "total_tokens": totals.prompt_tokens + totals.completion_tokens,
            },
            "choices": [choice_fields(self._head, event) for event in endings],
        }

    def failed(self, error: TrioserveError, segments: Iterable[Segment]) -> dict[str, object]:
        """The response that failed half way, with what there is of it."""
        row = error_row(error)
        return {
            **self._response("failed", segments),
            "error": {
                "code": _ERROR_CODES.get(row.status, "server_error"),
                "message": str(error),
                "param": error.param,
                "type": row.type,
            },
        }

    def _response(self, status: Status, segments: Iterable[Segment]) -> dict[str, object]:
        return {
            **self._constants,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [self.item(segment) for segment in segments],
            "usage": None,
        }

    # ---- items

    def item_id(self, segment: Segment) -> str:
        """The id of an item, which no other item has."""
        return f"{_ID_PREFIX[segment.kind]}_{self._head.id.rpartition('_')[2]}_{segment.position}"

    def item(self, segment: Segment, *, empty: bool = False) -> dict[str, object]:
        """A segment as an item; or the item before anything is in it."""
        shared = {
            "id": self.item_id(segment),
            "status": _ITEM_STATUS["growing" if empty else segment.state],
            "choice": segment.choice,
        }
        if segment.kind == "tool_call":
            arguments = "" if empty else segment.text
            return {
                "type": "function_call",
                "call_id": segment.call_id,
                "name": segment.name,
                "arguments": arguments,
                **shared,
            }
        content = [] if empty else [self.part(segment)]
        if segment.kind == "reasoning":
            return {"type": "reasoning", "summary": [], "content": content, "encrypted_content": None, **shared}
        return {"type": "message", "role": "assistant", "content": content, **shared}

    def part(self, segment: Segment, *, empty: bool = False) -> dict[str, object]:
        """The one part of the content of an item that is no call; or that part before anything is in it."""
        text = "" if empty else segment.text
        if segment.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": [] if empty else self.logprobs(segment.logprobs),
        }

    def logprobs(self, scores: Sequence[TokenLogprob]) -> list[dict[str, object]]:
        """The log-probabilities of tokens, each with those of the likeliest tokens in its place."""
        return token_entries(self._texts, scores, self._top)


def _status(endings: list[ChoiceFinished]) -> Status:
    """Incomplete if a choice came to the end of its tokens. Else one that ended by itself completes the response."""
    reasons = {event.reason for event in endings}
    if "length" in reasons:
        return "incomplete"
    return "completed" if reasons & {"stop", "tool_calls"} else "cancelled"
