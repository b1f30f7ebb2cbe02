"""langchain-openai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pydantic
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

QUESTION = "Name a colour."


class Colour(pydantic.BaseModel):
    """A colour."""

    # nothing else, or a model this small goes on with properties of its own
    model_config = pydantic.ConfigDict(extra="forbid")

    name: Literal["red", "green", "blue"]
    warm: bool


@tool
def paint(colour: Literal["red", "green", "blue"], coats: Literal[1, 2]) -> str:
    """Paint the wall."""
    return f"The wall is {colour}, {coats} times."


@pytest.fixture
def settings(url: str, model: str) -> dict[str, Any]:
    return {"base_url": f"{url}/v1", "api_key": "none", "model": model, "max_retries": 0}


@pytest.fixture
def chat(settings: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**settings, max_tokens=64, seed=1)


def test_invoke(chat: ChatOpenAI) -> None:
    answer = chat.invoke(QUESTION)
    assert answer.response_metadata["finish_reason"] in {"stop", "length"}
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_n_generations(settings: dict[str, Any]) -> None:
    result = ChatOpenAI(**settings, n=3, max_tokens=8).generate([[HumanMessage(QUESTION)]])
    assert len(result.generations[0]) == 3


def test_a_stream_says_what_an_answer_says(chat: ChatOpenAI) -> None:
    total: AIMessageChunk | None = None
    for chunk in chat.stream(QUESTION, stream_usage=True):
        assert isinstance(chunk, AIMessageChunk)
        total = chunk if total is None else total + chunk
    whole = chat.invoke(QUESTION)
    assert total is not None
    assert total.content == whole.content
    assert total.usage_metadata == whole.usage_metadata


def test_a_batch(chat: ChatOpenAI) -> None:
    answers = chat.batch([QUESTION] * 4)
    assert len({answer.text for answer in answers}) == 1


def test_async(chat: ChatOpenAI) -> None:
    async def ask() -> list[str]:
        answer = await chat.ainvoke(QUESTION)
        parts = [chunk.text async for chunk in chat.astream(QUESTION)]
        return [answer.text, "".join(parts)]

    said, heard = asyncio.run(ask())
    assert said == heard


def test_completions(settings: dict[str, Any]) -> None:
    model = OpenAI(**settings, max_tokens=4, n=2)
    result = model.generate(["The sky is", "Grass is"])
    assert [len(generations) for generations in result.generations] == [2, 2]


def test_structured_output_by_json_schema(chat: ChatOpenAI) -> None:
    answer = chat.with_structured_output(Colour, method="json_schema").invoke(QUESTION)
    assert isinstance(answer, Colour)


def test_structured_output_by_a_function(chat: ChatOpenAI) -> None:
    for strict in (None, True):
        answer = chat.with_structured_output(Colour, method="function_calling", strict=strict).invoke(QUESTION)
        assert isinstance(answer, Colour)


def test_json_mode(chat: ChatOpenAI) -> None:
    answer = chat.with_structured_output(method="json_mode", schema=None, include_raw=True).invoke(QUESTION)
    # its length is up to the model
    assert answer["parsing_error"] is None or answer["raw"].response_metadata["finish_reason"] == "length"


def test_a_turn_with_a_tool(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([paint], tool_choice="any", strict=True, parallel_tool_calls=False)
    asked = HumanMessage("Paint the wall.")
    answer = bound.invoke([asked])
    call = answer.tool_calls[0]
    result = paint.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content.startswith("The wall is ")
    results = [paint.invoke(each) for each in answer.tool_calls]
    assert chat.bind_tools([paint]).invoke([asked, answer, *results]).response_metadata["finish_reason"]


def test_a_streamed_call(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([paint], tool_choice="paint", parallel_tool_calls=False)
    total: Any = None
    for chunk in bound.stream("Paint the wall."):
        total = chunk if total is None else total + chunk
    assert [call["name"] for call in total.tool_calls][:1] == ["paint"]
    paint.invoke(total.tool_calls[0])


def test_embeddings(settings: dict[str, Any]) -> None:
    # texts, not the token ids of another model
    embeddings = OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    assert [len(vector) for vector in embeddings.embed_documents(["a cat", "a dog"])] == [576, 576]


def test_the_responses_api(settings: dict[str, Any]) -> None:
    chat = ChatOpenAI(**settings, use_responses_api=True, max_tokens=32)
    assert chat.invoke(QUESTION).usage_metadata
    assert any(chunk.text for chunk in chat.stream(QUESTION))
