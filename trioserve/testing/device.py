"""A device without a model: it says what a script tells it to, on trio's clock.

Owns: FakeDevice, and what it makes up: logits, log-probabilities, hidden states. It lives in the event loop, since a
real thread counts as blocked under an autojump clock.

It remembers the tokens written to every KV page, so each draw sees its sequence exactly as a model would: read
through the block table. A wrong page gives wrong text.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trioserve.abc import DeviceInfo
from trioserve.device.rows import Change, changes_by_row, check_ids
from trioserve.step import StepPlan, StepResult


@attrs.frozen
class Draw:
    """One token to choose."""

    prompt: tuple[int, ...]
    """The tokens that were there when the first token of this choice was drawn."""
    generated: tuple[int, ...]
    """The tokens drawn since."""
    seed: int
    """uint64, as the plan has it."""


Script = Callable[[Draw], int]
Score = Callable[[Draw, int], float]
"""The log-probability of the likeliest token."""


def varied_score(draw: Draw, token_id: int) -> float:
    """A log-probability that depends on seed, position and token; a multiple of 1/8, so that sums are exact."""
    return -1.0 - (7 * draw.seed + 5 * len(draw.generated) + 3 * token_id) % 11 / 8


def fake_logits(token_id: int, vocab_size: int) -> npt.NDArray[np.float32]:
    """[V] when a script says ``token_id``: 0 for it, -1 for the next id, and so on, past the last id from 0 on."""
    return -((np.arange(vocab_size) - token_id) % vocab_size).astype(np.float32)


def fake_hidden(sequence: Sequence[int], embedding_dim: int) -> array[float]:
    """[E] "f" the hidden state after these tokens: multiples of 1/8 from -1 to 1 that depend on all of them."""
    state = 0
    for token_id in sequence:
        state = (31 * state + token_id + 1) % 9973
    return array("f", [(state * (i + 1) % 17 - 8) / 8 for i in range(embedding_dim)])


@attrs.define(eq=False)
class FakeDevice:
    """An AsyncDevice that runs ``script`` for every row that draws, and ``score`` for log-probabilities.

    A script may raise, which fails the step. ``step_seconds`` pass on the clock in each step.

    The token that the script says is the likeliest one, see ``fake_logits``. It is drawn unless changes of the logits
    make another the likeliest; temperature and filters change nothing. Of a scored row the target is the likeliest, and
    the script is not asked. The log-probability of the likeliest token is its score, of the next one that less 1, and
    so on.
    """

    script: Script
    info: DeviceInfo
    step_seconds: float = 0.01
    score: Score = varied_score
    plans: list[StepPlan] = attrs.field(factory=list, init=False)
    """Every plan that was run."""
    _memory: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    _prompts: dict[int, list[tuple[int, ...]]] = attrs.field(factory=dict, init=False)

    async def run_async(self, plan: StepPlan) -> StepResult:
        await trio.sleep(self.step_seconds)
        self.plans.append(plan)
        for source, target in zip(plan.copies[::2], plan.copies[1::2], strict=True):
            self._memory[target] = list(self._page(source))
        spans, size = plan.spans, self.info.page_size
        read_at = {*plan.rows.tokens, *plan.hidden}
        sequences: list[tuple[int, ...]] = []
        for s in range(len(spans.starts) - 1):
            pages = spans.pages[spans.page_starts[s] : spans.page_starts[s + 1]]
            for t in range(spans.starts[s], spans.starts[s + 1]):
                position = spans.positions[t]
                self._page(pages[position // size])[position % size] = spans.tokens[t]
            for t in range(spans.starts[s], spans.starts[s + 1]):
                read = [token for page in pages for token in self._page(page)] if t in read_at else []
                sequences.append(tuple(read[: spans.positions[t] + 1]))
        return self._draw_rows(plan, sequences)

    def _draw_rows(self, plan: StepPlan, sequences: Sequence[tuple[int, ...]]) -> StepResult:
        rows, vocab_size = plan.rows, self.info.vocab_size
        check_ids(plan, vocab_size)
        changes = changes_by_row(rows.changes, vocab_size)
        states = [fake_hidden(sequences[t], self.info.embedding_dim) for t in plan.hidden]
        result = StepResult(plan.number, array("i"), hidden=[memoryview(state) for state in states])
        has_logprobs = any(rows.logprobs)
        for r, (token, seed, wanted) in enumerate(zip(rows.tokens, rows.seeds, rows.logprobs, strict=True)):
            if rows.targets and rows.targets[r] >= 0:
                draw = Draw(sequences[token], (), seed)
                likeliest = token_id = rows.targets[r]
            else:
                draw = self._draw(sequences[token], seed)
                likeliest = self.script(draw)
                token_id = self._changed(likeliest, changes.get(r))
            result.token_ids.append(token_id)
            if has_logprobs:
                result.logprobs.append(self._log_probability(draw, likeliest, token_id) if wanted else math.nan)
            for distance in range(min(wanted - 1, vocab_size)):
                result.top_ids.append((likeliest + distance) % vocab_size)
                result.top_logprobs.append(self.score(draw, likeliest) - distance)
        return result

    def _changed(self, token_id: int, change: Change | None) -> int:
        """What is drawn in place of the script's token; -1 if the change leaves none."""
        if change is None:
            return token_id
        logits = change.apply(fake_logits(token_id, self.info.vocab_size))
        return int(logits.argmax()) if logits.max() > -math.inf else -1

    def _log_probability(self, draw: Draw, likeliest: int, token_id: int) -> float:
        if token_id < 0:
            return -math.inf
        return self.score(draw, likeliest) - (token_id - likeliest) % self.info.vocab_size

    def _page(self, page: int) -> list[int]:
        return self._memory.setdefault(page, [-1] * self.info.page_size)

    def _draw(self, sequence: tuple[int, ...], seed: int) -> Draw:
        prompts = self._prompts.setdefault(seed, [])
        for prompt in prompts:
            if sequence[: len(prompt)] == prompt:
                return Draw(prompt, sequence[len(prompt) :], seed)
        prompts.append(sequence)
        return Draw(sequence, (), seed)
