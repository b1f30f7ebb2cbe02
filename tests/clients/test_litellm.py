"""litellm, which speaks to the server by its provider "hosted_vllm" or "openai"."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

# or it asks the network for prices
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pydantic
import pytest

MESSAGES = [{"role": "user", "content": "Name a colour."}]


class Colour(pydantic.BaseModel):
    # nothing else, or a model this small goes on with properties of its own
    model_config = pydantic.ConfigDict(extra="forbid")

    name: Literal["red", "green", "blue"]
    warm: bool


Asked = dict[str, Any]


@pytest.fixture(params=["hosted_vllm", "openai"])
def to(url: str, model: str, request: pytest.FixtureRequest) -> Asked:
    """Where a request goes."""
    return {"model": f"{request.param}/{model}", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}


def test_a_chat_has_n_choices(to: Asked) -> None:
    answer = litellm.completion(**to, messages=MESSAGES, n=3, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_an_answer_says(to: Asked) -> None:
    whole = litellm.completion(**to, messages=MESSAGES, seed=3, max_tokens=8)
    chunks = list(
        litellm.completion(
            **to, messages=MESSAGES, seed=3, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_async_streams_at_once(to: Asked) -> None:
    async def listen() -> str:
        stream = await litellm.acompletion(**to, messages=MESSAGES, seed=5, max_tokens=8, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def everybody() -> list[str]:
        return await asyncio.gather(*[listen() for _ in range(4)])

    assert len(set(asyncio.run(everybody()))) == 1


def test_a_completion(url: str, model: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{model}",
        api_base=f"{url}/v1",
        api_key="none",
        prompt="The sky is",
        n=2,
        max_tokens=4,
    )
    assert len(answer.choices) == 2


def test_an_error_is_the_one_of_its_status(to: Asked) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature must be between"):
        litellm.completion(**to, messages=MESSAGES, temperature=7)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**to, messages=[{"role": "user", "content": "colour " * 10_000}])


def test_a_response_format_is_kept(to: Asked) -> None:
    answer = litellm.completion(**to, messages=MESSAGES, response_format=Colour)
    Colour.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called(to: Asked, stream: bool) -> None:
    function = {"name": "paint", "parameters": Colour.model_json_schema(), "strict": True}
    answer = litellm.completion(
        **to,
        messages=MESSAGES,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        stream=stream,
    )
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "paint"
    if to["model"].startswith("hosted_vllm/"):
        # litellm strikes "strict" and "additionalProperties" from the schemas that it sends to such servers
        if choice.finish_reason == "tool_calls":
            assert json.loads(call.function.arguments)["name"] in {"red", "green", "blue"}
    else:
        assert choice.finish_reason == "tool_calls"
        Colour.model_validate_json(call.function.arguments)


def test_embeddings(to: Asked) -> None:
    answer = litellm.embedding(**to, input=["a cat", "a dog"])
    assert [len(item["embedding"]) for item in answer.data] == [576, 576]
