"""The fold of a request's events: which choices have finished, and what they cost.

Owns: the finish of every choice and the usage (FAN-19, FAN-21), once for answers that are streamed and that are not.
Must not know: how either is written.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from trioserve.events import ChoiceFinished, Delta, PromptScored
from trioserve.wire.details import ChoiceDetails, Details
from trioserve.wire.errors import failure_fields

Kind = Literal["chat", "completion", "tokens", "response", "message"]


@attrs.frozen(kw_only=True)
class Head:
    """What an answer says of itself before its first event: all that its chunks have in common."""

    kind: Kind
    id: str
    created: int
    """Seconds since the epoch."""
    model: str
    n: int
    """Choices per prompt."""
    prompt_tokens: tuple[int, ...]
    """The length of each prompt."""
    ranked: bool = False
    """The choices are the best of more candidates, whose tokens are in the usage (FAN-32)."""
    echo_texts: tuple[str, ...] = ()
    """The text of each prompt if it is to be echoed, else empty."""
    details: Details | None = None
    """What is told of tokens besides their text; None: nothing."""

    @property
    def choices(self) -> int:
        """Choices of the request; their indices are below this."""
        return self.n * len(self.prompt_tokens)

    def echo(self, index: int) -> str:
        """The text in front of a choice."""
        return self.echo_texts[index // self.n] if self.echo_texts else ""

    def of_prompt(self, index: int, scored: PromptScored | None) -> dict[str, object]:
        """The fields about the prompt of a choice, if any were asked for."""
        return {} if self.details is None else self.details.of_prompt(index // self.n, scored)

    def choice_details(self) -> list[ChoiceDetails] | None:
        """The details of every choice, before its first token; None if none were asked for."""
        if self.details is None:
            return None
        is_chat = self.kind == "chat"
        return [ChoiceDetails(self.details, is_chat=is_chat, echo=self.echo(index)) for index in range(self.choices)]


@attrs.frozen(kw_only=True)
class Totals:
    """The tokens of a request: each prompt counted once, whatever n is."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Of all choices, and of the candidates that are none (FAN-32)."""
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    discarded_tokens: int
    """Those of the candidates that are no choices."""


class Tally:
    """What is known of the choices of one request. Fed with events; asserts that none comes after its choice's last."""

    def __init__(self, head: Head) -> None:
        self._head: Final = head
        self._tokens = [0] * head.choices
        self._finished: list[ChoiceFinished | None] = [None] * head.choices
        self._live = head.choices

    def __repr__(self) -> str:
        return f"<Tally of {self._head.id}: {self._live} of {self._head.choices} choices live>"

    def add(self, event: Delta) -> None:
        """Count the tokens of a delta."""
        assert self._finished[event.index] is None, f"choice {event.index} goes on after its end"
        self._tokens[event.index] += len(event.token_ids)

    def finish(self, event: ChoiceFinished) -> None:
        """Note the end of a choice."""
        assert self._finished[event.index] is None, f"choice {event.index} ends twice"
        self._finished[event.index] = event
        self._tokens[event.index] = event.usage.completion_tokens
        self._live -= 1

    def endings(self) -> list[ChoiceFinished]:
        """The ends of all choices, in index order. Only once all have finished."""
        assert self._live == 0, f"{self._live} choices have not finished"
        return [event for event in self._finished if event is not None]

    def choice_usage(self, index: int) -> dict[str, object]:
        """The usage of one choice so far, as that of a request of which it is the only choice."""
        return _usage(self._head.prompt_tokens[index // self._head.n], self._tokens[index])

    def totals(self) -> Totals:
        """What the request cost. Only once all choices have finished."""
        costs = [event.usage for event in self.endings()]
        discarded_tokens = sum(cost.discarded_tokens for cost in costs)
        return Totals(
            prompt_tokens=sum(self._head.prompt_tokens),
            cached_tokens=sum(cost.cached_tokens for cost in costs),
            completion_tokens=sum(cost.completion_tokens for cost in costs) + discarded_tokens,
            reasoning_tokens=sum(cost.reasoning_tokens for cost in costs),
            accepted_prediction_tokens=sum(cost.accepted_prediction_tokens for cost in costs),
            rejected_prediction_tokens=sum(cost.rejected_prediction_tokens for cost in costs),
            discarded_tokens=discarded_tokens,
        )

    def usage(self) -> dict[str, object]:
        """The usage of the request. Only once all choices have finished.

        ``discarded_tokens``, of candidates that are no choices (FAN-32), extends OpenAI's format.
        """
        totals = self.totals()
        discarded = {"discarded_tokens": totals.discarded_tokens} if self._head.ranked else {}
        return {
            **_usage(totals.prompt_tokens, totals.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": totals.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": totals.reasoning_tokens,
                "accepted_prediction_tokens": totals.accepted_prediction_tokens,
                "rejected_prediction_tokens": totals.rejected_prediction_tokens,
                **discarded,
            },
        }


def ending_fields(event: ChoiceFinished) -> dict[str, object]:
    """What is told of a choice when it has finished.

    ``seed`` (FAN-16), ``usage`` (FAN-21) and, of a choice that failed, ``error`` (FAN-24) extend OpenAI's format.
    """
    failure = {} if event.error is None else {"error": failure_fields(event.error)}
    return {
        **failure,
        "logprobs": None,
        "finish_reason": event.reason,
        "seed": event.seed,
        "usage": {
            "completion_tokens": event.usage.completion_tokens,
            "reasoning_tokens": event.usage.reasoning_tokens,
            "cached_tokens": event.usage.cached_tokens,
            "shared_tokens": event.usage.shared_tokens,
            "accepted_prediction_tokens": event.usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": event.usage.rejected_prediction_tokens,
        },
    }


def choice_fields(head: Head, event: ChoiceFinished) -> dict[str, object]:
    """The entry of a choice in ``choices``, by which dialects without choices tell how each of them ended."""
    said = {name: value for name, value in ending_fields(event).items() if name != "logprobs"}
    score = {"mean_logprob": event.mean_logprob} if head.ranked else {}
    return {"index": event.index, **said, **score}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
