"""How the logits of a choice's next token are changed, written into the arrays of a plan.

Owns: which tokens count for penalties, and what is forbidden before ``min_tokens``.
Must not know: how a device does it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trioserve.sched.sequence import Choice
from trioserve.step import ChangeArrays


def add_changes(changes: ChangeArrays, row: int, choice: Choice, draft: Sequence[int] = ()) -> None:
    """Add what changes the logits of ``row``, from which the choice's next token is drawn; nothing if nothing does.

    Args:
        changes: to add to.
        row: index of the row in the plan.
        choice: whose row it is.
        draft: tokens that it has after its own, if the row is to count.
    """
    spec, sequence = choice.spec, choice.sequence
    generated = len(sequence.generated) + len(draft)
    is_too_short = generated < spec.min_tokens
    if not (spec.is_changed or (is_too_short and spec.stop_ids)):
        return
    changes.rows.append(row)
    changes.presence_penalties.append(spec.presence_penalty)
    changes.frequency_penalties.append(spec.frequency_penalty)
    changes.repetition_penalties.append(spec.repetition_penalty)
    if spec.is_penalised:
        changes.generated.extend(sequence.generated)
        changes.generated.extend(draft)
    changes.generated_starts.append(len(changes.generated))
    if spec.repetition_penalty != 1.0:
        changes.prompts.extend(sequence.group.prompt)
    changes.prompt_starts.append(len(changes.prompts))
    forbidden = spec.stop_ids if is_too_short else frozenset[int]()
    for token_id, bias in spec.biases:
        if token_id not in forbidden:
            changes.bias_ids.append(token_id)
            changes.biases.append(bias)
    for token_id in sorted(forbidden):
        changes.bias_ids.append(token_id)
        changes.biases.append(-math.inf)
    changes.bias_starts.append(len(changes.bias_ids))
    changes.matchers.append(choice.matcher)
