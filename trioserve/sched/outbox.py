"""What one choice was given and has not yet been told.

Owns: Progress, and coalescing deliveries into it. Must not know: channels, or who reads.
"""

from __future__ import annotations

from array import array

import attrs

from trioserve.errors import InvariantError
from trioserve.events import FinishReason, TokenLogprob
from trioserve.sched.commit import Admitted, Delivery, Drafted


@attrs.frozen
class Progress:
    """One message to a choice: everything that was delivered to it since the last one."""

    admitted: Admitted | None = None
    """In the first message of every choice that is not ended before."""
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    """In the last message, and only there."""
    stop_id: int | None = None
    """The token id that ended the choice; it is also the last of its token ids."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of its token ids, one for one, if the choice asked for them."""
    drafted: Drafted | None = None
    """If there were drafts."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Of the tokens of its prompt, if it asked for them: in one message, before or with its first token."""
    error: Exception | None = None
    """What the engine failed of, for this choice alone; with the finish "error", and only there."""
    vector: array[float] | None = None
    """"f" that of its prompt, if it asked for one; with the finish."""


@attrs.define(eq=False)
class Outbox:
    """The undelivered part of one choice. It drops nothing: what it can't hand over, it joins to what comes next."""

    max_backlog: int
    """Tokens that may wait before the choice should be paused."""
    _admitted: Admitted | None = attrs.field(default=None, init=False)
    _token_ids: array[int] = attrs.field(factory=lambda: array("i"), init=False, repr=False)
    _logprobs: list[TokenLogprob] = attrs.field(factory=list, init=False, repr=False)
    _finish: FinishReason | None = attrs.field(default=None, init=False)
    _stop_id: int | None = attrs.field(default=None, init=False)
    _drafted: Drafted | None = attrs.field(default=None, init=False)
    _prompt_logprobs: tuple[TokenLogprob | None, ...] | None = attrs.field(default=None, init=False, repr=False)
    _error: Exception | None = attrs.field(default=None, init=False)
    _vector: array[float] | None = attrs.field(default=None, init=False, repr=False)
    _pending: bool = attrs.field(default=False, init=False)

    @property
    def backlog(self) -> int:
        """Tokens that wait."""
        return len(self._token_ids)

    @property
    def over_bound(self) -> bool:
        """Whether more tokens wait than may."""
        return len(self._token_ids) > self.max_backlog

    def put(self, delivery: Delivery) -> None:
        """Add what the choice was given.

        Raises:
            InvariantError: it has finished already.
        """
        if self._finish is not None:
            raise InvariantError(f"{delivery.uid} got a delivery after it had finished.")
        if delivery.admitted is not None:
            self._admitted = delivery.admitted
        self._token_ids.extend(delivery.token_ids)
        self._logprobs.extend(delivery.logprobs)
        self._finish = delivery.finish
        self._stop_id = delivery.stop_id
        self._error = delivery.error
        self._vector = delivery.vector
        if delivery.prompt_logprobs is not None:
            self._prompt_logprobs = delivery.prompt_logprobs
        if delivery.drafted is not None:
            self._drafted = delivery.drafted if self._drafted is None else self._drafted + delivery.drafted
        self._pending = True

    def take(self) -> Progress | None:
        """Everything that waits, as one message; None if nothing does."""
        if not self._pending:
            return None
        progress = Progress(
            self._admitted,
            tuple(self._token_ids),
            self._finish,
            self._stop_id,
            tuple(self._logprobs),
            self._drafted,
            self._prompt_logprobs,
            self._error,
            self._vector,
        )
        self._admitted = self._drafted = self._prompt_logprobs = None
        del self._token_ids[:], self._logprobs[:]
        self._pending = False
        return progress
