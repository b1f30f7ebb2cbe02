"""Vectors of texts over HTTP, against the hidden states that the fake device makes up."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest
import trio

from trioserve.params import Pooling
from trioserve.testing.device import fake_hidden
from trioserve.testing.engine import FAKE_OPTIONS, say
from trioserve.testing.server import TEXT, FakeServer, serving
from trioserve.testing.tokenizer import BOS

EMBEDDINGS = "/v1/embeddings"
DIM = 5


def options(pooling: Pooling | None, **others: Any) -> Any:
    return attrs.evolve(FAKE_OPTIONS, pooling=pooling, **others)


def expected(pooling: Pooling, tokens: list[int]) -> list[float]:
    states = [fake_hidden(tokens[: i + 1], DIM) for i in range(len(tokens))]
    total = [sum(column) for column in zip(*states, strict=True)] if pooling == "mean" else list(states[-1])
    norm = math.sqrt(sum(number * number for number in total))
    return [number / norm for number in total]


async def embed(server: FakeServer, **fields: Any) -> Any:
    return await server.whole(EMBEDDINGS, **fields)


@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_a_vector_is_pooled_over_all_chunks_of_a_prompt_and_in_the_cache_or_not(pooling: Pooling) -> None:
    # 40 tokens in steps of 16, and the same again
    tokens = [i % 9 + 1 for i in range(40)]
    async with serving(options=options(pooling, max_batch_tokens=16, page_size=8), embedding_dim=DIM) as server:
        cold = await embed(server, input=tokens)
        warm = await embed(server, input=[tokens, tokens[:39]])
        await server.assert_idle()
    assert cold["data"][0]["embedding"] == pytest.approx(expected(pooling, tokens), abs=1e-6)
    assert warm["data"][0] == cold["data"][0]
    assert warm["data"][1]["embedding"] == pytest.approx(expected(pooling, tokens[:39]), abs=1e-6)
    assert warm["usage"] == {"prompt_tokens": 79, "total_tokens": 79}


async def test_a_text_is_tokenized_like_a_prompt_and_draws_nothing() -> None:
    async with serving(options=options("last"), embedding_dim=DIM) as server:
        answer = await embed(server, input=["hi", "ho"])
        assert sum(len(plan.rows.tokens) for plan in server.device.plans) == 0
    vectors = [item["embedding"] for item in answer["data"]]
    assert vectors == [pytest.approx(expected("last", [BOS, *text]), abs=1e-6) for text in (b"hi", b"ho")]
    assert [item["index"] for item in answer["data"]] == [0, 1]


async def test_embeddings_and_answers_share_steps() -> None:
    async with serving(say("ok"), options=options("mean"), embedding_dim=DIM) as server:
        alone = await embed(server, input="hi")
        async with trio.open_nursery() as nursery:
            answers: list[Any] = []

            async def complete() -> None:
                answers.append(await server.whole(TEXT, prompt="x", n=2))

            nursery.start_soon(complete)
            assert (await embed(server, input="hi"))["data"] == alone["data"]
        assert [choice["text"] for choice in answers[0]["choices"]] == ["ok", "ok"]
        # the cache is left as useful as by any other prompt
        await server.assert_idle()


async def test_prompts_that_wait_for_pages_have_the_vectors_that_they_have_alone() -> None:
    tokens = [i % 7 + 1 for i in range(40)]
    answers: dict[int, Any] = {}
    async with serving(
        options=options("mean", max_batch_tokens=16, page_size=8), embedding_dim=DIM, page_count=9, context_length=64
    ) as server:

        async def ask(last: int) -> None:
            answers[last] = await embed(server, input=[*tokens, last])

        async with trio.open_nursery() as nursery:
            for last in (1, 2, 3):
                nursery.start_soon(ask, last)
        await server.assert_idle()
    for last, answer in answers.items():
        assert answer["data"][0]["embedding"] == pytest.approx(expected("mean", [*tokens, last]), abs=1e-6)


@pytest.mark.parametrize(
    ("pooling", "dim", "fields", "param", "words"),
    [
        (None, DIM, {"input": "x"}, "model", "not made for embeddings"),
        ("mean", 0, {"input": "x"}, "model", "gives no hidden states"),
        ("mean", DIM, {"input": "x", "dimensions": 4}, "dimensions", "must be 5"),
        ("mean", DIM, {"input": [[]]}, "input", "at least one token"),
        ("mean", DIM, {"input": ["x", [5000]]}, "input.1", "out of the vocabulary"),
        ("mean", DIM, {"input": "x" * 100}, "input", "maximum context length"),
    ],
)
async def test_what_has_no_vector_is_refused_by_name(
    pooling: Pooling | None, dim: int, fields: dict[str, Any], param: str, words: str
) -> None:
    async with serving(options=options(pooling), embedding_dim=dim, context_length=50) as server:
        response = await server.post(EMBEDDINGS, **fields)
        error = json.loads(response.body)["error"]
        assert (response.status, error["param"]) == (400, param)
        assert words in error["message"]
        assert server.device.plans == []


async def test_a_request_for_vectors_is_ended_like_any_other() -> None:  # FAN-25, FAN-34
    async with serving(options=options("mean"), embedding_dim=DIM, step_seconds=1.0) as server:
        async with server.open(EMBEDDINGS, input="x"):
            await trio.sleep(0.5)
        await server.assert_idle()
        responses: list[Any] = []

        async def ask() -> None:
            responses.append(await server.post(EMBEDDINGS, input="x"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.5)
            (live,) = server.engine.snapshot().requests
            assert (await server.client.request("DELETE", f"/v1/requests/{live.id}")).status == 200
        assert responses[0].status == 409
        assert json.loads(responses[0].body)["error"]["code"] == "request_cancelled"
        await server.assert_idle()
