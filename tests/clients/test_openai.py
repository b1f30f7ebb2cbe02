"""OpenAI's own client for Python."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name a colour."}]
SOON = ["a", "e", " "]
"""Stop strings: the stream helper refuses an answer that max_tokens has cut."""


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    # no retries: a request that works the second time only is a fault
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def async_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI, model: str) -> None:
    assert [card.id for card in client.models.list()] == [model]
    assert client.models.retrieve(model).object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"


def test_a_chat_has_n_choices_for_one_prompt(client: openai.OpenAI, model: str) -> None:
    one = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1)
    answer = client.chat.completions.create(model=model, messages=MESSAGES, n=4, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in answer.choices} <= {"stop", "length"}
    assert all(choice.message.role == "assistant" for choice in answer.choices)
    assert answer.usage is not None
    assert one.usage is not None
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert 4 <= answer.usage.completion_tokens <= 32


def test_a_stream_says_what_an_answer_says(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=MESSAGES, n=3, seed=7, max_tokens=12)
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        n=3,
        seed=7,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, reasons, usage = [""] * 3, [""] * 3, None
    for chunk in stream:
        assert usage is None, "nothing comes after the usage"
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_the_stream_helper_puts_n_choices_together(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=MESSAGES, n=2, seed=3, stop=SOON) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    whole = client.chat.completions.create(model=model, messages=MESSAGES, n=2, seed=3, stop=SOON)
    assert [choice.message.content for choice in final.choices] == [choice.message.content for choice in whole.choices]
    assert sum(event.type == "content.done" for event in events) == 2


def test_the_context_managers_of_responses_and_streams(client: openai.OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=MESSAGES, max_tokens=4, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse()._request_id == "mine"
    with client.chat.completions.with_streaming_response.create(
        model=model, messages=MESSAGES, max_tokens=4, stream=True
    ) as response:
        assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_a_stream_that_is_left_early_takes_nothing_with_it(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(model=model, messages=MESSAGES, n=2, max_tokens=4000, stream=True)
    with stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    assert client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1).choices


def test_requests_at_once(async_client: openai.AsyncOpenAI, model: str) -> None:
    async def ask(seed: int) -> list[str | None]:
        answer = await async_client.chat.completions.create(
            model=model, messages=MESSAGES, n=2, seed=seed, max_tokens=8
        )
        return [choice.message.content for choice in answer.choices]

    async def listen(seed: int) -> list[str | None]:
        texts: list[str | None] = ["", ""]
        async for chunk in await async_client.chat.completions.create(
            model=model, messages=MESSAGES, n=2, seed=seed, max_tokens=8, stream=True
        ):
            for choice in chunk.choices:
                texts[choice.index] = (texts[choice.index] or "") + (choice.delta.content or "")
        return texts

    async def everybody() -> list[list[str | None]]:
        return await asyncio.gather(*[ask(seed) for seed in range(0, 8, 2)], *[listen(seed) for seed in range(0, 8, 2)])

    answers = asyncio.run(everybody())
    assert answers[:4] == answers[4:]


def test_an_async_stream_helper(async_client: openai.AsyncOpenAI, model: str) -> None:
    async def ask() -> tuple[str | None, str]:
        async with async_client.chat.completions.stream(model=model, messages=MESSAGES, stop=SOON) as stream:
            heard = "".join([event.delta async for event in stream if event.type == "content.delta"])
            return (await stream.get_final_completion()).choices[0].message.content, heard

    said, heard = asyncio.run(ask())
    assert said == heard


def test_completions_of_texts_and_of_tokens(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=["The sky is", "Grass is"], n=2, max_tokens=4, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("The sky is") for choice in answer.choices] == [True, True, False, False]
    tokens = client.completions.create(model=model, prompt=[100, 200, 300], max_tokens=4)
    assert tokens.usage is not None
    assert tokens.usage.prompt_tokens == 3
    streamed = client.completions.create(model=model, prompt="The sky is", n=2, max_tokens=4, stream=True)
    assert {choice.index for chunk in streamed for choice in chunk.choices} == {0, 1}


def test_sampling_parameters_are_taken(client: openai.OpenAI, model: str) -> None:
    def ask(**extra_body: object) -> str | None:
        answer = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, temperature=0, extra_body=extra_body
        )
        return answer.choices[0].message.content

    assert ask() == ask(top_k=1, min_p=0.1)
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0.5, top_p=0.9, stop=["\n"], user="me"
    )
    assert "\n" not in (answer.choices[0].message.content or "")


def test_an_error_names_the_parameter(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=MESSAGES, temperature=7)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=100_000, stream=True)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert missing.value.param == "model"
