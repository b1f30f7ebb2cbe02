"""Log-probabilities of tokens, in the three forms that clients know.

Owns: the JSON of each form. Must not know: whether it is streamed, or what was asked for.
The values are natural logarithms; JSON has no minus infinity, so LEAST stands for all that are lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from trioserve.events import TokenLogprob
from trioserve.wire.token_texts import TokenTexts

LEAST: Final = -9999.0
"""The lowest value that is written."""

Scores = Sequence[TokenLogprob]


@attrs.frozen
class Placed:
    """A token of a completion, and where it begins in its text."""

    token_id: int
    score: TokenLogprob | None
    """None for the first token of a prompt, which follows nothing."""
    offset: int
    """Characters."""


def finite(logprob: float) -> float:
    """The value as JSON can have it. The order makes NaN the least too."""
    return max(LEAST, logprob)


def chat_logprobs(texts: TokenTexts, scores: Scores, top: int) -> dict[str, object]:
    """The form of a chat: an entry for each token, with the ``top`` likeliest ones in its place."""
    return {"content": token_entries(texts, scores, top), "refusal": None}


def token_entries(texts: TokenTexts, scores: Scores, top: int) -> list[dict[str, object]]:
    """An entry for each token, with the ``top`` likeliest ones in its place: the form of a chat and of a response."""
    return [
        {
            **_chat_entry(texts, score.token_id, score.logprob),
            "top_logprobs": [_chat_entry(texts, *likely) for likely in score.top[:top]],
        }
        for score in scores
    ]


def id_logprobs(scores: Scores, top: int) -> dict[str, object]:
    """The form of a chat for who has no tokenizer: a token is "token_id:5", and has no bytes."""
    return {
        "content": [
            {
                **_id_entry(score.token_id, score.logprob),
                "top_logprobs": [_id_entry(*likely) for likely in score.top[:top]],
            }
            for score in scores
        ]
    }


def completion_logprobs(texts: TokenTexts, placed: Sequence[Placed], top: int) -> dict[str, object]:
    """The form of a completion: lists with an item for each token. One without a score has null in its place."""
    scores = [item.score for item in placed]
    return {
        "text_offset": [item.offset for item in placed],
        "token_logprobs": [None if score is None else finite(score.logprob) for score in scores],
        "tokens": [texts.shown(item.token_id)[0] for item in placed],
        "top_logprobs": [None if score is None else _likely(texts, score, top) for score in scores],
    }


def prompt_logprobs(
    texts: TokenTexts, scores: Sequence[TokenLogprob | None], top: int
) -> list[dict[str, dict[str, object]] | None]:
    """vLLM's form for a prompt: for each token, by their ids, itself and the likeliest ones; null for the first."""
    return [None if score is None else _by_id(texts, score, top) for score in scores]


def _chat_entry(texts: TokenTexts, token_id: int, logprob: float) -> dict[str, object]:
    name, data = texts.shown(token_id)
    return {"token": name, "logprob": finite(logprob), "bytes": list(data)}


def _id_entry(token_id: int, logprob: float) -> dict[str, object]:
    return {"token": f"token_id:{token_id}", "logprob": finite(logprob), "bytes": None}


def _likely(texts: TokenTexts, score: TokenLogprob, top: int) -> dict[str, float]:
    """The likeliest tokens by their names, and the token itself. Of two with one name, the likelier one."""
    named: dict[str, float] = {}
    for token_id, logprob in (*score.top[:top], (score.token_id, score.logprob)):
        named.setdefault(texts.shown(token_id)[0], finite(logprob))
    return named


def _by_id(texts: TokenTexts, score: TokenLogprob, top: int) -> dict[str, dict[str, object]]:
    """The rank of a token that is not among the likeliest is not known."""
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(score.top, start=1)}
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": ranks.get(token_id),
            "decoded_token": texts.shown(token_id)[0],
        }
        for token_id, logprob in ((score.token_id, score.logprob), *score.top[:top])
    }
