"""What an answer tells of tokens besides their text: ids and log-probabilities.

Owns: Details, what was asked for, and ChoiceDetails, how far one choice is. Must not know: whether it is streamed.
Most requests ask for none of it, and pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from trioserve.events import PromptScored
from trioserve.wire.logprobs import Placed, Scores, chat_logprobs, completion_logprobs, prompt_logprobs
from trioserve.wire.token_texts import TextPosition, TokenTexts


@attrs.frozen(kw_only=True)
class Details:
    """What a request wants to be told."""

    texts: TokenTexts
    logprobs: int | None = None
    """Of the completion tokens, with so many of the likeliest ones in their place. None: nothing."""
    echo_logprobs: bool = False
    """The same of the echoed prompt."""
    prompt_logprobs: int | None = None
    """Of the prompt's tokens, echoed or not."""
    token_ids: bool = False
    """Those of the prompts and the completions."""
    prompt_ids: tuple[Sequence[int], ...] = ()
    """Of each prompt, with ``token_ids``."""

    @property
    def of_prompts(self) -> bool:
        """Whether a PromptScored comes for every prompt."""
        return self.echo_logprobs or self.prompt_logprobs is not None

    def of_prompt(self, prompt: int, scored: PromptScored | None) -> dict[str, object]:
        """The fields about a prompt: once in a chat, and in every choice of a completion."""
        fields: dict[str, object] = {}
        if self.token_ids:
            fields["prompt_token_ids"] = list(self.prompt_ids[prompt])
        if self.prompt_logprobs is not None:
            # a request that ended before its prompt was computed has none
            fields["prompt_logprobs"] = (
                None if scored is None else prompt_logprobs(self.texts, scored.logprobs, self.prompt_logprobs)
            )
        return fields


class ChoiceDetails:
    """The log-probabilities of one choice: ``whole``; or ``opening`` first, and then ``more``, once or often."""

    def __init__(self, details: Details, *, is_chat: bool, echo: str) -> None:
        self._details: Final = details
        self._is_chat: Final = is_chat
        self._position: Final = TextPosition(details.texts, echo)

    def __repr__(self) -> str:
        return f"<ChoiceDetails: {self._details!r}>"

    @property
    def token_ids(self) -> bool:
        """Whether ids were asked for."""
        return self._details.token_ids

    def whole(self, scored: PromptScored | None, scores: Scores) -> dict[str, object] | None:
        """Those of all tokens, the echoed prompt included; None if none were asked for."""
        top = self._details.logprobs
        if top is None:
            return None
        if self._is_chat:
            return chat_logprobs(self._details.texts, scores, top)
        return completion_logprobs(self._details.texts, [*self._echoed(scored), *self._placed(scores)], top)

    def opening(self, scored: PromptScored | None) -> dict[str, object] | None:
        """Those of the echoed prompt; None if there are none."""
        echoed, top = self._echoed(scored), self._details.logprobs
        return completion_logprobs(self._details.texts, echoed, top) if echoed and top is not None else None

    def more(self, scores: Scores) -> dict[str, object] | None:
        """Those of some more tokens; None if there are none."""
        top = self._details.logprobs
        if top is None or not scores:
            return None
        if self._is_chat:
            return chat_logprobs(self._details.texts, scores, top)
        return completion_logprobs(self._details.texts, self._placed(scores), top)

    def _echoed(self, scored: PromptScored | None) -> list[Placed]:
        echoed: list[Placed] = []
        if scored is not None and self._details.echo_logprobs:
            pairs = zip(scored.token_ids, scored.logprobs, strict=True)
            echoed = [Placed(token_id, score, self._position.next_of_prompt(token_id)) for token_id, score in pairs]
        self._position.end_prompt()
        return echoed

    def _placed(self, scores: Scores) -> list[Placed]:
        return [Placed(score.token_id, score, self._position.next(score.token_id)) for score in scores]
