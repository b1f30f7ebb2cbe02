"""Draws one token from one row of logits, and says how likely it was.

Owns: what penalties, bias and mask, temperature, min_p, top_k and top_p mean, and in which order.
Must not know: batches, sequences.

Logits may be changed first, see ``changed``. Log-probabilities are of the logits before that, at temperature 1.

A row is drawn from its own logits and parameters alone, in vocabulary order, so no other row can change it:

1. Temperature 0 takes the most likely token; of several equal ones that with the lowest id. No number is drawn.
2. Weights: w = exp((logit - largest logit) / temperature), in float64. The largest weight is exactly 1.
3. min_p drops tokens with w < min_p.
4. top_k drops tokens with w below the k-th largest weight.
5. top_p drops tokens with w below that of the last token needed: going through what is left from the largest weight
   down, the first at which the sum reaches top_p times the whole sum.
6. With u = uniform(seed, position), the token is the first whose running sum of weights, in vocabulary order, is
   above u times the whole sum.

The filters compare with a threshold, so tokens of equal weight are kept or dropped together: top_k may keep more than
k. All sums run one element after another. The order of the filters is vLLM's (v1 sampler: temperature, min_p, then
top_k, then top_p of what is left); transformers puts min_p last, which differs only when top_p is used as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from trioserve_kernels.reference.philox import uniform

Logits = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]
LARGEST: Final = float(np.finfo(np.float32).max)


def sample(
    logits: Logits,
    *,
    seed: int,
    position: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> int:
    """The id of the token drawn from ``logits``.

    Args:
        logits: [V] float32. -inf excludes a token.
        seed: key of the random number, uint64.
        position: counter of the random number, uint64: the position of the drawn token in its sequence.
        temperature: 0 or more; 0 is greedy.
        top_p: 0 to 1; 1 keeps all.
        top_k: 0 or less keeps all.
        min_p: 0 to 1; 0 keeps all.

    Raises:
        FloatingPointError: a logit is NaN or +inf, or all are -inf.
    """
    # the maximum is NaN if any logit is
    if not np.isfinite(logits.max()):
        raise FloatingPointError("Can't draw a token: the logits have no finite maximum.")
    if temperature == 0.0:
        return int(logits.argmax())
    weights = filtered_weights(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    return pick(weights, uniform(seed, position))


def changed(
    logits: Logits,
    *,
    generated: Sequence[int] = (),
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    prompt: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    bias: Mapping[int, float] | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Logits:
    """The logits [V] float32 after penalties, bias and mask, in this order; each is rounded to float32.

    Args:
        logits: [V] float32, all finite or -inf.
        generated: the tokens generated so far, each as often as it was.
        presence_penalty: subtracted from the logit of each of these tokens.
        frequency_penalty: times how often it is there, subtracted together with it.
        prompt: the tokens of the prompt, for the repetition penalty.
        repetition_penalty: above 0. A positive logit of a token that was generated or is in the prompt is divided by
            it, any other multiplied. What gets too large for float32 becomes the largest number there is.
        bias: what to add to the logits of which tokens.
        allowed: [V]; the others become -inf.
    """
    result = logits.copy()
    for token_id, count in Counter(generated).items():
        result[token_id] = np.float64(result[token_id]) - (presence_penalty + frequency_penalty * count)
    for token_id in {*generated, *prompt}:
        logit = float(result[token_id])
        repeated = logit / repetition_penalty if logit > 0 else logit * repetition_penalty
        result[token_id] = min(repeated, LARGEST)
    for token_id, addend in (bias or {}).items():
        result[token_id] = np.float64(result[token_id]) + addend
    if allowed is not None:
        result[~allowed] = -np.inf
    return result


def log_probabilities(logits: Logits) -> Weights:
    """[V] float64: the natural logarithms of the probabilities: the softmax of ``logits``, whatever is drawn with.

    In float64, and summed in vocabulary order: logit - m - log(sum(exp(logits - m))) with the largest logit m. Of a
    token that is excluded (-inf), it is -inf.

    Args:
        logits: [V] float32, as ``sample`` takes them.
    """
    differences = logits.astype(np.float64) - np.float64(logits.max())
    return np.asarray(differences - np.log(np.cumsum(np.exp(differences))[-1]))


def log_probability(logits: Logits, token_id: int) -> float:
    """That of one token, 0 to V - 1."""
    return float(log_probabilities(logits)[token_id])


def most_likely(logits: Logits, count: int) -> list[tuple[int, float]]:
    """The ``count`` most likely tokens and their log-probabilities, of equal ones the lower id first; V at most."""
    of_each = log_probabilities(logits)
    return [(int(i), float(of_each[i])) for i in np.argsort(-logits, kind="stable")[:count]]


def filtered_weights(logits: Logits, *, temperature: float, top_p: float, top_k: int, min_p: float) -> Weights:
    """[V] float64: what each token's probability is proportional to; 0 for dropped tokens, 1 for the most likely."""
    differences = logits.astype(np.float64) - np.float64(logits.max())
    with np.errstate(over="ignore"):  # by a tiny temperature: the quotient is -inf and its weight 0, as it should be
        weights = np.exp(differences / temperature)
    weights[weights < min_p] = 0.0
    if 0 < top_k < len(weights):
        kth_largest = np.partition(weights, -top_k)[-top_k]
        weights[weights < kth_largest] = 0.0
    if top_p < 1.0:
        descending = np.sort(weights)[::-1]
        sums = np.cumsum(descending)
        last_needed = np.searchsorted(sums, top_p * sums[-1])
        weights[weights < descending[last_needed]] = 0.0
    return weights


def pick(weights: Weights, u: float) -> int:
    """Invert the cumulative distribution in vocabulary order, for 0 <= u < 1.

    A token of weight 0 adds nothing to the sums, so it is never the first above anything. ``u`` is at most
    1 - 2 ** -53, which times the whole sum always rounds to less than the whole sum, so there is such a token.
    """
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))
