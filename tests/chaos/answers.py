"""Whether what came back is right.

Owns: the checks of answers, streams, cut-off streams and refusals. Must not know: sockets, why a client asked.

Every check raises WrongAnswer. Checks of choices are async, to let others run in between: they cost as much as the
choices themselves.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final

import attrs
import trio
from calls import AGREEMENT, BadCall, Call
from details import Told, check_told, require
from folding import StreamFold, error_of
from oracle import child_seed
from tool_calls import check_calls
from world import PAGE_SIZE, poison_message

_TIERS: Final = {"stop": 0, "length": 0, "cancelled": 1, "error": 2}
"""How a candidate ended: the lowest are the best."""


@attrs.frozen(kw_only=True)
class Received:
    """What a client has read of a response."""

    status: int = 0
    """0: not even a head."""
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    complete: bool = False


@attrs.define(kw_only=True)
class Outcome:
    """What a correct answer was."""

    name: str
    """"whole", "best of more", "streamed", "choice failed", "queue full"."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    choices: int = 0


def check_envelope(received: Received, status: int) -> dict[str, Any]:
    """The error in a response with this status."""
    require(received.complete, f"{status} is not complete: {received.body!r}")
    require(received.status == status, f"status {received.status} in place of {status}: {received.body[:300]!r}")
    require(received.headers.get("content-type") == "application/json", f"{status} is {received.headers}")
    return error_of(json.loads(received.body))


def check_refusal(received: Received, bad: BadCall) -> None:
    """A bad call gets its status, and the name of the field at fault."""
    error = check_envelope(received, bad.status)
    require(error["param"] == bad.param, f"{bad.name}: param {error['param']!r} in place of {bad.param!r}")


async def check_response(call: Call, received: Received) -> Outcome:
    """The complete response to a call, whatever it may be."""
    require(received.complete, f"the response ends early, after {received.body[-200:]!r}")
    if received.status == 429:
        error = check_envelope(received, 429)
        require(error["type"] == "rate_limit_error", f"429 is a {error['type']}")
        require(int(received.headers.get("retry-after", "0")) >= 1, "429 has no Retry-After")
        return Outcome(name="queue full")
    if received.status == 500:
        await _check_failure(call, check_envelope(received, 500))
        return Outcome(name="choice failed")
    require(received.status == 200, f"status {received.status}: {received.body[:300]!r}")
    if call.stream:
        return await _check_stream(call, received)
    return await _check_whole(call, json.loads(received.body))


async def check_partial(call: Call, received: Received) -> None:
    """The beginning of a stream whose client has left; the call has a seed."""
    seed = call.seed
    if seed is None or call.must_call or received.status != 200 or not call.stream:
        return
    stream = StreamFold(call)
    events, _, _ = received.body.rpartition(b"\n\n")
    for event in events.split(b"\n\n"):
        stream.feed(event)
    for index, text in enumerate(stream.texts):
        await trio.lowlevel.checkpoint()
        if text:
            wanted = call.expected(index, seed).text
            require(wanted.startswith(text), f"choice {index} began with {text!r}, not {wanted!r}")


def _failure(index: int) -> str:
    return f"Choice {index} failed: ValueError: {poison_message()}"


async def _check_failure(call: Call, error: dict[str, Any]) -> None:
    """FAN-23, FAN-28: the real message of a choice that had to fail."""
    require(error["code"] == "generation_failed", f"an error that nobody made: {error!r}")
    index = next((i for i in range(call.candidates * len(call.prompts)) if error["message"] == _failure(i)), None)
    require(index is not None, f"not an error of ours: {error!r}")
    assert index is not None
    # without a seed nothing tells which one it was
    if call.seed is not None and not call.must_call:
        await trio.lowlevel.checkpoint()
        require(call.expected(index, call.seed).poisoned, f"choice {index} should not have failed")


async def _check_whole(call: Call, answer: dict[str, Any]) -> Outcome:
    if call.kind != "tokens":
        require(answer["object"] == ("chat.completion" if call.chat else "text_completion"), answer["object"])
    choices = answer["choices"]
    require([choice["index"] for choice in choices] == list(range(call.choices)), "indices out of order")
    told = [Told() for _ in choices]
    for one, choice in zip(told, choices, strict=True):
        one.feed(choice, answer if call.kind != "completion" and choice["index"] == 0 else {})
    texts = [(choice["message"]["content"] or "") if call.chat else choice.get("text", "") for choice in choices]
    name = "best of more" if call.ranked else "whole"
    return await _check_choices(call, texts, choices, told, answer["usage"], name)


