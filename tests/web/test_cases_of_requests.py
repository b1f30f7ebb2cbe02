"""Complaints about other servers, as they were made: bodies and parameters. Each test names its case.

After each of them the server is as before: nothing is left, and a plain request is answered.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from trioserve.testing.device import Draw, Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, say
from trioserve.testing.http import HttpResponse
from trioserve.testing.server import CHAT, TEXT, FakeServer, serving
from trioserve.testing.tokenizer import EOS

MESSAGES = [{"role": "user", "content": "a"}]


@asynccontextmanager
async def unharmed(script: Script = count_for_ever, **settings: Any) -> AsyncIterator[FakeServer]:
    """A server that what the test does leaves as it was."""
    async with serving(script, **settings) as server:
        yield server
        await server.assert_idle()
        assert (await server.client.request("GET", "/health")).status == 200
        assert len((await server.whole(TEXT, prompt="plain", max_tokens=3))["choices"]) == 1
        await server.assert_idle()


def refusal(response: HttpResponse, status: int = 400) -> Any:
    """The error of a response that refuses a request as clients expect it."""
    assert response.status == status, response.body
    assert response.headers["content-type"] == "application/json"

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    error = json.loads(response.body, parse_constant=fail)["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def fields(**given: Any) -> bytes:
    return json.dumps({"model": "tiny-chat", "messages": MESSAGES, **given}).encode()


JUNK = {
    "nothing": b"",
    "half an object": b"{",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": '{"model": "tiny-chat"}'.encode("utf-16"),
    # as deep as is decoded in the event loop; deeper ones in a thread, for which virtual time does not wait
    "deep arrays": b"[" * 100_000,
    "an array": b"[1]",
    "null": b"null",
    "a string": b'"x"',
    "5000 digits": fields()[:-1] + b', "max_tokens": ' + b"9" * 5000 + b"}",
    "no name": fields(model=1),
    "no messages": fields(messages="hi"),
    "no message": fields(messages=[1]),
    "no flag": fields(stream="yes"),
}


@pytest.mark.parametrize("body", JUNK.values(), ids=JUNK.keys())
async def test_junk_is_refused_as_json_and_harms_nobody(body: bytes) -> None:  # case json-body-junk
    async with unharmed() as server:
        for path in (CHAT, TEXT):
            refusal(await server.client.request("POST", path, body=body))


@pytest.mark.parametrize(
    "body", [codecs.BOM_UTF8 + fields(n=2), fields()[:-1] + b', "n": 3, "n": 2}'], ids=["byte order mark", "twice"]
)
async def test_odd_but_plain_bodies_are_served(body: bytes) -> None:  # case json-body-junk
    async with unharmed(say("ok")) as server:
        response = await server.client.request("POST", CHAT, body=body)
        assert len(json.loads(response.body)["choices"]) == 2


NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "true", '"0.7"']
NUMBERS = {
    "temperature": [*NO_NUMBERS, "-0.1", "2.1"],
    "top_p": [*NO_NUMBERS, "-0.1", "2.1"],
    "min_p": [*NO_NUMBERS, "-0.1", "2.1"],
    "presence_penalty": [*NO_NUMBERS, "-2.1", "2.1"],
    "frequency_penalty": [*NO_NUMBERS, "-2.1", "2.1"],
    "repetition_penalty": [*NO_NUMBERS, "-0.1", "0", "10.1"],
    "logit_bias": ['{"5": NaN}', '{"5": 1e999}', '{"5": true}', '{"5": "1"}'],
    "seed": ["1e30", "NaN", "true"],
    "max_tokens": ["3.5", "-1", "0", "true"],
    "n": ["0", "-1", "1.5", "true"],
    "top_logprobs": ["-1", "1000"],
}


async def test_what_is_no_number_is_refused_by_name_and_a_neighbour_does_not_notice() -> None:  # case nonfinite-numbers
    neighbour: list[str] = []

    async with unharmed(context_length=200) as server, trio.open_nursery() as nursery:

        async def greedy() -> None:
            answer = await server.whole(TEXT, prompt="neighbour", temperature=0, max_tokens=100)
            neighbour.append(answer["choices"][0]["text"])

        nursery.start_soon(greedy)
        await trio.sleep(0.05)
        for name, values in NUMBERS.items():
            for value in values:
                body = fields()[:-1] + f', "{name}": {value}}}'.encode()
                error = refusal(await server.client.request("POST", CHAT, body=body))
                assert error["param"] == name, (name, value)
            null = fields(**{name: None}, **({} if name == "max_tokens" else {"max_tokens": 2}))
            assert (await server.client.request("POST", CHAT, body=null)).status == 200
    assert neighbour == ["0123456789" * 10]


async def test_a_model_that_is_not_served_is_a_404_that_says_what_is() -> None:  # case model-404
    async with unharmed(say("ok")) as server:
        for path, content in ((CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": "hi"})):
            error = refusal(await server.post(path, model="nope", **content), 404)
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert "tiny-chat" in error["message"]
            assert refusal(await server.post(path, model=None, **content))["param"] == "model"
            assert (await server.whole(path, **content))["model"] == "tiny-chat"
            (chunk, *_) = await server.stream(path, **content)
            assert chunk["model"] == "tiny-chat"
        error = refusal(await server.client.request("GET", "/v1/models/nope"), 404)
        assert error["code"] == "model_not_found"
        assert "tiny-chat" in error["message"]
        # three answers and their streams: nothing was done for those that were refused
        assert sum(len(plan.rows.tokens) for plan in server.device.plans) == 4 * len("ok.")


async def test_prompts_and_choices_are_numbered_prompt_by_prompt() -> None:  # FAN-4; case prompt-list-index
    def repeat(draw: Draw) -> int:
        return draw.prompt[-1] if len(draw.generated) < 2 else EOS

    async with unharmed(repeat) as server:
        answer = await server.whole(TEXT, prompt=["aa", "bb", "cc"], n=2, max_tokens=3, echo=True)
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert [choice["text"] for choice in answer["choices"]] == ["aaaa"] * 2 + ["bbbb"] * 2 + ["cccc"] * 2
        assert answer["usage"]["prompt_tokens"] == 3 * 3
        texts = [""] * 6
        for chunk in (await server.stream(TEXT, prompt=["aa", "bb", "cc"], n=2, max_tokens=3))[:-1]:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
        assert texts == ["aa"] * 2 + ["bb"] * 2 + ["cc"] * 2
        answer = await server.whole(TEXT, prompt=[[5, 6], [7, 8, 9]], n=2, max_tokens=2)
        assert [choice["text"] for choice in answer["choices"]] == ["\x06\x06"] * 2 + ["\t\t"] * 2
        assert answer["usage"]["prompt_tokens"] == 2 + 3
        (choice,) = (await server.whole(TEXT, prompt=[5, 6], max_tokens=2))["choices"]
        assert choice["text"] == "\x06\x06"
        for prompt in ([], [[]]):
            assert refusal(await server.post(TEXT, prompt=prompt))["param"].startswith("prompt")


async def test_the_usage_of_three_choices_is_the_same_however_it_is_asked_for() -> None:
    # FAN-20, FAN-21; case n-usage-and-usage-chunk
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 6}
    usage = {"prompt_tokens": len("user: hello\nassistant: ") + 2, "completion_tokens": 3 + 6 + 1}
    usage["total_tokens"] = sum(usage.values())
    async with unharmed(say(["ab", "c" * 9, ""])) as server:
        *chunks, last, done = await server.stream(CHAT, stream_options={"include_usage": True}, **asked)
        drawn = sum(len(plan.rows.tokens) for plan in server.device.plans)
        assert (last["choices"], done) == ([], "[DONE]")
        assert usage.items() <= last["usage"].items()
        # what the device drew, and nothing else
        assert drawn == usage["completion_tokens"]
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
        assert not any("usage" in chunk for chunk in (await server.stream(CHAT, **asked))[:-1])
        assert usage.items() <= (await server.whole(CHAT, **asked))["usage"].items()
        error = refusal(await server.post(CHAT, stream=False, stream_options={"include_usage": True}, **asked))
        assert error["param"] == "stream_options"


async def test_a_prompt_of_three_chunks_is_counted_once() -> None:  # FAN-8; case n-usage-and-usage-chunk
    options = attrs.evolve(FAKE_OPTIONS, max_batch_tokens=32)
    async with unharmed(say("ab"), options=options) as server:
        for stream in (False, True):
            if stream:
                *_, last, _ = await server.stream(
                    TEXT, prompt=[1] * 96, n=2, stream_options={"include_usage": True, "continuous_usage_stats": True}
                )
                usage = last["usage"]
            else:
                usage = (await server.whole(TEXT, prompt=[1] * 96, n=2))["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (96, 6)
        assert len([plan for plan in server.device.plans if len(plan.spans.tokens) > 2]) >= 3


async def test_a_huge_n_is_refused_at_once_and_a_large_one_waits_its_turn() -> None:  # case huge-n
    options = attrs.evolve(FAKE_OPTIONS, max_running=8)
    async with unharmed(options=options) as server:
        began = trio.current_time()
        assert refusal(await server.post(CHAT, n=1_000_000, max_tokens=1))["param"] == "n"
        error = refusal(await server.post(TEXT, prompt=["x"] * 5000, n=50, max_tokens=1))
        assert error["param"] == "prompt"
        assert "5000 prompts" in error["message"]
        # nothing was waited for: no step, no thread
        assert trio.current_time() == began
        assert server.device.plans == []
        answer = await server.chat(n=64, max_tokens=4, temperature=1)
        assert len(answer["choices"]) == 64
        assert answer["usage"]["completion_tokens"] == 64 * 4
        # the first tokens are drawn together, and then 8 choices run at once
        assert max(len(plan.spans.starts) - 1 for plan in server.device.plans) == 8
        texts = [choice["message"]["content"] for choice in answer["choices"]]
        assert texts == ["".join(str((j + i) % 10) for i in range(4)) for j in range(64)]


async def test_of_too_many_requests_each_is_taken_whole_or_refused_whole() -> None:  # FAN-10; case huge-n
    # 2 run and 10 wait: 3 requests of 4 choices
    options = attrs.evolve(FAKE_OPTIONS, max_running=2, max_queued=10)
    statuses: list[int] = []

    async with unharmed(options=options) as server:

        async def client() -> None:
            response = await server.post(CHAT, n=4, max_tokens=5)
            statuses.append(response.status)
            if response.status == 200:
                assert len(json.loads(response.body)["choices"]) == 4
            else:
                assert refusal(response, 429)["code"] == "queue_full"

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client)
        assert server.engine.statistics().scheduler.groups == 3
    assert sorted(statuses) == [200] * 3 + [429] * 2


async def test_every_length_that_can_be_asked_for() -> None:  # case max-tokens-edges
    async with unharmed(context_length=100) as server:

        async def chat_tokens(**lengths: Any) -> int:
            usage = (await server.whole(CHAT, **lengths))["usage"]
            return int(usage["completion_tokens"])

        prompt_tokens = len("user: hi\nassistant: ") + 2
        assert await chat_tokens(max_tokens=None) == 100 - prompt_tokens
        assert await chat_tokens(max_completion_tokens=3) == 3
        assert await chat_tokens(max_tokens=5, max_completion_tokens=3) == 3
        assert refusal(await server.post(CHAT, max_tokens=0))["param"] == "max_tokens"
        for length in (79, 1_000_000_000):
            for stream in (False, True):
                error = refusal(await server.post(CHAT, max_tokens=length, stream=stream))
                assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
        for length, code in ((99, None), (100, "context_length_exceeded"), (101, "context_length_exceeded")):
            for stream in (False, True):
                response = await server.post(TEXT, prompt=[1] * length, stream=stream)
                if code is not None:
                    assert refusal(response)["code"] == code
                else:
                    assert response.body.count(b'"finish_reason":"length"') == 1
        usage = (await server.whole(TEXT, prompt=[1] * 99))["usage"]
        assert usage["completion_tokens"] == 1


async def test_ids_out_of_the_vocabulary_are_refused_and_a_neighbour_does_not_notice() -> None:  # case oov-token-ids
    neighbour: list[str] = []
    device_width = 320  # wider than the vocabulary of 259
    async with serving() as server, trio.open_nursery() as nursery:
        server.device.info = attrs.evolve(server.device.info, vocab_size=device_width)

        async def greedy() -> None:
            answer = await server.whole(TEXT, prompt="neighbour", temperature=0, max_tokens=60)
            neighbour.append(answer["choices"][0]["text"])

        nursery.start_soon(greedy)
        await trio.sleep(0.05)
        for prompt in ([1, 2, 10**9], [-1], [2**70], [1, True, 2.0], [1, 259], [1, 319], [1, 320], [[1], [2, 259]]):
            assert refusal(await server.post(TEXT, prompt=prompt))["param"].startswith("prompt")
        for name, value in [
            ("logit_bias", {"999999999": 5}),
            ("logit_bias", {"-1": 5}),
            ("logit_bias", {"abc": 5}),
            ("logit_bias", {"5": 101}),
            ("stop_token_ids", [10**9]),
        ]:
            assert refusal(await server.post(CHAT, **{name: value}))["param"].startswith(name)
    assert neighbour == ["0123456789" * 6]


async def test_fifty_requests_that_memory_has_no_room_for_and_those_behind_them() -> None:  # case pool-exhaustion
    # 10 pages of 16 tokens; a context of 4096; prompts longer than a step
    options = attrs.evolve(FAKE_OPTIONS, max_batch_tokens=24)
    ends: list[tuple[str, int]] = []

    async with unharmed(options=options, page_count=10) as server:

        async def outgrows(number: int) -> None:
            answer = await server.whole(TEXT, prompt=[number] * 100, max_tokens=1000)
            ends.append((answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]))

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(outgrows, number)
                await trio.sleep(0.1)
                for stream in (False, True):
                    error = refusal(await server.post(TEXT, prompt=[1] * 160, stream=stream))
                    assert error["code"] == "context_length_exceeded"
                behind = await server.whole(TEXT, prompt="behind", max_tokens=5)
        assert behind["usage"]["completion_tokens"] == 5
    assert ends == [("length", 60)] * 50
