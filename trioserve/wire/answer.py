"""The events of a request as one answer (FAN-17).

Owns: the text of every choice until all have finished. Must not know: how events come about.
It is fed with the very events that a stream would be made of.
"""

from __future__ import annotations

from typing import Final

from trioserve.events import ChoiceFinished, Delta, Event, PromptScored, TokenLogprob
from trioserve.wire.line import json_line
from trioserve.wire.message_parts import MessageParts
from trioserve.wire.tally import Head, Tally, ending_fields


class AnswerBuilder:
    """Makes the body of one answer: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head) -> None:
        self._head: Final = head
        self._tally: Final = Tally(head)
        self._said: Final = [MessageParts([head.echo(index)]) for index in range(head.choices)]
        self._details: Final = head.choice_details()
        # of each prompt that was scored, and of each choice, if details were asked for
        self._scored: Final[dict[int, PromptScored]] = {}
        self._scores: Final[list[list[TokenLogprob]]] = [[] for _ in range(head.choices)]
        self._token_ids: Final[list[list[int]]] = [[] for _ in range(head.choices)]

    def __repr__(self) -> str:
        return f"<AnswerBuilder of {self._head.id}: {self._tally!r}>"

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        elif isinstance(event, PromptScored):
            self._scored[event.prompt] = event
        else:
            self._tally.add(event)
            self._said[event.index].feed(event)
            if self._details is not None:
                self._note(event)

    def answer(self) -> bytes:
        """The body, in JSON, its choices in index order. Only once all choices have finished."""
        head = self._head
        return json_line(
            {
                "id": head.id,
                "object": "chat.completion" if head.kind == "chat" else "text_completion",
                "created": head.created,
                "model": head.model,
                "choices": [
                    {
                        "index": event.index,
                        **self._message(event.index),
                        **ending_fields(event),
                        **self._told(event.index),
                        **self._score(event),
                    }
                    for event in self._tally.endings()
                ],
                "usage": self._tally.usage(),
                **(head.of_prompt(0, self._scored.get(0)) if head.kind == "chat" else {}),
            }
        )

    def _note(self, event: Delta) -> None:
        self._scores[event.index] += event.logprobs
        self._token_ids[event.index] += event.token_ids

    def _told(self, index: int) -> dict[str, object]:
        """What was asked for of a choice besides its text."""
        head = self._head
        if self._details is None or head.details is None:
            return {}
        scored = self._scored.get(index // head.n)
        told: dict[str, object] = {"logprobs": self._details[index].whole(scored, self._scores[index])}
        if head.details.token_ids:
            told["token_ids"] = self._token_ids[index]
        return told if head.kind == "chat" else {**told, **head.of_prompt(index, scored)}

    def _score(self, event: ChoiceFinished) -> dict[str, object]:
        """What a choice was ranked by (FAN-32). Extends OpenAI's format."""
        return {"mean_logprob": event.mean_logprob} if self._head.ranked else {}

    def _message(self, index: int) -> dict[str, object]:
        said = self._said[index]
        return {"message": said.fields()} if self._head.kind == "chat" else {"text": "".join(said.text)}
