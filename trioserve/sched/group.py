"""What the engine submits: a group of choices that share one prompt.

Owns: Uid, ChoiceSpec and Group, and what they may hold. Must not know: how they are scheduled.
"""

from __future__ import annotations

from array import array
from typing import NewType

import attrs

from trioserve.errors import InvariantError, ParamError

Uid = NewType("Uid", str)
"""Names one choice in the scheduler; unique among the live ones."""


@attrs.frozen(kw_only=True)
class ChoiceSpec:
    """How to draw one choice. The numbers have to fit the arrays of a plan.

    Raises:
        ParamError: a number does not fit.
    """

    uid: Uid
    seed: int
    """uint64, the key of its random numbers."""
    temperature: float
    """0.0 is greedy."""
    top_p: float
    """1.0 keeps all."""
    top_k: int
    """int32; 0 or less keeps all."""
    min_p: float
    """0.0 keeps all."""
    max_tokens: int
    """Tokens to draw at most, 1 or more; prompt and answer fit the model's context."""
    stop_ids: frozenset[int]
    """Token ids that end it."""
    logprobs: bool = False
    """Deliver the log-probability of every token."""

    def __attrs_post_init__(self) -> None:
        for name, value, low, high in (
            ("seed", self.seed, 0, 2**64 - 1),
            ("top_k", self.top_k, -(2**31), 2**31 - 1),
            ("max_tokens", self.max_tokens, 1, 2**31 - 1),
        ):
            if not low <= value <= high:
                raise ParamError(f"{name} must be between {low} and {high}, got {value}.", name)


@attrs.frozen(eq=False, kw_only=True)
class Group:
    """One prompt and its n choices.

    Raises:
        ParamError: the prompt is empty, or there is no choice.
        InvariantError: two choices have the same uid.
    """

    id: str
    """For people."""
    prompt: array[int]
    """[P] "i" token ids, P >= 1. Not to be changed afterwards."""
    choices: tuple[ChoiceSpec, ...]
    """In index order: choice j of the prompt is choices[j]."""
    prompt_lookup: bool = False
    """Drafts may be taken from the prompt and the answers."""
    prediction: array[int] | None = None
    """"i" token ids that the answers may repeat, and drafts are taken from."""

    def __attrs_post_init__(self) -> None:
        if not self.prompt:
            raise ParamError("A prompt must have at least one token.", "prompt")
        if not self.choices:
            raise ParamError("n must be at least 1, got 0.", "n")
        if len({choice.uid for choice in self.choices}) < len(self.choices):
            raise InvariantError(f"two choices of the group {self.id!r} have the same uid")
