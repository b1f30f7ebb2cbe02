"""The events of a request as one answer.

Owns: Answer and the fold that makes it. Must not know: how events come about.
"""

from __future__ import annotations

from array import array

import attrs

from trioserve.events import (
    ChoiceFinished,
    ChoiceUsage,
    Event,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)


@attrs.frozen(kw_only=True)
class ToolCall:
    """A call that a choice makes."""

    id: str
    name: str
    arguments: str
    """A JSON object, unless the model wrote something else."""


@attrs.frozen(kw_only=True)
class ChoiceAnswer:
    """One finished choice, whole."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason
    seed: int
    usage: ChoiceUsage
    mean_logprob: float | None
    """What best_of ranks by; see ChoiceFinished."""
    reasoning: str = ""
    """What it thought before."""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of its tokens, if they were asked for."""


@attrs.frozen(kw_only=True)
class Answer:
    """All choices of one request, in index order."""

    choices: tuple[ChoiceAnswer, ...]
    prompt_tokens: int
    cached_tokens: int
    scored_prompts: tuple[PromptScored, ...] = ()
    """One for each prompt, in their order, if prompt_logprobs were asked for."""


@attrs.frozen(kw_only=True)
class Embeddings:
    """The vectors of some texts."""

    vectors: tuple[array[float], ...]
    """"f" one for each text, of length 1."""
    prompt_tokens: int
    """Of all texts."""
    cached_tokens: int
    """Those of them that were found in the prefix cache."""


@attrs.define(eq=False)
class _Call:
    id: str
    name: str
    arguments: list[str] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Said:
    text: list[str] = attrs.field(factory=list)
    reasoning: list[str] = attrs.field(factory=list)
    calls: list[_Call] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprob] = attrs.field(factory=list)


class AnswerFold:
    """Takes every event of a request, then makes the Answer."""

    def __init__(self) -> None:
        self._said: dict[int, _Said] = {}
        self._finished: list[ChoiceFinished] = []
        self._scored: list[PromptScored] = []

    def __repr__(self) -> str:
        return f"<AnswerFold: {len(self._finished)} choices finished>"

    def feed(self, event: Event) -> None:
        """One more event."""
        if isinstance(event, ChoiceFinished):
            self._finished.append(event)
            return
        if isinstance(event, PromptScored):
            self._scored.append(event)
            return
        said = self._said.setdefault(event.index, _Said())
        said.token_ids += event.token_ids
        said.logprobs += event.logprobs
        if isinstance(event, TextDelta):
            said.text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            said.reasoning.append(event.text)
        elif isinstance(event, ToolCallDelta):
            if event.id is not None and event.name is not None:
                said.calls.append(_Call(event.id, event.name))
            said.calls[-1].arguments.append(event.arguments)

    def answer(self, prompt_tokens: int, cached_tokens: int) -> Answer:
        """The answer, once all choices have finished."""
        choices = [self._choice(event) for event in sorted(self._finished, key=lambda event: event.index)]
        return Answer(
            choices=tuple(choices),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            scored_prompts=tuple(sorted(self._scored, key=lambda event: event.prompt)),
        )

    def _choice(self, event: ChoiceFinished) -> ChoiceAnswer:
        said = self._said.get(event.index, _Said())
        return ChoiceAnswer(
            index=event.index,
            text="".join(said.text),
            token_ids=tuple(said.token_ids),
            reason=event.reason,
            seed=event.seed,
            usage=event.usage,
            mean_logprob=event.mean_logprob,
            reasoning="".join(said.reasoning),
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments="".join(call.arguments)) for call in said.calls
            ),
            logprobs=tuple(said.logprobs),
        )
