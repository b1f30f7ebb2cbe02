"""A choice task: turns the tokens of one choice into its events.

Owns: the detokeniser, the stop matcher and the token count of one choice (FAN-9).
Must not know: its siblings, scheduling.
"""

from __future__ import annotations

import attrs
import trio

from trioserve.engine.ticket import Ticket
from trioserve.errors import ChoiceFailedError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, FinishReason, TextDelta
from trioserve.sched.outbox import Progress
from trioserve.text.pipeline import ChoiceText


@attrs.define(eq=False)
class Choice:
    """One choice of a request, while it runs."""

    index: int
    """prompt_index * n + j"""
    seed: int
    """int64"""
    ticket: Ticket
    text: ChoiceText
    shared_tokens: int
    """Prompt tokens that come from choice 0 of the same prompt; 0 for choice 0 itself."""
    prompt: PromptUsage
    completion_tokens: int = attrs.field(default=0, init=False)

    async def run(self, request_id: str, events: trio.MemorySendChannel[Event]) -> None:
        """Send the choice's events, the last one a ChoiceFinished; leave the ticket closed however it ends.

        Raises:
            ChoiceFailedError: its tokens could not be turned into events.
            EngineClosedError: the engine ended first.
        """
        try:
            with events:
                ended = False
                while not ended:
                    progress = await self.ticket.receive()
                    try:
                        made = self._events(progress)
                    except Exception as error:
                        message = f"Choice {self.index} failed: {type(error).__name__}: {error}"
                        raise ChoiceFailedError(message, request_id, self.index) from error
                    for event in made:
                        ended = isinstance(event, ChoiceFinished)
                        try:
                            # not send(): it would cost a turn of the event loop for each event
                            events.send_nowait(event)
                        except trio.WouldBlock:
                            await events.send(event)
        except trio.BrokenResourceError:
            return  # the consumer takes no more events
        finally:
            self.ticket.close()

    def _events(self, progress: Progress) -> list[Event]:
        if progress.admitted is not None and self.shared_tokens == 0:
            self.prompt.cached_tokens = progress.admitted.cached_tokens
        # the token that ends a sequence is counted, and has no text
        ids = progress.token_ids if progress.stop_id is None else progress.token_ids[:-1]
        piece = self.text.feed(ids)
        if piece.stop is not None:
            return self._last(piece.text, piece.token_ids, "stop", piece.stop)
        if progress.finish is not None:
            tail = self.text.end()
            text = piece.text + tail.text
            if tail.stop is not None:
                return self._last(text, progress.token_ids, "stop", tail.stop)
            return self._last(text, progress.token_ids, progress.finish, progress.stop_id)
        if not progress.token_ids:
            return []
        self.completion_tokens += len(progress.token_ids)
        return [TextDelta(self.index, piece.text, progress.token_ids)]

    def _last(self, text: str, ids: tuple[int, ...], reason: FinishReason, stop: str | int | None) -> list[Event]:
        self.completion_tokens += len(ids)
        usage = ChoiceUsage(
            completion_tokens=self.completion_tokens,
            cached_tokens=self.prompt.cached_tokens if self.shared_tokens == 0 else 0,
            shared_tokens=self.shared_tokens,
        )
        finished = ChoiceFinished(self.index, reason, usage, self.seed, stop)
        return [TextDelta(self.index, text, ids), finished] if text or ids else [finished]


@attrs.define(eq=False)
class PromptUsage:
    """What one prompt of a request cost: its length, and how much of it was found in the prefix cache."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Fixed when the prompt is first scheduled; 0 before."""
