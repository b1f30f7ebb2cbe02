"""Whether what is told of tokens is right: their ids and log-probabilities, in each of the forms.

Owns: Told, and its checks. Must not know: how answers are read, streams.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from calls import Call
from oracle import Replay, Scored, score_prompt
from world import POISON, SPECIAL, spell

from trioserve.testing.tokenizer import BOS


class WrongAnswer(Exception):  # noqa: N818  # it is no error of the program's
    """The server has answered, and wrongly."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise WrongAnswer(message)


@attrs.define(eq=False)
class Told:
    """What was told of one choice besides its text, put together."""

    token_ids: list[int] = attrs.field(factory=list)
    scores: list[dict[str, Any]] = attrs.field(factory=list)
    """An item for each token, with the fields of its form."""
    calls: list[dict[str, Any]] = attrs.field(factory=list)
    """Parts of tool calls."""
    about_prompt: dict[str, Any] = attrs.field(factory=dict)

    def feed(self, choice: dict[str, Any], beside: dict[str, Any]) -> None:
        """A choice, or a part of it, and what stands beside the choices."""
        self.token_ids += choice.get("token_ids") or ()
        self.calls += (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ()
        logprobs = choice.get("logprobs") or {}
        if "tokens" in logprobs:
            columns = logprobs.values()
            self.scores += [dict(zip(logprobs, row, strict=True)) for row in zip(*columns, strict=True)]
        self.scores += logprobs.get("content") or ()
        for name in ("prompt_logprobs", "prompt_token_ids"):
            for place in (choice, beside):
                if place.get(name) is not None:
                    require(name not in self.about_prompt, f"{name} is told twice")
                    self.about_prompt[name] = place[name]

    @property
    def size(self) -> int:
        """How much it is; every part of a stream must tell something."""
        return len(self.token_ids) + len(self.scores) + len(self.about_prompt)


def check_told(call: Call, index: int, told: Told, wanted: Replay, *, is_whole: bool) -> None:
    """What is told of choice ``index`` of the request, and of its prompt.

    ``is_whole``: the choice was not ended by an error, which may swallow the end of it.
    """
    p, j = divmod(index, call.n)
    prompt = call.prompts[p]
    tells_prompt = call.kind == "completion" or j == 0
    if call.prompt_logprobs is None:
        require("prompt_logprobs" not in told.about_prompt, "scores of a prompt that nobody asked for")
    elif tells_prompt and wanted.scored:
        expected = [_of_prompt(scored, call.prompt_logprobs) for scored in score_prompt(prompt)]
        require(told.about_prompt.get("prompt_logprobs") == expected, f"prompt {p}: {told.about_prompt}")
    ids = list(prompt) if call.tells_ids and tells_prompt and call.kind != "tokens" else None
    require(told.about_prompt.get("prompt_token_ids") == ids, f"prompt {p}: {told.about_prompt}")
    _check_tokens(call, told, wanted, is_whole=is_whole)
    top = call.logprobs
    if top is None:
        require(not told.scores, f"scores that nobody asked for: {told.scores}")
        return
    if call.kind == "chat":
        rows = [_chat_row(scored, top) for scored in wanted.scored]
    elif call.kind == "tokens":
        rows = [_id_row(scored, top) for scored in wanted.scored]
    else:
        rows = list(_completion_rows(call, p, wanted, top))
    if not is_whole:
        rows = rows[: len(told.scores)]
    require(told.scores == rows, f"choice {index}: {told.scores}, wanted {rows}")


def _check_tokens(call: Call, told: Told, wanted: Replay, *, is_whole: bool) -> None:
    ids = [scored.token for scored in wanted.scored] if call.tells_ids else []
    if not is_whole:
        ids = ids[: len(told.token_ids)]
    require(told.token_ids == ids, f"tokens {told.token_ids}, wanted {ids}")


def name_of(token: int) -> tuple[str, bytes]:
    """How a token is shown, and its bytes."""
    data = b"" if token == POISON else SPECIAL.get(token, spell(token))
    if not data:
        return f"token_id:{token}", data
    try:
        return data.decode(), data
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data


def _chat_entry(token: int, logprob: float) -> dict[str, Any]:
    name, data = name_of(token)
    return {"token": name, "logprob": logprob, "bytes": list(data)}


def _chat_row(scored: Scored, top: int) -> dict[str, Any]:
    return _chat_entry(scored.token, scored.logprob) | {
        "top_logprobs": [_chat_entry(*likely) for likely in scored.top(top)]
    }


def _id_row(scored: Scored, top: int) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}

    return entry(scored.token, scored.logprob) | {"top_logprobs": [entry(*likely) for likely in scored.top(top)]}


def _of_prompt(scored: Scored | None, top: int) -> dict[str, Any] | None:
    if scored is None:
        return None
    # what a prompt has is what the model would have said, as this model goes
    ranks = {token: rank for rank, (token, _) in enumerate(scored.top(top), start=1)}
    return {
        str(token): {"logprob": logprob, "rank": ranks.get(token), "decoded_token": name_of(token)[0]}
        for token, logprob in ((scored.token, scored.logprob), *scored.top(top))
    }


def _completion_rows(call: Call, p: int, wanted: Replay, top: int) -> Iterator[dict[str, Any]]:
    echo = call.echo_texts[p] if call.echo_texts else ""
    if echo:
        tokens = call.prompts[p]
        # BOS, if it is there, was put in front
        offsets = _offsets([b"" if token == BOS else spell(token) for token in tokens], 0)
        yield from map(_completion_row, tokens, score_prompt(tokens), offsets, [top] * len(tokens))
    specials = {} if call.wishes(0).skip_special else SPECIAL
    said = [scored.token for scored in wanted.scored]
    data = [b"" if token == POISON else specials.get(token, spell(token)) for token in said]
    yield from map(_completion_row, said, wanted.scored, _offsets(data, len(echo)), [top] * len(said))


def _offsets(pieces: Sequence[bytes], start: int) -> Iterator[int]:
    """Where each piece begins in the text of all, in characters that are complete before it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield start
        start += len(decoder.decode(piece))


def _completion_row(token: int, scored: Scored | None, offset: int, top: int) -> dict[str, Any]:
    likely: dict[str, float] | None = None
    if scored is not None:
        likely = {name_of(other)[0]: logprob for other, logprob in scored.top(top)}
        likely[name_of(token)[0]] = scored.logprob
    return {
        "text_offset": offset,
        "token_logprobs": None if scored is None else scored.logprob,
        "tokens": name_of(token)[0],
        "top_logprobs": likely,
    }
