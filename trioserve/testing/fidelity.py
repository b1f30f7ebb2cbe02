"""How far a device's logits are from those of the reference device, in the numbers that people know.

Owns: the measures. Must not know: any particular device or model.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from trioserve.abc import DeviceInfo
from trioserve.step import StepPlan
from trioserve.testing.driver import Row, Span, make_plan

Logits = npt.NDArray[np.float32]


class LogitsDevice(Protocol):
    """A device that shows its logits."""

    @property
    def info(self) -> DeviceInfo: ...

    def logits(self, plan: StepPlan) -> dict[int, Logits]:
        """[V] for each token that a row is drawn from, by its index in the plan."""
        ...


def all_logits(device: LogitsDevice, tokens: Sequence[int]) -> Logits:
    """[T, V]: the logits at every position of one sequence, computed in one step."""
    pages = range(-(-len(tokens) // device.info.page_size))
    plan = make_plan([Span(tokens=tokens, pages=pages, rows=[Row()] * len(tokens))])
    plan.rows.tokens[:] = array("i", range(len(tokens)))
    return np.array(list(device.logits(plan).values()))


@attrs.frozen
class Difference:
    """Between the logits of a device and those of the reference, over the positions of a text."""

    logit_error: float
    """Root mean square of the differences, relative to that of the reference's logits about their mean."""
    divergence: float
    """Mean Kullback-Leibler divergence of the next token's distribution, in nats."""
    agreement: float
    """How often the most likely token is the same."""
    perplexity: float
    reference_perplexity: float

    def __str__(self) -> str:
        change = self.perplexity / self.reference_perplexity - 1
        return (
            f"logit error {self.logit_error:.2%}, divergence {self.divergence:.5f}, agreement {self.agreement:.1%}, "
            f"perplexity {self.perplexity:.3f} ({change:+.2%} against {self.reference_perplexity:.3f})"
        )


def compare(found: Logits, expected: Logits, tokens: Sequence[int]) -> Difference:
    """The difference between logits [T, V] at every position of ``tokens``."""
    centred = expected - expected.mean(axis=1, keepdims=True)
    differences = found - found.mean(axis=1, keepdims=True) - centred
    own, reference = _log_softmax(found), _log_softmax(expected)
    following = (np.arange(len(tokens) - 1), np.asarray(tokens[1:]))
    return Difference(
        logit_error=float(np.sqrt((differences**2).mean() / (centred**2).mean())),
        divergence=float((np.exp(reference) * (reference - own)).sum(axis=1).mean()),
        agreement=float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()),
        perplexity=float(np.exp(-own[following].mean())),
        reference_perplexity=float(np.exp(-reference[following].mean())),
    )


def greedy_agreement(device: LogitsDevice, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """How many of an answer's tokens are the device's most likely ones after the prompt and the tokens before."""
    logits = all_logits(device, [*prompt, *answer[:-1]])[len(prompt) - 1 :]
    return int((logits.argmax(axis=1) == np.asarray(answer)).sum())


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    log_softmax: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return log_softmax
