"""What the engine submits: a group of choices that share one prompt.

Owns: Uid, ChoiceSpec and Group, and what they may hold. Must not know: how they are scheduled.
"""

from __future__ import annotations

from array import array
from typing import NewType

import attrs

from trioserve.errors import InvariantError, ParamError
from trioserve.params import Pooling
from trioserve.step import Matcher

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
    """Tokens to draw at most; prompt and answer fit the model's context. 0: the prompt is computed, and that is all."""
    stop_ids: frozenset[int]
    """Token ids that end it."""
    min_tokens: int = 0
    """None of the stop ids is drawn before there are so many."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    biases: tuple[tuple[int, float], ...] = ()
    """Token ids, each once, and what is added to their logits."""
    matcher: Matcher | None = None
    """What the choice must be, from its first token on; it ends where that is complete. It is copied before it is
    changed, so choices may share one."""
    logprobs: int = 0
    """0: none; k + 1: deliver the log-probability of every token, and of the k likeliest ones in its place."""
    is_penalised: bool = attrs.field(init=False)
    """Whether its logits depend on the tokens before."""
    is_changed: bool = attrs.field(init=False)
    """Whether any of its logits are changed beyond its first ``min_tokens`` tokens."""

    @is_penalised.default
    def _is_penalised(self) -> bool:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)

    @is_changed.default
    def _is_changed(self) -> bool:
        return self.is_penalised or bool(self.biases) or self.matcher is not None

    def __attrs_post_init__(self) -> None:
        for name, value, low, high in (
            ("seed", self.seed, 0, 2**64 - 1),
            ("top_k", self.top_k, -(2**31), 2**31 - 1),
            ("max_tokens", self.max_tokens, 0, 2**31 - 1),
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
    prompt_logprobs: int = 0
    """0: none; k + 1: deliver the log-probability of every token of the prompt but the first, and of the k likeliest
    ones in its place. Such a prompt is computed whole, whatever the prefix cache has."""
    pooling: Pooling | None = None
    """Deliver a vector for the prompt; for groups of which no choice draws anything. The mean is of a prompt that is
    computed whole, whatever the prefix cache has."""
    ranked: bool = False
    """Log-probabilities are wanted to tell which choices are best."""
    priority: int = 0
    """Among groups that wait, lower ones go first."""
    cache_salt: bytes = b""
    """The prompt is found in the prefix cache only by groups with the same salt."""

    def __attrs_post_init__(self) -> None:
        if not self.prompt:
            raise ParamError("A prompt must have at least one token.", "prompt")
        if not self.choices:
            raise ParamError("n must be at least 1, got 0.", "n")
        if self.pooling is not None and any(choice.max_tokens for choice in self.choices):
            raise InvariantError(f"the choices of the group {self.id!r}, whose prompt is pooled, draw tokens")
        if len({choice.uid for choice in self.choices}) < len(self.choices):
            raise InvariantError(f"two choices of the group {self.id!r} have the same uid")
