"""FAN-15 and FAN-22 as clients see them: the whole server but its sockets, on a real model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.testing.checkpoints import TinyLlama, write_tiny_llama
from trioserve.testing.http import AsgiClient
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.options import ServeOptions
from trioserve.web.state import STATE_KEY, ServerState

OPTIONS = ServeOptions()
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Name a colour."}]})
IDS = ("/v1/completions", {"prompt": [70, 300, 5, 6, 400]})
TEXT = ("/v1/completions", {"prompt": "Once upon a time"})
FIELDS = {"seed": 40, "temperature": 1.4, "top_p": 0.9, "max_tokens": 12, "stop": ["e "]}


@attrs.frozen
class Choice:
    text: str
    finish_reason: str
    seed: int


def text_of(choice: dict[str, Any], part: str) -> str:
    return (choice[part].get("content") if part in choice else choice["text"]) or ""


async def post(client: AsgiClient, path: str, **fields: Any) -> tuple[list[Choice], dict[str, int]]:
    """The choices in index order, and the usage; of a stream, put together."""
    if fields.get("stream"):
        fields["stream_options"] = {"include_usage": True}
    response = await client.request("POST", path, body=json.dumps({"model": "tiny", **fields}).encode())
    assert response.status == 200, response.body
    if not fields.get("stream"):
        answer = json.loads(response.body)
        choices = [Choice(text_of(c, "message"), c["finish_reason"], c["seed"]) for c in answer["choices"]]
        return choices, answer["usage"]
    events = [event.removeprefix("data: ") for event in response.body.decode().split("\n\n") if event[:1] == "d"]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    texts: dict[int, str] = {}
    ends: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] not in ends
            texts[choice["index"]] = texts.get(choice["index"], "") + text_of(choice, "delta")
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice
    return [Choice(texts[j], ends[j]["finish_reason"], ends[j]["seed"]) for j in sorted(ends)], chunks[-1]["usage"]


@pytest.mark.parametrize("request_", [CHAT, IDS, TEXT], ids=["chat", "ids", "text"])
async def test_a_choice_is_the_answer_to_its_own_seed_streamed_or_not(
    tiny_engine: Callable, request_: tuple[str, dict[str, Any]]
) -> None:
    path, prompt = request_
    async with tiny_engine(page_size=4) as engine:
        app = create_app(engine, OPTIONS)
        prepare_app(app, OPTIONS)
        client = AsgiClient(app, state={STATE_KEY: ServerState(lambda access: None)})
        alone = [
            await post(client, path, **prompt, **(FIELDS | {"seed": 40 + j}), stream=bool(j % 2)) for j in range(3)
        ]
        for stream in (False, True):
            choices, usage = await post(client, path, **prompt, **FIELDS, n=3, stream=stream)
            assert choices == [choice for (choice,), _ in alone]
            assert usage["prompt_tokens"] == alone[0][1]["prompt_tokens"]
            assert usage["completion_tokens"] == sum(own["completion_tokens"] for _, own in alone)
    assert len({choice.text for choice in choices}) == 3
    assert [choice.seed for choice in choices] == [40, 41, 42]


DETAILS = {
    "n": 3,
    "seed": 40,
    "temperature": 1.4,
    "max_tokens": 14,
    "min_tokens": 4,
    "presence_penalty": 0.5,
    "frequency_penalty": 1.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"40": 3, "41": -100},
    "stop": ["a", "\u00e9"],
    "stop_token_ids": [*range(30, 961, 40)],
    "include_stop_str_in_output": True,
    "prompt_logprobs": 1,
    "return_token_ids": True,
}
DETAILED = {
    "chat": (CHAT[0], {**CHAT[1], "logprobs": True, "top_logprobs": 2}),
    "completion": (TEXT[0], {**TEXT[1], "logprobs": 2}),
    "echo": (IDS[0], {**IDS[1], "logprobs": 2, "echo": True}),
    "tokens": ("/inference/v1/generate", {"token_ids": [70, 300, 5, 6, 400]}),
}


def body_of(path: str, prompt: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {**DETAILS, **more}
    if path != "/inference/v1/generate":
        return {"model": "tiny", **prompt, **fields}
    del fields["return_token_ids"]
    stream = {"stream": fields.pop("stream")}
    return {"model": "tiny", **prompt, **stream, "sampling_params": {**fields, "logprobs": 2}}


async def ask(client: AsgiClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All that each choice is told, in index order; of a stream, put together."""
    response = await client.request("POST", path, body=json.dumps(body).encode())
    assert response.status == 200, response.body
    if not body["stream"]:
        return [told_of(choice) for choice in json.loads(response.body)["choices"]]
    events = [event.removeprefix("data: ") for event in response.body.decode().split("\n\n") if event[:1] == "d"]
    assert events.pop() == "[DONE]"
    told: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in json.loads(event)["choices"]:
            one = told.setdefault(choice["index"], told_of({}))
            more = told_of(choice)
            for name, value in more.items():
                if isinstance(value, list) or name == "text":
                    one[name] += value
                elif value is not None:
                    one[name] = value
    return [told[j] for j in sorted(told)]