async def _check_choices(
    call: Call,
    texts: list[str],
    endings: list[dict[str, Any]],
    told: list[Told],
    usage: dict[str, Any] | None,
    name: str,
) -> Outcome:
    """Texts, reasons, seeds and usage, against the replay of every choice."""
    completion_tokens = cached_tokens = 0
    drafted = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    for index, (text, ending) in enumerate(zip(texts, endings, strict=True)):
        await trio.lowlevel.checkpoint()
        p, j = divmod(index, call.n)
        # without a seed, each prompt gets one of its own
        base = endings[p * call.n]["seed"] if call.seed is None else call.seed
        c = _candidate(base, ending["seed"]) if call.ranked else j
        require(c < call.candidates, f"choice {index} is no candidate: {ending}")
        require(ending["seed"] == child_seed(base, c), f"choice {index} has the seed {ending['seed']}, base {base}")
        own, prompt_tokens = ending["usage"], len(call.prompts[p])
        require(text.startswith(call.echo(index)), f"choice {index} has no echo: {text!r}")
        if call.must_call:
            check_calls(call, text, told[index].calls, ending)
        else:
            _compare(
                call, index, p * call.candidates + c, base, text.removeprefix(call.echo(index)), ending, told[index]
            )
        require(own["shared_tokens"] == (prompt_tokens if j else 0), f"choice {index}: {own}")
        require(own["reasoning_tokens"] == 0, f"choice {index}: {own}")
        require(own["accepted_prediction_tokens"] <= own["completion_tokens"], f"choice {index}: {own}")
        for kind in drafted:
            drafted[kind] += own[kind]
        cached = own["cached_tokens"]
        may_be_cached = 0 if j or not call.finds_prompts else prompt_tokens - 1
        require(0 <= cached <= may_be_cached and cached % PAGE_SIZE == 0, f"choice {index}: {own}")
        completion_tokens += own["completion_tokens"]
        cached_tokens += cached
    _check_ids_of_calls(told)
    _check_verdict(call, texts, endings)
    details = {"reasoning_tokens": 0, **drafted}
    if call.ranked:
        # never streamed, so there is a usage
        assert usage is not None
        details["discarded_tokens"] = usage["completion_tokens_details"]["discarded_tokens"]
        await _check_ranking(call, endings, details["discarded_tokens"])
        completion_tokens += details["discarded_tokens"]
    prompt_tokens = sum(map(len, call.prompts))
    if usage is not None:
        require(
            usage
            == {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": cached_tokens},
                "completion_tokens_details": details,
            },
            f"usage {usage}",
        )
    return Outcome(name=name, completion_tokens=completion_tokens, cached_tokens=cached_tokens, choices=len(endings))


def _candidate(base: int, seed: int) -> int:
    """Which candidate of a prompt has this seed."""
    return (seed - base) % 2**64


def _badness(mean_logprob: float | None) -> float:
    return math.inf if mean_logprob is None else -mean_logprob


async def _check_ranking(call: Call, endings: list[dict[str, Any]], discarded_tokens: int) -> None:
    """FAN-32: the choices of each prompt are the best of its candidates, the best first; the others are paid for."""
    assert call.seed is not None
    tokens = 0
    # it is not told how far a candidate came that was cancelled or failed, and is no choice
    all_known = not call.may_be_cancelled
    for p in range(len(call.prompts)):
        ranks = [
            (_TIERS[ending["finish_reason"]], _badness(ending["mean_logprob"]), _candidate(call.seed, ending["seed"]))
            for ending in endings[p * call.n : (p + 1) * call.n]
        ]
        require(ranks == sorted(set(ranks)), f"the choices of prompt {p} are in the order {ranks}")
        if call.may_be_cancelled:
            continue
        best = []
        for c in range(call.candidates):
            await trio.lowlevel.checkpoint()
            replay = call.expected(p * call.candidates + c, call.seed)
            if replay.poisoned:
                require(call.isolates, f"answered, and candidate {c} of prompt {p} had to fail")
                all_known = False
            else:
                best.append((_badness(replay.mean_logprob), c, replay.completion_tokens))
        best.sort()
        chosen = [c for tier, _, c in ranks if tier == 0]
        require(chosen == [c for _, c, _ in best[: call.n]], f"the choices of prompt {p} are {chosen}, not {best}")
        tokens += sum(count for _, _, count in best[call.n :])
    require(
        discarded_tokens == tokens or (discarded_tokens > tokens and not all_known),
        f"{discarded_tokens} discarded tokens in place of {tokens}",
    )


