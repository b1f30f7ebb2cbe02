"""Paths for who works with tokens: to tokens and back, the exact prompts, and tokens in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from trioserve.testing.engine import FAKE_TEMPLATE, say
from trioserve.testing.server import CHAT, TEXT, FakeServer, events_of, serving
from trioserve.testing.tokenizer import BOS, EOS, TURN

GENERATE = "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_IDS = [TURN, *b"user: hi\n", TURN, *b"assistant: "]


async def ask(server: FakeServer, path: str, **fields: Any) -> Any:
    response = await server.post(path, **fields)
    assert response.status == 200, response.body
    return json.loads(response.body)


async def refusal(server: FakeServer, path: str, status: int = 400, **fields: Any) -> Any:
    response = await server.post(path, **fields)
    assert response.status == status, response.body
    return json.loads(response.body)["error"]


async def test_a_text_is_tokenized_as_a_prompt_is() -> None:  # case double-bos
    async with serving() as server:
        told = await ask(server, "/tokenize", prompt="hé", return_token_strs=True)
        assert told == {
            "count": 4,
            "max_model_len": 4096,
            "tokens": [BOS, *"hé".encode()],
            "token_strs": ["<|bos|>", "h", r"bytes:\xc3", r"bytes:\xa9"],
        }
        # one that is written is not doubled
        assert (await ask(server, "/tokenize", prompt="<|bos|>a"))["tokens"] == [BOS, 97]
        assert (await ask(server, "/tokenize", prompt="a", add_special_tokens=False))["tokens"] == [97]
        assert (await ask(server, "/tokenize", prompt="", model=None, add_special_tokens=False))["count"] == 0


async def test_a_text_longer_than_the_context_can_be_counted() -> None:
    async with serving(context_length=8) as server:
        told = await ask(server, "/tokenize", prompt="x" * 100)
        assert (told["count"], told["max_model_len"]) == (101, 8)


async def test_a_conversation_is_tokenized_as_it_is_answered() -> None:  # case double-bos
    async with serving(say("ok")) as server:
        assert (await ask(server, "/tokenize", messages=MESSAGES))["tokens"] == CHAT_IDS
        assert (await server.chat())["usage"]["prompt_tokens"] == len(CHAT_IDS)
        told = await ask(server, "/tokenize", messages=MESSAGES, add_generation_prompt=False)
        assert told["tokens"] == CHAT_IDS[:10]
        # of any length, like a text
        assert (await ask(server, "/tokenize", messages=[{"role": "user", "content": "x" * 5000}]))["count"] > 5000


async def test_tokens_are_made_a_text_with_their_marks() -> None:
    async with serving() as server:
        ids = (await ask(server, "/tokenize", messages=MESSAGES))["tokens"]
        told = await ask(server, "/detokenize", tokens=ids)
        assert told == {"prompt": "<|turn|>user: hi\n<|turn|>assistant: "}
        assert (await ask(server, "/tokenize", prompt=told["prompt"], add_special_tokens=False))["tokens"] == ids
        assert await ask(server, "/detokenize", tokens=[]) == {"prompt": ""}
        assert await ask(server, "/detokenize", tokens=[0xFF]) == {"prompt": "\ufffd"}
        error = await refusal(server, "/detokenize", tokens=[97, 259])
        assert error["param"] == "tokens"


async def test_what_a_client_must_know_of_the_tokenizer() -> None:
    async with serving(context_length=64) as server:
        response = await server.client.request("GET", "/tokenizer_info")
        told = json.loads(response.body)
        assert (told["bos_token"], told["eos_token"], told["pad_token"]) == ("<|bos|>", "<|eos|>", None)
        assert (told["vocab_size"], told["model_max_length"]) == (259, 64)
        assert told["chat_template"] == FAKE_TEMPLATE
        # the marks are what they are called
        ids = (await ask(server, "/tokenize", prompt=told["eos_token"], add_special_tokens=False))["tokens"]
        assert ids == [EOS]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", GENERATE, TEXT + "/render", CHAT + "/render"])
async def test_a_model_that_is_not_served_is_a_404(path: str) -> None:  # case model-404
    content: dict[str, Any] = {
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
        GENERATE: {"token_ids": [1]},
        TEXT + "/render": {"prompt": "x"},
        CHAT + "/render": {"messages": MESSAGES},
    }[path]
    async with serving() as server:
        error = await refusal(server, path, 404, model="nope", **content)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert server.device.plans == []


async def test_a_chat_is_rendered_as_the_tokens_that_it_is_answered_with() -> None:
    async with serving() as server:
        rendered = await ask(
            server,
            CHAT + "/render",
            messages=MESSAGES,
            n=3,
            max_completion_tokens=5,
            seed=4,
            cache_salt="s",
            stream=True,
        )
        assert rendered == {
            "model": "tiny-chat",
            "token_ids": CHAT_IDS,
            "sampling_params": {"n": 3, "max_tokens": 5, "seed": 4},
            "stream": True,
            "cache_salt": "s",
        }
        assert server.device.plans == []
        error = await refusal(server, CHAT + "/render", messages=[{"role": "user", "content": "x" * 5000}])
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 64},
        {"min_tokens": 63},
        {"n": 2, "choice_params": [{}, {"max_tokens": 64}]},
        {"logit_bias": {"5000": 1}},
        {"stop_token_ids": [5000]},
        {"structured_outputs": {"json": ""}},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"json": {"type": "nope"}}},
        {"structured_outputs": {"regex": "("}},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_nothing_is_rendered_that_would_not_be_answered(path: str, fields: dict[str, Any]) -> None:
    asked = {**fields, **({"prompt": "x"} if path == TEXT else {"messages": MESSAGES})}
    async with serving(say("ok"), context_length=64) as server:
        assert await refusal(server, path + "/render", **asked) == await refusal(server, path, **asked)


async def test_a_completion_is_rendered_prompt_by_prompt() -> None:
    async with serving(context_length=24) as server:
        rendered = await ask(server, TEXT + "/render", prompt=["a", "x" * 20, [1, 2]])
        assert [(one["token_ids"], one["sampling_params"]) for one in rendered] == [
            ([BOS, 97], {"max_tokens": 16}),
            # a default takes what room there is
            ([BOS, *b"x" * 20], {"max_tokens": 3}),
            ([1, 2], {"max_tokens": 16}),
        ]
        error = await refusal(server, TEXT + "/render", prompt=["a", "x" * 24])
        assert error["param"] == "prompt.1"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_what_is_rendered_is_answered_with_the_same_tokens(path: str) -> None:
    content = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    async with serving(say(["ab", "cde"])) as server:
        fields = {"n": 2, "seed": 0, "logprobs": True if path == CHAT else 1, **content}
        answer = await ask(server, path, return_token_ids=True, **fields)
        rendered = await ask(server, path + "/render", **fields)
        (request,) = rendered if path == TEXT else [rendered]
        generated = json.loads((await server.client.request("POST", GENERATE, body=json.dumps(request).encode())).body)
    told = [(c["token_ids"], c["seed"], c["finish_reason"], c["usage"]["completion_tokens"]) for c in answer["choices"]]
    assert [
        (c["token_ids"], c["seed"], c["finish_reason"], c["usage"]["completion_tokens"]) for c in generated["choices"]
    ] == told
    assert generated["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]


async def test_tokens_come_out_of_tokens_streamed_or_not() -> None:  # FAN-16, FAN-18, FAN-21
    async with serving(say(["ab", "c"])) as server:
        fields: dict[str, Any] = {
            "token_ids": [1, 2, 3],
            "request_id": "mine",
            "sampling_params": {"n": 2, "seed": 0, "logprobs": 1, "prompt_logprobs": 0},
        }
        answer = await ask(server, GENERATE, **fields)
        assert answer["request_id"] == "mine"
        assert [choice["token_ids"] for choice in answer["choices"]] == [[97, 98, EOS], [99, EOS]]
        assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [3, 2]
        assert len(answer["prompt_logprobs"]) == 3
        assert answer["usage"]["prompt_tokens"] == 3
        response = await server.post(GENERATE, stream=True, stream_options={"include_usage": True}, **fields)
        *chunks, last, done = events_of(response.body)
        await server.assert_idle()
    assert done == "[DONE]"
    assert last == {"request_id": "mine", "choices": [], "usage": {**answer["usage"]}}
    ids: list[list[int]] = [[], []]
    for chunk in chunks:
        for choice in chunk["choices"]:
            ids[choice["index"]] += choice["token_ids"]
    assert ids == [[97, 98, EOS], [99, EOS]]


async def test_what_the_engine_refuses_is_named_as_it_was_written() -> None:
    async with serving(context_length=10) as server:
        for fields, param in (
            ({"token_ids": [5000]}, "token_ids"),
            ({"token_ids": [1] * 10}, "token_ids"),
            ({"token_ids": [1], "sampling_params": {"max_tokens": 10}}, "sampling_params.max_tokens"),
            ({"token_ids": [1], "sampling_params": {"stop_token_ids": [5000]}}, "sampling_params.stop_token_ids"),
            ({"token_ids": [1], "sampling_params": {"n": 2, "temperature": 0}}, "sampling_params.n"),
        ):
            for stream in (False, True):
                assert (await refusal(server, GENERATE, stream=stream, **fields))["param"] == param
        assert server.device.plans == []


async def test_a_running_request_keeps_its_id_and_is_ended_by_it() -> None:  # FAN-34
    async with serving() as server, trio.open_nursery() as nursery:
        answers = []

        async def run() -> None:
            answers.append(await ask(server, GENERATE, token_ids=[1], request_id="mine"))

        nursery.start_soon(run)
        await trio.sleep(0.1)
        error = await refusal(server, GENERATE, token_ids=[1], request_id="mine")
        assert error["param"] == "request_id"
        response = await server.client.request("DELETE", "/v1/requests/mine")
        assert response.status == 200
        await trio.sleep(0.1)
        assert answers[0]["choices"][0]["finish_reason"] == "cancelled"
