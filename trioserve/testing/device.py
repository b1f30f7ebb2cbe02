"""A device without a model: it says what a script tells it to, on trio's clock.

Owns: FakeDevice. It lives in the event loop, since a real thread counts as blocked under an autojump clock.

It remembers the tokens written to every KV page, so each draw sees its sequence exactly as a model would: read
through the block table. A wrong page gives wrong text.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import attrs
import trio

from trioserve.abc import DeviceInfo
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
"""The log-probability of a token that was drawn."""


def varied_score(draw: Draw, token_id: int) -> float:
    """A log-probability that depends on seed, position and token; a multiple of 1/8, so that sums are exact."""
    return -1.0 - (7 * draw.seed + 5 * len(draw.generated) + 3 * token_id) % 11 / 8


@attrs.define(eq=False)
class FakeDevice:
    """An AsyncDevice that runs ``script`` for every row, and ``score`` for those whose log-probability is wanted.

    A script may raise, which fails the step. ``step_seconds`` pass on the clock in each step.
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
        drawn_from = set(plan.rows.tokens)
        sequences: list[tuple[int, ...]] = []
        for s in range(len(spans.starts) - 1):
            pages = spans.pages[spans.page_starts[s] : spans.page_starts[s + 1]]
            for t in range(spans.starts[s], spans.starts[s + 1]):
                position = spans.positions[t]
                self._page(pages[position // size])[position % size] = spans.tokens[t]
            for t in range(spans.starts[s], spans.starts[s + 1]):
                read = [token for page in pages for token in self._page(page)] if t in drawn_from else []
                sequences.append(tuple(read[: spans.positions[t] + 1]))
        draws = [self._draw(sequences[t], seed) for t, seed in zip(plan.rows.tokens, plan.rows.seeds, strict=True)]
        tokens = [self.script(draw) for draw in draws]
        if not any(plan.rows.logprobs):
            return StepResult(plan.number, array("i", tokens))
        logprobs = [
            self.score(draw, token) if wanted else math.nan
            for draw, token, wanted in zip(draws, tokens, plan.rows.logprobs, strict=True)
        ]
        return StepResult(plan.number, array("i", tokens), array("d", logprobs))

    def _page(self, page: int) -> list[int]:
        return self._memory.setdefault(page, [-1] * self.info.page_size)

    def _draw(self, sequence: tuple[int, ...], seed: int) -> Draw:
        prompts = self._prompts.setdefault(seed, [])
        for prompt in prompts:
            if sequence[: len(prompt)] == prompt:
                return Draw(prompt, sequence[len(prompt) :], seed)
        prompts.append(sequence)
        return Draw(sequence, (), seed)
