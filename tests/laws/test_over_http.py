"""FAN-15 and FAN-22 as clients see them: the whole server but its sockets, on a real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

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
