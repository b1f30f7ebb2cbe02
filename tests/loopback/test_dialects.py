"""The newer dialects through the clients that were made for them, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import trio
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from trioserve.testing.device import Script
from trioserve.testing.engine import FAKE_MODEL, open_fake_engine, say
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve

CALL = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
PAINT: Any = {
    "type": "function",
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Colour(BaseModel):
    """What an answer is parsed as."""

    colour: str


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[openai.OpenAI]:
    options = ServeOptions(port=0, graceful_timeout=0.2)
    block, _ = open_fake_engine(script, step_seconds=0.001)
    with trio.fail_after(20), bind(options) as listeners:
        async with block as engine, trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: serve(engine, options, listeners=listeners, task_status=task_status)
            )
            address = f"http://127.0.0.1:{listeners.port}/v1"
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                yield client
            nursery.cancel_scope.cancel()


async def check(script: Script, asking: Callable[[openai.OpenAI], None]) -> None:
    async with serving(script) as client:
        await trio.to_thread.run_sync(asking, client)


async def test_a_response() -> None:
    def ask(client: openai.OpenAI) -> None:
        answer = client.responses.create(model=FAKE_MODEL, input="go", extra_body={"n": 3, "seed": 0})
        assert answer.output_text == "redgreenblue"
        assert [item.choice for item in answer.output] == [0, 1, 2]  # type: ignore[union-attr]
        assert [choice["finish_reason"] for choice in answer.choices] == ["stop"] * 3  # type: ignore[attr-defined]
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.input_tokens + len("redgreenblue") + 3

    await check(say(["red", "green", "blue"]), ask)


async def test_the_stream_helper_puts_a_response_together() -> None:
    def ask(client: openai.OpenAI) -> None:
        with client.responses.stream(model=FAKE_MODEL, input="go", tools=[PAINT]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        text, call = final.output
        assert text.type == "message"
        assert final.output_text.strip() == "Well."
        assert isinstance(call, ResponseFunctionToolCall)
        assert (call.name, call.parsed_arguments) == ("paint", {"colour": "red"})  # type: ignore[attr-defined]

    await check(say(f"Well.\n{CALL}"), ask)


async def test_a_response_is_parsed() -> None:
    def ask(client: openai.OpenAI) -> None:
        response = client.responses.parse(model=FAKE_MODEL, input="go", text_format=Colour)
        assert response.output_parsed == Colour(colour="red")
        with client.responses.stream(model=FAKE_MODEL, input="go", text_format=Colour) as stream:
            assert stream.get_final_response().output_parsed == Colour(colour="red")

    await check(say('{"colour":"red"}'), ask)


async def test_a_conversation_is_sent_again_in_full() -> None:
    def ask(client: openai.OpenAI) -> None:
        turns: list[Any] = [{"role": "user", "content": "go"}]
        answer = client.responses.create(model=FAKE_MODEL, input=turns, tools=[PAINT], store=False)
        (call,) = [item for item in answer.output if item.type == "function_call"]
        turns += [*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
        assert client.responses.create(model=FAKE_MODEL, input=turns, tools=[PAINT]).status == "completed"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=FAKE_MODEL, input="and?", previous_response_id=answer.id)
        assert caught.value.param == "previous_response_id"

    await check(say(CALL), ask)


async def test_every_extension_of_messages_works() -> None:
    def ask(client: openai.OpenAI) -> None:
        body = {"model": FAKE_MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "go"}], "n": 2}
        answer: Any = client.post("/messages", body=body, cast_to=object)
        assert [block["choice"] for block in answer["content"]] == [0, 1]
        assert [choice["seed"] for choice in answer["choices"]] == [0, 1]
        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/messages", body={**body, "n": 0}, cast_to=object)
        error: Any = caught.value.body
        assert (error["param"], error["code"]) == ("n", None)

    await check(say(["red", "green"]), ask)