def _compare(call: Call, place: int, index: int, base: int, text: str, ending: dict[str, Any], told: Told) -> None:
    """Candidate ``index`` that is a choice, the one at ``place``, without its echo, against its replay."""
    reason, tokens = ending["finish_reason"], ending["usage"]["completion_tokens"]
    ended_early = reason in ("cancelled", "error")
    wanted = call.expected(index, base, tokens=tokens if ended_early else None)
    if call.ranked:
        require(ending["mean_logprob"] == wanted.mean_logprob, f"{ending}, wanted {wanted}")
    else:
        require("mean_logprob" not in ending, f"{ending} was not ranked")
    if reason == "error":
        # the text may lack the end of what was counted: a part of a character, or of a stop string
        whole = call.expected(index, base)
        require(call.isolates and whole.poisoned and tokens < whole.completion_tokens, f"{ending}, wanted {whole}")
        require(wanted.text.startswith(text), f"choice {index} began with {text!r}, not {wanted.text!r}")
        check_told(call, place, told, wanted, is_whole=False)
        error = error_of({"error": ending["error"]})
        require(error["message"] == _failure(index) and error["code"] == "generation_failed", f"{error}")
        return
    require("error" not in ending, f"choice {index}: {ending}")
    require(not wanted.poisoned, f"choice {index} was answered, and had to fail: {ending}")
    require(call.kind == "tokens" or text == wanted.text, f"choice {index} is {text!r}, not {wanted.text!r}")
    require(tokens == wanted.completion_tokens, f"choice {index}: {ending}, wanted {wanted}")
    check_told(call, place, told, wanted, is_whole=True)
    if reason == "cancelled":
        # unless it had nothing to say yet, it would have gone on
        goes_on = wanted.reason == "length" or wanted.is_cut_off
        require(goes_on and call.may_be_cancelled, f"choice {index}: {ending}, wanted {wanted}")
    else:
        require(reason == wanted.reason, f"choice {index}: {ending}, wanted {wanted}")


def _check_ids_of_calls(told: list[Told]) -> None:
    """FAN-9: no two calls of an answer have the same."""
    ids = [part["id"] for one in told for part in one.calls if part.get("id") is not None]
    require(len(ids) == len(set(ids)), f"ids of calls: {ids}")


def _check_verdict(call: Call, texts: list[str], endings: list[dict[str, Any]]) -> None:
    """FAN-31: choices are cancelled only when there is reason to."""
    rule = call.fields.get("stop_when")
    reasons = [ending["finish_reason"] for ending in endings]
    if rule is None or "cancelled" not in reasons:
        return
    natural = [texts[i].removeprefix(call.echo(i)) for i, reason in enumerate(reasons) if reason in ("stop", "length")]
    # candidates that are no choices, of prompts whose choices all ended by themselves: others may have, too
    unseen = sum(
        call.candidates - call.n
        for p in range(len(call.prompts))
        if {"stop", "length"}.issuperset(reasons[p * call.n : (p + 1) * call.n])
    )
    if "finished" in rule:
        require(len(natural) + unseen >= rule["finished"], f"cancelled when only {len(natural)} had finished: {rule}")
        return
    if call.kind == "tokens":
        return  # there is no text to see that by
    votes = Counter(found[-1] for text in natural if (found := re.findall(AGREEMENT, text)))
    require(max(votes.values(), default=0) + unseen >= rule["agree"], f"cancelled when {votes} agree: {rule}")


async def _check_stream(call: Call, received: Received) -> Outcome:
    require(received.headers.get("content-type") == "text/event-stream; charset=utf-8", f"{received.headers}")
    require(received.body.endswith(b"\n\n"), f"the stream ends with {received.body[-100:]!r}")
    stream = StreamFold(call)
    for event in received.body.split(b"\n\n"):
        stream.feed(event)
    require(stream.done, f"no [DONE], but {received.body[-200:]!r}")
    if stream.error is not None:
        await _check_failure(call, stream.error)
        return Outcome(name="choice failed")
    endings = [ending for ending in stream.endings if ending is not None]
    require(len(endings) == call.choices, f"{len(endings)} of {call.choices} choices have finished")
    wants_usage = bool(call.stream_options.get("include_usage"))
    require((stream.usage is not None) == wants_usage, f"usage is {stream.usage}")
    if call.stream_options.get("continuous_usage_stats"):
        for index, ending in enumerate(endings):
            require(ending["usage"]["completion_tokens"] == stream.tokens[index], f"the last usage of choice {index}")
    return await _check_choices(call, stream.texts, endings, stream.told, stream.usage, "streamed")
