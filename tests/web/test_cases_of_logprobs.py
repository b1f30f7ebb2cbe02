"""Complaints about other servers, as they were made: log-probabilities and scored prompts. Each test names its case.

The fake device's log-probabilities are multiples of 1/8, so they are compared exactly.
"""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest

from trioserve.testing.device import Draw, varied_score
from trioserve.testing.engine import FAKE_OPTIONS, say, say_ids
from trioserve.testing.server import CHAT, TEXT, FakeServer, serving
from trioserve.testing.tokenizer import BOS, EOS, ByteTokenizer


def fail(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


async def ask(server: FakeServer, path: str, **fields: Any) -> Any:
    response = await server.post(path, **fields)
    assert response.status == 200, response.body
    return json.loads(response.body, parse_constant=fail)


async def put_together(server: FakeServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The log-probabilities and texts of a stream's choices, as one answer would have them."""
    n = fields.get("n", 1)
    choices: list[dict[str, Any]] = [{"text": "", "logprobs": {}} for _ in range(n)]
    for chunk in (await server.stream(path, **fields))[:-1]:
        (part,) = chunk["choices"]
        choice = choices[part["index"]]
        choice["text"] += part["text"] if "text" in part else part["delta"].get("content", "")
        for name, items in (part["logprobs"] or {}).items():
            choice["logprobs"][name] = items if items is None else choice["logprobs"].get(name, []) + items
    return choices


# ---- case logprobs-shape-and-inf


async def test_a_chat_tells_as_many_tokens_as_it_counts_and_as_many_likely_ones_as_are_asked_for() -> None:
    async with serving(say("ab")) as server:
        for fields, count in (
            ({}, 0),
            ({"top_logprobs": 0}, 0),
            ({"top_logprobs": 5, "temperature": 1.5, "top_k": 1}, 5),
        ):
            answer = await ask(server, CHAT, logprobs=True, **fields)
            (choice,) = answer["choices"]
            content = choice["logprobs"]["content"]
            # the token that ends the answer is counted, and told of
            assert [entry["token"] for entry in content] == ["a", "b", "<|eos|>"]
            assert len(content) == answer["usage"]["completion_tokens"]
            assert [len(entry["top_logprobs"]) for entry in content] == [count] * 3
            for entry in content:
                assert [likely["logprob"] for likely in entry["top_logprobs"]] == [
                    entry["logprob"] - distance for distance in range(count)
                ]
        assert (await server.post(CHAT, top_logprobs=3)).status == 400


async def test_temperature_and_filters_do_not_change_what_is_told() -> None:
    async with serving(say("ab")) as server:
        plain = await ask(server, CHAT, logprobs=True, top_logprobs=3, seed=0)
        other = await ask(server, CHAT, logprobs=True, top_logprobs=3, seed=0, temperature=1.5, top_k=1, min_p=0.5)
    assert plain["choices"][0]["logprobs"] == other["choices"][0]["logprobs"]


async def test_a_token_that_the_bias_chose_has_the_log_probability_that_it_had() -> None:
    async with serving(say_ids([97])) as server:
        answer = await ask(
            server, TEXT, prompt="x", seed=0, logprobs=1, max_tokens=1, logit_bias={"97": -100, "98": 100}
        )
    (choice,) = answer["choices"]
    expected = varied_score(Draw((), (), 0), 97)
    assert choice["text"] == "b"
    assert choice["logprobs"]["token_logprobs"] == [expected - 1]
    assert choice["logprobs"]["top_logprobs"] == [{"a": expected, "b": expected - 1}]


async def test_a_completion_tells_tokens_whose_texts_are_its_text_and_where_they_begin() -> None:
    tokenizer = ByteTokenizer(["€".encode(), b" word"])
    async with serving(say_ids([97, 260, 259, 98]), tokenizer=tokenizer) as server:
        for count in (0, 2):
            answer = await ask(server, TEXT, prompt="ab", logprobs=count, max_tokens=4)
            (choice,) = answer["choices"]
            logprobs = choice["logprobs"]
            assert choice["text"] == "".join(logprobs["tokens"]) == "a word€b"
            assert logprobs["text_offset"] == [0, 1, 6, 7]
            # itself is among the likeliest if there are any
            assert [len(likely) for likely in logprobs["top_logprobs"]] == [max(1, count)] * 4
            for name, logprob, likely in zip(
                logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
            ):
                assert likely[name] == logprob
            assert await put_together(server, TEXT, prompt="ab", logprobs=count, max_tokens=4) == [
                {"text": choice["text"], "logprobs": logprobs}
            ]


async def test_what_is_impossible_is_told_as_a_number_of_json() -> None:
    async with serving(say("ab"), score=lambda draw, token_id: -math.inf) as server:
        answer = await ask(server, CHAT, logprobs=True, top_logprobs=2)
        for entry in answer["choices"][0]["logprobs"]["content"]:
            assert entry["logprob"] == -9999.0
            assert [likely["logprob"] for likely in entry["top_logprobs"]] == [-9999.0] * 2
        answer = await ask(server, TEXT, prompt="x", logprobs=1, echo=True)
        assert set(answer["choices"][0]["logprobs"]["token_logprobs"]) == {None, -9999.0}


async def test_log_probabilities_of_n_choices_streamed_or_not_are_those_of_each_alone() -> None:
    texts = ["abc", "x", "y€"]
    async with serving(say(texts)) as server:
        fields = {"logprobs": True, "top_logprobs": 1, "stop": ["c"]}
        together = (await ask(server, CHAT, n=3, seed=0, **fields))["choices"]
        streamed = await put_together(server, CHAT, n=3, seed=0, **fields)
        for j, choice in enumerate(together):
            (alone,) = (await ask(server, CHAT, seed=j, **fields))["choices"]
            assert choice["logprobs"] == alone["logprobs"] == streamed[j]["logprobs"]
            spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
            # the token that completed the stop string is told of, since it is counted
            assert spelled.decode().removesuffix("<|eos|>") == texts[j]


# ---- case echo-logprobs


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_an_echo_has_the_scores_of_its_prompt(max_tokens: int, n: int) -> None:  # case max-tokens-edges
    async with serving(say("!!")) as server:
        fields = {"prompt": "the cat sat", "echo": True, "logprobs": 1, "max_tokens": max_tokens, "n": n, "seed": 0}
        cold = await ask(server, TEXT, **fields)
        warm = await ask(server, TEXT, **fields)
        streamed = await put_together(server, TEXT, **fields)
        await server.assert_idle()
    count = cold["usage"]["prompt_tokens"]
    assert count == len("the cat sat") + 1
    for choice, other, stream in zip(cold["choices"], warm["choices"], streamed, strict=True):
        logprobs = choice["logprobs"]
        assert choice["text"] == "the cat sat" + "!" * max_tokens
        # BOS is a token of the prompt, and not of its text
        assert logprobs["tokens"] == ["<|bos|>", *"the cat sat", *"!" * max_tokens]
        assert logprobs["text_offset"] == [0, *range(len(choice["text"]))]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        sequence = (BOS, *b"the cat sat")
        assert logprobs["token_logprobs"][1:count] == [
            varied_score(Draw(sequence[:i], (), 0), sequence[i]) for i in range(1, count)
        ]
        assert logprobs == other["logprobs"] == stream["logprobs"]
        assert stream["text"] == choice["text"]


async def test_loglikelihoods_are_read_as_an_evaluation_harness_reads_them() -> None:
    """Of a context and its continuation, as token ids; what follows is dropped, and greedy is told by the likeliest."""
    context, continuation = [1, 2, 3], [4, 5]
    async with serving(say("!!")) as server:
        answer = await ask(
            server, TEXT, prompt=[context + continuation], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
        )
    logprobs = answer["choices"][0]["logprobs"]
    scores = logprobs["token_logprobs"][len(context) : -1]
    likeliest = [max(likely.values()) for likely in logprobs["top_logprobs"][len(context) : -1]]
    assert len(scores) == len(continuation)
    assert scores == likeliest


# ---- case prompt-logprobs-vs-prefix-cache


@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49])
async def test_a_prompt_in_the_cache_is_scored_like_a_new_one(length: int) -> None:
    options = attrs.evolve(FAKE_OPTIONS, page_size=16, max_batch_tokens=20)
    prompt = [i % 50 + 1 for i in range(length)]
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 0}
    async with serving(say("!!"), options=options) as server:
        cold = await ask(server, TEXT, **fields)
        warm = await ask(server, TEXT, **fields)
        plain = await ask(server, TEXT, prompt=prompt, max_tokens=1)
        await server.assert_idle()
    assert cold["choices"][0]["logprobs"] == warm["choices"][0]["logprobs"]
    assert len(cold["choices"][0]["logprobs"]["tokens"]) == length + 1
    # a prompt that is scored is computed, and a neighbour finds it all the same
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == (length - 1) // 16 * 16


