"""Log-probabilities: from the flat arrays of a result to the tokens they are of.

Owns: reading them, and those of a prompt while it is computed. Must not know: who asked.
"""

from __future__ import annotations

from itertools import accumulate

import attrs

from trioserve.events import TokenLogprob
from trioserve.step import RowArrays, StepResult


@attrs.define(eq=False)
class PromptScores:
    """The log-probabilities of a prompt's tokens, as steps give them."""

    wanted: int
    """As RowArrays.logprobs: k + 1."""
    logprobs: list[TokenLogprob | None] = attrs.field(factory=lambda: [None])
    """Of the first tokens, one after another. The very first follows nothing, and so has none."""

    @property
    def next_position(self) -> int:
        """Where the token is from whose logits the next one is scored."""
        return len(self.logprobs) - 1


class RowScores:
    """The log-probabilities in the result of a step, by row."""

    def __init__(self, rows: RowArrays, result: StepResult) -> None:
        self._wanted = rows.logprobs
        self._result = result
        # most steps have none, and need no offsets
        self._starts = list(accumulate((max(0, k - 1) for k in rows.logprobs), initial=0)) if result.top_ids else None

    def row(self, row: int) -> TokenLogprob:
        """Of the token of a row that asked for it."""
        result = self._result
        token_id, logprob = result.token_ids[row], result.logprobs[row]
        if self._starts is None:
            return TokenLogprob(token_id, logprob)
        top = slice(self._starts[row], self._starts[row + 1])
        return TokenLogprob(token_id, logprob, tuple(zip(result.top_ids[top], result.top_logprobs[top], strict=True)))