def told_of(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice, or a part of one in a stream, without its index and what it shares with its siblings."""
    logprobs = choice.get("logprobs") or {}
    usage = choice.get("usage")
    said = choice.get("message") or choice.get("delta") or {}
    return {
        "text": (said.get("content") if said else choice.get("text")) or "",
        "calls": said.get("tool_calls") or [],
        "token_ids": list(choice.get("token_ids") or ()),
        "content": list(logprobs.get("content") or ()),
        "tokens": list(logprobs.get("tokens") or ()),
        "token_logprobs": list(logprobs.get("token_logprobs") or ()),
        "top_logprobs": list(logprobs.get("top_logprobs") or ()),
        "text_offset": list(logprobs.get("text_offset") or ()),
        "finish_reason": choice.get("finish_reason"),
        "seed": choice.get("seed"),
        "completion_tokens": None if usage is None else usage["completion_tokens"],
    }


@asynccontextmanager
async def clients(tiny_engine: Callable, **options: Any) -> AsyncIterator[AsgiClient]:
    async with tiny_engine(**options) as engine:
        app = create_app(engine, OPTIONS)
        prepare_app(app, OPTIONS)
        yield AsgiClient(app, state={STATE_KEY: ServerState(lambda access: None)})


@pytest.mark.parametrize("form", DETAILED)
async def test_all_that_is_told_of_a_choice_is_what_it_is_alone(tiny_engine: Callable, form: str) -> None:
    path, prompt = DETAILED[form]
    async with clients(tiny_engine, prefix_cache=False) as client:
        alone = []
        for j in range(3):
            alone += await ask(client, path, body_of(path, prompt, n=1, seed=40 + j, stream=False))
    async with clients(tiny_engine, page_size=4, max_batch_tokens=3) as client:
        whole = await ask(client, path, body_of(path, prompt, stream=False))
        streamed = await ask(client, path, body_of(path, prompt, stream=True))
    assert whole == alone
    assert streamed == alone
    for choice in alone:
        # none of them is one token off
        assert len(choice["token_ids"]) == choice["completion_tokens"] >= 4
        scored = choice["content"] or choice["token_logprobs"][5 if form == "echo" else 0 :]
        assert len(scored) == choice["completion_tokens"]
    assert {choice["finish_reason"] for choice in alone} >= {"stop"}
    assert len({choice["text"] or tuple(choice["token_ids"]) for choice in alone}) == 3


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"q": {"enum": ["a", "bb", 7]}},
                "required": ["q"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("f", "g")
]


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of each call; of a stream, put together."""
    calls: list[tuple[str, str]] = []
    for part in choice["calls"]:
        if part.get("id") is not None:
            calls.append((part["function"]["name"], ""))
        name, arguments = calls[-1]
        calls[-1] = (name, arguments + part["function"].get("arguments", ""))
    return calls


@pytest.fixture
def roomy_engine(tmp_path: Path) -> Callable:
    """As tiny_engine, of a model with room for descriptions of tools."""
    folder = write_tiny_llama(tmp_path / "tiny", TinyLlama(vocab_size=961, context_length=1024))
    return lambda **options: open_engine(folder, EngineOptions(device="reference", threads=1, **options))


async def test_calls_are_those_of_the_choice_alone_but_for_their_ids(roomy_engine: Callable) -> None:
    # FAN-9
    path, prompt = CHAT
    asked = {**prompt, "model": "tiny", "tools": TOOLS, "tool_choice": "required", "seed": 3, "max_tokens": 120}
    options = {"tool_format": "hermes", "page_size": 4}
    async with clients(roomy_engine, prefix_cache=False, **options) as client:
        alone = []
        for j in range(4):
            alone += await ask(client, path, {**asked, "seed": 3 + j, "stream": False})
    async with clients(roomy_engine, max_batch_tokens=50, **options) as client:
        whole = await ask(client, path, {**asked, "n": 4, "stream": False})
        streamed = await ask(client, path, {**asked, "n": 4, "stream": True})
    assert [calls_of(choice) for choice in whole] == [calls_of(choice) for choice in alone]
    assert [calls_of(choice) for choice in streamed] == [calls_of(choice) for choice in alone]
    without = [[{**choice, "calls": None} for choice in choices] for choices in (alone, whole, streamed)]
    assert without[0] == without[1] == without[2]
    assert any(choice["finish_reason"] == "tool_calls" for choice in alone)
    ids = [part["id"] for choice in (*alone, *whole, *streamed) for part in choice["calls"] if part.get("id")]
    assert len(ids) == len(set(ids)) > 4
