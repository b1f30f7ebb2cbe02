"""instructor: validated objects instead of texts."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import instructor
import openai
import pydantic
import pytest

MESSAGES: Any = [{"role": "user", "content": "Name a colour."}]


class Colour(pydantic.BaseModel):
    # nothing else, or a model this small goes on with properties of its own
    model_config = pydantic.ConfigDict(extra="forbid")

    name: Literal["red", "green", "blue"]
    warm: bool


@pytest.fixture(
    params=[
        instructor.Mode.JSON_SCHEMA,
        instructor.Mode.TOOLS,
        instructor.Mode.TOOLS_STRICT,
    ],
    ids=lambda mode: mode.name.lower(),
)
def mode(request: pytest.FixtureRequest) -> instructor.Mode:
    found = request.param
    assert isinstance(found, instructor.Mode)
    return found


@pytest.fixture
def asked(model: str, mode: instructor.Mode) -> dict[str, Any]:
    """What is asked for. With one try: the grammar leaves nothing to be tried again."""
    asked = {"model": model, "messages": MESSAGES, "response_model": Colour, "max_retries": 0}
    return asked if mode is instructor.Mode.JSON_SCHEMA else {**asked, "parallel_tool_calls": False}


@pytest.fixture
def client(url: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)


def test_an_object(client: Any, asked: dict[str, Any]) -> None:
    for _ in range(3):
        assert isinstance(client.create(**asked), Colour)


def test_an_object_with_the_answer_that_it_was_made_from(client: Any, asked: dict[str, Any]) -> None:
    colour, answer = client.create_with_completion(**asked)
    assert isinstance(colour, Colour)
    assert answer.usage.completion_tokens > 0


def test_an_object_as_it_grows(client: Any, asked: dict[str, Any]) -> None:
    *_, last = client.create_partial(**asked)
    Colour.model_validate(last.model_dump())


def test_an_async_client(url: str, mode: instructor.Mode, asked: dict[str, Any]) -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)

    async def everybody() -> list[Any]:
        return await asyncio.gather(*[client.create(**asked) for _ in range(3)])

    assert all(isinstance(colour, Colour) for colour in asyncio.run(everybody()))
