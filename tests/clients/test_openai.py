"""OpenAI's own client for Python."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name a colour."}]
SOON = ["a", "e", " "]
"""Stop strings: the stream helper refuses an answer that max_tokens has cut."""


class Colour(pydantic.BaseModel):
    # nothing else, or a model this small goes on with properties of its own
    model_config = pydantic.ConfigDict(extra="forbid")

    name: Literal["red", "green", "blue"]
    warm: bool


PAINT = openai.pydantic_function_tool(Colour, name="paint", description="Paint the wall.")


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


def test_parse_gives_an_object_for_each_choice(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Colour, n=3)
    assert all(isinstance(choice.message.parsed, Colour) for choice in answer.choices)
    with client.chat.completions.stream(model=model, messages=MESSAGES, response_format=Colour, n=2) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert all(isinstance(choice.message.parsed, Colour) for choice in final.choices)


def test_json_mode(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, response_format={"type": "json_object"}, n=2, max_tokens=200
    )
    for choice in answer.choices:
        assert (choice.message.content or "").lstrip().startswith("{")
        if choice.finish_reason == "stop":
            pydantic.TypeAdapter(dict[str, Any]).validate_json(choice.message.content or "")


def test_tools_are_called_by_every_choice(client: openai.OpenAI, model: str) -> None:
    for choice_of_tools in ("required", {"type": "function", "function": {"name": "paint"}}):
        asked: Any = {"tools": [PAINT], "tool_choice": choice_of_tools, "n": 2, "parallel_tool_calls": False}
        answer = client.chat.completions.parse(model=model, messages=MESSAGES, **asked)
        for choice in answer.choices:
            assert choice.finish_reason in {"tool_calls", "stop"}
            assert choice.message.tool_calls
            assert all(isinstance(call.function.parsed_arguments, Colour) for call in choice.message.tool_calls)


def test_streamed_calls_are_put_together(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"tools": [PAINT], "tool_choice": "required", "n": 2, "parallel_tool_calls": False}
    with client.chat.completions.stream(model=model, messages=MESSAGES, **asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert done
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls
        assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Colour)


def test_calls_side_by_side_have_ids_of_their_own(client: openai.OpenAI, model: str) -> None:
    # as many as the model likes, and the last may be cut
    asked: Any = {"tools": [PAINT], "tool_choice": "required", "n": 2, "max_tokens": 120, "seed": 1}
    whole = client.chat.completions.create(model=model, messages=MESSAGES, **asked)
    streamed: dict[tuple[int, int], str] = {}
    ids: list[str] = []
    for chunk in client.chat.completions.create(model=model, messages=MESSAGES, **asked, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                ids += [call.id] if call.id else []
                place = choice.index, call.index
                arguments = call.function.arguments if call.function else None
                streamed[place] = streamed.get(place, "") + (arguments or "")
    assert len(set(ids)) == len(ids) == len(streamed)
    assert streamed == {
        (choice.index, index): call.function.arguments
        for choice in whole.choices
        for index, call in enumerate(choice.message.tool_calls or [])
        if call.type == "function"
    }


def test_the_turn_after_a_call(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"tools": [PAINT], "parallel_tool_calls": False}
    answer = client.chat.completions.create(model=model, messages=MESSAGES, tool_choice="required", **asked)
    message = answer.choices[0].message
    calls = message.tool_calls or []
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls]
    turns: Any = [*MESSAGES, message.model_dump(exclude_none=True), *results]
    last = client.chat.completions.create(model=model, messages=turns, tool_choice="none", max_tokens=8, **asked)
    assert last.choices[0].message.tool_calls is None


def test_log_probabilities_of_a_chat(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 5}
    answer = client.chat.completions.create(**asked, max_tokens=4)
    streamed: list[list[float]] = [[], []]
    for chunk in client.chat.completions.create(**asked, max_tokens=4, stream=True):
        for choice in chunk.choices:
            if choice.logprobs and choice.logprobs.content:
                streamed[choice.index] += [entry.logprob for entry in choice.logprobs.content]
    for choice in answer.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert "".join(entry.token for entry in content).startswith(choice.message.content or "")
        assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in content)
        assert streamed[choice.index] == pytest.approx([entry.logprob for entry in content])


def test_log_probabilities_of_a_completion_and_its_prompt(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="The sky is", echo=True, logprobs=2, max_tokens=2, temperature=0
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert answer.choices[0].text == "".join(found.tokens)
    assert found.token_logprobs[0] is None
    assert found.text_offset is not None
    assert found.text_offset[0] == 0
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset)


def test_embeddings(client: openai.OpenAI, model: str) -> None:
    # as base64, which this client asks for by itself, and as numbers
    by_default = client.embeddings.create(model=model, input=["a cat", "a dog"])
    as_numbers = client.embeddings.create(model=model, input=["a cat", "a dog"], encoding_format="float")
    assert [item.index for item in by_default.data] == [0, 1]
    for one, other in zip(by_default.data, as_numbers.data, strict=True):
        assert len(one.embedding) == 576
        assert one.embedding == pytest.approx(other.embedding, rel=1e-5)
    assert by_default.usage.prompt_tokens > 0


def test_a_response(client: openai.OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model, input="Name a colour.", instructions="Be brief.", max_output_tokens=16
    )
    assert response.status in {"completed", "incomplete"}
    assert response.output_text
    assert response.usage is not None
    assert 0 < response.usage.output_tokens <= 16


def test_a_streamed_response(client: openai.OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="Name a colour.", max_output_tokens=16) as stream:
        events = list(stream)
    heard = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    last = events[-1]
    assert last.type in {"response.completed", "response.incomplete"}
    assert last.response.output_text == heard


def test_a_parsed_response(client: openai.OpenAI, model: str) -> None:
    response = client.responses.parse(model=model, input="Name a colour.", text_format=Colour)
    assert isinstance(response.output_parsed, Colour)