# ---- penalties, ids and ends, over the wire


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_are_told_of_prompts_and_choices(stream: bool) -> None:
    async with serving(say(["ab", "c"])) as server:
        fields = {"n": 2, "seed": 0, "return_token_ids": True}
        if stream:
            *chunks, _ = await server.stream(TEXT, prompt="hi", **fields)
            ids: list[list[int]] = [[], []]
            prompts = []
            for chunk in chunks:
                (choice,) = chunk["choices"]
                ids[choice["index"]] += choice.get("token_ids", [])
                prompts += [choice["prompt_token_ids"]] if "prompt_token_ids" in choice else []
        else:
            answer = await ask(server, TEXT, prompt="hi", **fields)
            ids = [choice["token_ids"] for choice in answer["choices"]]
            prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
        assert ids == [[97, 98, EOS], [99, EOS]]
        assert prompts == [[BOS, *b"hi"]] * 2
        chat = await ask(server, CHAT, **fields)
        assert bytes(i for i in chat["prompt_token_ids"] if i < 256) == b"user: hi\nassistant: "


async def test_what_ends_a_choice_is_in_its_text_if_asked_for() -> None:
    async with serving(say("abcd")) as server:
        for fields, text in (
            ({"stop": ["c"]}, "ab"),
            ({"stop": ["c"], "include_stop_str_in_output": True}, "abc"),
            ({"stop_token_ids": [99]}, "ab"),
            ({"stop_token_ids": [99], "include_stop_str_in_output": True}, "abc"),
            ({"stop": ["b"], "min_tokens": 3}, "abcd"),
            # the device takes the next one, which ends it as soon as it may
            ({"stop_token_ids": [97, 99], "min_tokens": 1}, "bb"),
            ({"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 5}, "abcd<|eos|>"),
            ({"skip_special_tokens": True, "ignore_eos": True, "max_tokens": 5}, "abcd"),
        ):
            (choice,) = (await ask(server, TEXT, prompt="x", **{"max_tokens": 9, **fields}))["choices"]
            assert choice["text"] == text, fields
