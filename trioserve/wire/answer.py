"""The events of a request as one answer (FAN-17).

Owns: the text of every choice until all have finished. Must not know: how events come about.
It is fed with the very events that a stream would be made of.
"""

from __future__ import annotations

from typing import Final

from trioserve.events import ChoiceFinished, Event, TextDelta
from trioserve.wire.line import json_line
from trioserve.wire.tally import Head, Tally, ending_fields


class AnswerBuilder:
    """Makes the body of one answer: ``feed`` for every event, then ``answer``."""

    def __init__(self, head: Head) -> None:
        self._head: Final = head
        self._tally: Final = Tally(head)
        self._texts: Final = [[head.echo(index)] for index in range(head.choices)]

    def __repr__(self) -> str:
        return f"<AnswerBuilder of {self._head.id}: {self._tally!r}>"

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
        elif isinstance(event, TextDelta):
            self._tally.add(event)
            self._texts[event.index].append(event.text)

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
                    {"index": event.index, **self._said(event.index), **ending_fields(event), **self._score(event)}
                    for event in self._tally.endings()
                ],
                "usage": self._tally.usage(),
            }
        )

    def _score(self, event: ChoiceFinished) -> dict[str, object]:
        """What a choice was ranked by (FAN-32). Extends OpenAI's format."""
        return {"mean_logprob": event.mean_logprob} if self._head.ranked else {}

    def _said(self, index: int) -> dict[str, object]:
        text = "".join(self._texts[index])
        if self._head.kind == "chat":
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"text": text}
