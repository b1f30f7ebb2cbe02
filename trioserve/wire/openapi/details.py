"""What answers tell of tokens besides their text, as the document shows it.

Owns: the forms of log-probabilities. Must not know: which answers have them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType

from trioserve.wire.logprobs import LEAST
from trioserve.wire.openapi.marks import extension, meaning

Logprob = Annotated[
    float,
    Meta(
        description="The natural logarithm of the probability that the model gave the token, before penalties, bias, "
        f"temperature and filters; {LEAST:g} stands for all that are lower.",
        ge=LEAST,
        le=0,
    ),
]
TokenName = Annotated[
    str,
    meaning(
        "The text of the token; or bytes:\\xe2\\x82, all its bytes, if they are not whole characters; or the mark of "
        "a special token; or token_id:5 for one that has none of these."
    ),
]
Offset = Annotated[int, Meta(ge=0)]


class LikelyToken(Struct, kw_only=True):
    """A token that might be in a place, and how likely it was."""

    token: TokenName
    logprob: Logprob
    bytes: Annotated[list[int] | None, meaning("UTF-8, which may be a part of a character.")]


class ChatToken(LikelyToken, kw_only=True):
    """A token of the answer."""

    top_logprobs: Annotated[
        list[LikelyToken],
        meaning("The likeliest tokens in its place, as many as were asked for, the likeliest first."),
    ]


class ChatLogprobs(Struct, kw_only=True):
    """How likely the tokens were. In a stream, those of the tokens whose text is complete with the event."""

    content: list[ChatToken]
    refusal: None


class CompletionLogprobs(Struct, kw_only=True):
    """How likely the tokens were: an item of each list for each. In a stream, for those whose text is complete."""

    text_offset: Annotated[list[Offset], meaning("Where each begins in the text of the choice, in characters.")]
    token_logprobs: Annotated[list[Logprob | None], meaning("Null for the first token of an echoed prompt.")]
    tokens: list[TokenName]
    top_logprobs: Annotated[
        list[dict[str, Logprob] | None],
        meaning("The likeliest tokens in its place, as many as were asked for, and the token itself."),
    ]


class PromptToken(Struct, kw_only=True):
    """A token that might be in a place of the prompt, and how likely it was."""

    logprob: Logprob
    rank: Annotated[int | None, meaning("1 for the likeliest; null for one that is not among those asked for.")]
    decoded_token: TokenName


PromptLogprobs = list[dict[str, PromptToken] | None]
_LIKELY = "Only with logprobs, else null."
_PROMPT_IDS = "The ids of the prompt's tokens. Only with return_token_ids."
_PROMPT = (
    "For each token of the prompt, by their ids, itself and the likeliest ones in its place; null for the first. Only "
    "with prompt_logprobs; null if the prompt was never computed."
)
_FIRST = " In a stream it is in the first event."

ChatLogprobsField = Annotated[ChatLogprobs | None, meaning(_LIKELY)]
CompletionLogprobsField = Annotated[CompletionLogprobs | None, meaning(_LIKELY)]
TokenIdsField = Annotated[
    list[int] | UnsetType,
    extension("The ids of its tokens, an end-of-sequence token included. Only with return_token_ids."),
]
PromptTokenIds = Annotated[list[int] | UnsetType, extension(_PROMPT_IDS)]
PromptLogprobsField = Annotated[PromptLogprobs | UnsetType | None, extension(_PROMPT)]
FirstPromptTokenIds = Annotated[list[int] | UnsetType, extension(_PROMPT_IDS + _FIRST)]
FirstPromptLogprobs = Annotated[PromptLogprobs | UnsetType | None, extension(_PROMPT + _FIRST)]
