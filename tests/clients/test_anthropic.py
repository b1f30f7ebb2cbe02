"""Anthropic's own client, for /v1/messages."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

MESSAGES: Any = [{"role": "user", "content": "Name a colour."}]
PAINT: Any = {
    "name": "paint",
    "description": "Paint the wall.",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}
ALONE: Any = {"disable_parallel_tool_use": True}


@pytest.fixture
def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def test_a_message(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.create(model=model, max_tokens=16, messages=MESSAGES, system="Be brief.")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model)
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert [block.type for block in answer.content] == ["text"]
    assert 0 < answer.usage.output_tokens <= 16


def test_the_stream_helper_puts_a_message_together(client: anthropic.Anthropic, model: str) -> None:
    with client.messages.stream(model=model, max_tokens=16, messages=MESSAGES) as stream:
        heard = "".join(stream.text_stream)
        final = stream.get_final_message()
    block = final.content[0]
    assert block.type == "text"
    assert block.text == heard
    assert final.stop_reason in {"end_turn", "max_tokens"}
    assert final.usage.output_tokens > 0


def test_the_events_of_a_stream(client: anthropic.Anthropic, model: str) -> None:
    stream = client.messages.create(model=model, max_tokens=4, messages=MESSAGES, stream=True)
    kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_counting_tokens(client: anthropic.Anthropic, model: str) -> None:
    counted = client.messages.count_tokens(model=model, messages=MESSAGES)
    answer = client.messages.create(model=model, max_tokens=1, messages=MESSAGES)
    # what was found in the cache is counted apart
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_messages_at_once(url: str, model: str) -> None:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)

    async def everybody() -> list[Any]:
        ask = client.messages.create
        return await asyncio.gather(*[ask(model=model, max_tokens=8, messages=MESSAGES) for _ in range(4)])

    assert all(answer.usage.output_tokens for answer in asyncio.run(everybody()))


def test_an_error_is_in_the_form_that_the_client_knows(client: anthropic.Anthropic, model: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=model, max_tokens=16, messages=MESSAGES, extra_body={"temperature": 7})
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=16, messages=MESSAGES)


def test_a_turn_with_a_tool(client: anthropic.Anthropic, model: str) -> None:
    settings: Any = {"model": model, "max_tokens": 200, "tools": [PAINT]}
    answer = client.messages.create(**settings, messages=MESSAGES, tool_choice={"type": "any", **ALONE})
    call = next(block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use"
    assert call.name == "paint"
    assert call.input["colour"] in {"red", "green", "blue"}
    calls = [block for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "done"} for block in calls]
    turns: Any = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert client.messages.create(**settings, messages=turns).stop_reason
    with client.messages.stream(
        **settings, messages=MESSAGES, tool_choice={"type": "tool", "name": "paint", **ALONE}
    ) as stream:
        streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert streamed.input["colour"] in {"red", "green", "blue"}
