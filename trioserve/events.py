"""What a generation tells its consumer: the one stream of events from which every answer is made.

Owns: the event classes. Must not know: how they are written on a wire.
Indices are those of the request: prompt_index * n + j.
"""

from __future__ import annotations

from typing import Literal

import attrs

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]


@attrs.frozen
class TokenLogprob:
    """How likely one token was to the model: natural logarithms, before penalties, temperature and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens in its place and their log-probabilities, as many as were asked for, the likeliest first; of
    equals, the lower id first. The token itself is among them only if it is one of these."""


@attrs.frozen
class ChoiceUsage:
    """The tokens of one choice. Summed over the choices of a request they give the request's usage."""

    completion_tokens: int
    """Tokens generated and kept, the end-of-sequence token included."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at admission; counted at choice 0 of each prompt, 0 at its siblings."""
    shared_tokens: int = 0
    """Prompt tokens taken over from choice 0 of the same prompt: the prompt length for siblings, 0 for choice 0."""
    reasoning_tokens: int = 0
    discarded_tokens: int = 0
    """Completion tokens of the candidates of best_of that are no choices; counted at choice 0 of each prompt, 0 at its
    siblings."""
    accepted_prediction_tokens: int = 0
    """Completion tokens that came without a step of their own, since a draft had them right."""
    rejected_prediction_tokens: int = 0
    """Draft tokens that are not in the completion. They are in no other count."""


@attrs.frozen
class TextDelta:
    """More text of one choice.

    ``text`` may be empty when the tokens so far end inside a character or a possible stop string.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    """The tokens first reported with this delta (their text may come later)."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """If they were asked for: of the tokens whose text is complete with this delta. A token whose text is held back is
    told of when that is shown, or with the last delta of the choice if it never is. So all deltas together have one for
    each of their token ids, in order."""


@attrs.frozen
class ReasoningDelta:
    """More of what one choice thinks before it answers; else as TextDelta."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@attrs.frozen
class ToolCallDelta:
    """More of a tool call of one choice."""

    index: int
    call: int
    """Counts the tool calls of the choice from 0. A call is complete when the next one, or anything else, begins."""
    id: str | None
    """Unique, in the first delta of a call; None in the later ones."""
    name: str | None
    """The tool, in the first delta of a call; None in the later ones."""
    arguments: str
    """More of the arguments, which are a JSON object in the end, unless the model wrote something else."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@attrs.frozen
class PromptScored:
    """The log-probabilities of one prompt, if they were asked for: once, before any other event of its choices."""

    prompt: int
    """Counts the prompts of the request from 0."""
    token_ids: tuple[int, ...]
    """All tokens of the prompt."""
    logprobs: tuple[TokenLogprob | None, ...]
    """Of each of them; None for the first one."""


@attrs.frozen
class ChoiceFinished:
    """The last event of a choice; each choice has exactly one."""

    index: int
    reason: FinishReason
    usage: ChoiceUsage
    seed: int
    """The seed it was drawn with, as int64; giving it back with n = 1 replays this choice."""
    stop: str | int | None = None
    """What ended it: the stop string or the end-of-sequence token id; None for other reasons."""
    error: str | None = None
    """What went wrong; for the reason "error" only."""
    mean_logprob: float | None = None
    """Mean log-probability of its completion tokens (see StepResult), by which best_of ranks the candidates; None
    without best_of, and without tokens."""


Delta = TextDelta | ReasoningDelta | ToolCallDelta
Event = Delta | PromptScored | ChoiceFinished
