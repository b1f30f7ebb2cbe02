"""pydantic-ai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pydantic
import pytest
from pydantic_ai import Agent, ModelSettings, NativeOutput, RunContext, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

QUESTION = "Name a colour."
SHORT = ModelSettings(max_tokens=64, parallel_tool_calls=False)


class Colour(pydantic.BaseModel):
    # nothing else, or a model this small goes on with properties of its own
    model_config = pydantic.ConfigDict(extra="forbid")

    name: Literal["red", "green", "blue"]
    warm: bool


@pytest.fixture
def provider(url: str) -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{url}/v1", api_key="none")


@pytest.fixture
def chat(provider: OpenAIProvider, model: str) -> OpenAIChatModel:
    return OpenAIChatModel(model, provider=provider)


def test_a_text(chat: OpenAIChatModel) -> None:
    result = Agent(chat, model_settings=SHORT).run_sync(QUESTION)
    assert isinstance(result.output, str)
    assert result.usage.output_tokens > 0


def test_a_streamed_text(chat: OpenAIChatModel) -> None:
    async def listen() -> tuple[str, str]:
        async with Agent(chat, model_settings=SHORT).run_stream(QUESTION) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
            return "".join(parts), await result.get_output()

    heard, said = asyncio.run(listen())
    assert heard == said


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(NativeOutput(Colour), id="native"),
        pytest.param(ToolOutput(Colour), id="tool"),
    ],
)
def test_a_typed_output(chat: OpenAIChatModel, output: Any) -> None:
    agent = Agent(chat, output_type=output, model_settings=SHORT, retries=0)
    assert isinstance(agent.run_sync(QUESTION).output, Colour)

    async def listen() -> Any:
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output()

    assert isinstance(asyncio.run(listen()), Colour)


def test_a_tool_and_then_a_typed_output(chat: OpenAIChatModel) -> None:
    asked: list[str] = []

    async def in_the_first_step_only(context: RunContext[None], definition: ToolDefinition) -> ToolDefinition | None:
        # a model this small would go on calling it
        return definition if context.run_step == 1 else None

    async def only_later(context: RunContext[None], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
        return [] if context.run_step == 1 else definitions

    agent = Agent(
        chat,
        output_type=ToolOutput(Colour),
        model_settings=SHORT,
        capabilities=[PrepareOutputTools(only_later)],
    )

    @agent.tool_plain(prepare=in_the_first_step_only)
    def taste(person: Literal["Ada", "Bob"]) -> str:
        """What a person likes."""
        asked.append(person)
        return "warm colours"

    assert isinstance(agent.run_sync("Which colour would Ada like?").output, Colour)
    assert set(asked) <= {"Ada", "Bob"}
    assert asked


def test_the_responses_api(provider: OpenAIProvider, model: str) -> None:
    agent = Agent(OpenAIResponsesModel(model, provider=provider), model_settings=SHORT)
    assert isinstance(agent.run_sync(QUESTION).output, str)
