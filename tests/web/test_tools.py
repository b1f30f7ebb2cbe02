"""Tools and thoughts over HTTP, gathered as the official client does; in virtual time."""

from __future__ import annotations

import json
from typing import Any

import attrs
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion

from trioserve.testing.engine import FAKE_MODEL, FAKE_OPTIONS, say
from trioserve.testing.server import CHAT, FakeServer, serving
from trioserve.testing.tokenizer import ByteTokenizer

F = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "f"}}
MESSAGES: list[Any] = [{"role": "user", "content": "w"}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"q":"b"}}\n</tool_call>'
TWICE = f'See.\n<tool_call>\n{{"name": "f", "arguments": {{"q":"a}}\\"<\u00e9"}}}}\n</tool_call>\n{CALL}'
THINKING = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")


def official(body: bytes, content_type: str) -> openai.OpenAI:
    """The official client of a server that answers with ``body``."""
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, content=body, headers={"content-type": content_type})
    )
    return openai.OpenAI(api_key="x", base_url="http://test", http_client=httpx2.Client(transport=transport))


async def ask(server: FakeServer, *, stream: bool, **fields: Any) -> ChatCompletion:
    """The answer as the official client has it."""
    response = await server.post(CHAT, stream=stream, **fields)
    assert response.status == 200, response.body
    client = official(response.body, response.headers["content-type"])
    with client:
        if not stream:
            return client.chat.completions.create(model=FAKE_MODEL, messages=MESSAGES)
        with client.chat.completions.stream(model=FAKE_MODEL, messages=MESSAGES) as events:
            events.until_done()
            return events.current_completion_snapshot


def calls(answer: ChatCompletion, index: int = 0) -> list[tuple[str, str]]:
    made = answer.choices[index].message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in made if call.type == "function"]


streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@streamed
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_two_calls_after_a_text(stream: bool, size: int) -> None:  # case tool-stream-deltas
    data = TWICE.encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    tokenizer = ByteTokenizer(pieces)
    script = [*range(259, 259 + len(pieces)), 256]
    async with serving(lambda draw: script[len(draw.generated)], tokenizer=tokenizer) as server:
        answer = await ask(server, stream=stream, tools=[F], parallel_tool_calls=True)
        message = answer.choices[0].message
        assert message.content == "See."
        assert calls(answer) == [("f", '{"q":"a}\\"<é"}'), ("f", '{"q":"b"}')]
        assert len({call.id for call in message.tool_calls or []}) == 2
        assert answer.choices[0].finish_reason == "tool_calls"
        await server.assert_idle()


async def test_the_pieces_of_a_call() -> None:  # case tool-stream-deltas
    async with serving(say(CALL)) as server:
        chunks = await server.stream(CHAT, tools=[F])
    pieces = [
        piece for chunk in chunks[:-1] for choice in chunk["choices"] for piece in choice["delta"].get("tool_calls", [])
    ]
    assert set(pieces[0]) == {"index", "id", "type", "function"}
    assert pieces[0]["function"] == {"name": "f", "arguments": ""}
    assert len(pieces) > 5
    assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in pieces[1:])
    assert not any(choice["delta"].get("content") for chunk in chunks[:-1] for choice in chunk["choices"])


@streamed
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("fields", "reason", "called"),
    [
        ({"tool_choice": "auto"}, "tool_calls", True),
        ({}, "tool_calls", True),
        ({"tool_choice": "none"}, "stop", False),
        ({"tools": None}, "stop", False),
        # a call that is cut
        ({"max_tokens": 50}, "length", True),
    ],
)
async def test_a_choice_that_calls_ends_with_tool_calls(
    stream: bool, n: int, fields: dict[str, Any], reason: str, called: bool
) -> None:  # case tool-finish-reason
    async with serving(say(CALL)) as server:
        answer = await ask(server, stream=stream, **{"tools": [F], "n": n, **fields})
        for choice in answer.choices:
            assert choice.finish_reason == reason
            assert bool(choice.message.tool_calls) == called
            assert (choice.message.content or "") == ("" if called else CALL)
        ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
        assert len(set(ids)) == len(ids) == (n if called else 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "zz"}}}, "tool_choice.function.name"),
    ],
)
async def test_a_call_that_cannot_be_demanded_is_refused(fields: dict[str, Any], param: str) -> None:
    # case tool-finish-reason
    async with serving(say("x")) as server:
        response = await server.post(CHAT, **{"tools": [F], **fields})
        assert response.status == 400
        assert json.loads(response.body)["error"]["param"] == param


@streamed
async def test_each_of_several_choices_has_its_own_parser(stream: bool) -> None:
    texts = [f"<think>\nhm\n</think>\n\n{CALL}", "<think>x</think>ok", f"so {CALL} then"]
    async with serving(say(texts), options=THINKING) as server:
        answer = await ask(server, stream=stream, tools=[F], n=3)
        said = [choice.message for choice in answer.choices]
        assert [message.content or "" for message in said] == ["", "ok", "so  then"]
        thoughts = [(message.model_extra or {}).get("reasoning_content") for message in said]
        assert thoughts == ["hm", "x", None]
        assert [len(message.tool_calls or []) for message in said] == [1, 0, 1]
        assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop", "tool_calls"]


async def test_thoughts_are_counted() -> None:
    async with serving(say("<think>hm</think>ok"), options=THINKING) as server:
        usage = (await server.chat(n=2))["usage"]
    # each of two choices: "hm" and the closing mark, a token for each letter
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2 * len("hm</think>")


async def test_a_prompt_that_opens_the_thought() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n"
    async with serving(say("hm</think>ok"), template=template) as server:
        message = (await server.chat())["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "ok")


async def test_copies_of_a_greedy_choice_have_calls_of_their_own() -> None:  # FAN-6
    limits = attrs.evolve(FAKE_OPTIONS.limits, greedy_n="replicate")
    async with serving(say(CALL), options=attrs.evolve(FAKE_OPTIONS, limits=limits)) as server:
        answer = await server.chat(tools=[F], n=3, temperature=0)
    made = [choice["message"]["tool_calls"][0] for choice in answer["choices"]]
    assert [call["function"] for call in made] == [{"name": "f", "arguments": '{"q":"b"}'}] * 3
    assert len({call["id"] for call in made}) == 3


async def test_the_best_of_several_candidates_call() -> None:  # FAN-32
    async with serving(say([f"<think>hm</think>{CALL}{CALL}"] * 3), options=THINKING) as server:
        answer = await server.chat(tools=[F], n=2, best_of=3)
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] == "hm"
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f", "f"]
        assert choice["finish_reason"] == "tool_calls"


async def test_stop_strings_are_looked_for_in_all_that_is_written() -> None:
    async with serving(say("<think>one two</think>ok"), options=THINKING) as server:
        choice = (await server.chat(stop=["two"]))["choices"][0]
    assert choice["message"]["reasoning_content"] == "one "
    assert choice["finish_reason"] == "stop"


async def test_a_format_can_be_set_or_turned_off() -> None:
    llama = '{"name": "f", "parameters": {"q": "b"}}'
    async with serving(say(llama), options=attrs.evolve(FAKE_OPTIONS, tool_format="llama3_json")) as server:
        message = (await server.chat(tools=[F]))["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"q": "b"}'}
    async with serving(say(llama), options=attrs.evolve(FAKE_OPTIONS, tool_format="none")) as server:
        response = await server.post(CHAT, tools=[F])
        assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "tools")
        assert (await server.chat(tools=[F], tool_choice="none"))["choices"][0]["message"]["content"] == llama
    async with serving(say("<think>x</think>"), options=attrs.evolve(FAKE_OPTIONS, reasoning_format="none")) as server:
        assert (await server.chat())["choices"][0]["message"]["content"] == "<think>x</think>"


async def test_the_model_is_told_of_tools_unless_it_must_not_call() -> None:
    async with serving(say("ok")) as server:
        prompts = []
        for fields in ({"tools": [F]}, {"tools": [F], "tool_choice": "none"}, {"tools": [F], "tool_choice": "auto"}):
            answer = await server.chat(**fields)
            prompts.append(answer["usage"]["prompt_tokens"])
        plain = (await server.chat())["usage"]["prompt_tokens"]
    assert prompts[0] == prompts[2] > prompts[1] == plain


@pytest.mark.parametrize(
    ("source", "fields", "param"),
    [
        ("{{ messages[0].content }}", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("{{ messages[0].content }}", {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs.a"),
        ("x", {"continue_final_message": True}, "messages"),
    ],
)
async def test_what_a_template_has_no_use_for_is_refused(source: str, fields: dict[str, Any], param: str) -> None:
    async with serving(say("ok"), template=source) as server:
        response = await server.post(CHAT, **fields)
        assert (response.status, json.loads(response.body)["error"]["param"]) == (400, param)


async def test_a_template_is_told_how_much_to_think() -> None:
    think = "{{ messages[0].content }}{% if enable_thinking %}!!!{% endif %}"
    effort = "{{ messages[0].content }}{{ reasoning_effort or '' }}"
    for source, fields, length in (
        (think, {}, 2),
        (think, {"reasoning_effort": "high"}, 5),
        (think, {"reasoning_effort": "none"}, 2),
        (think, {"chat_template_kwargs": {"enable_thinking": True}}, 5),
        (effort, {"reasoning_effort": "low"}, 5),
    ):
        async with serving(say("ok"), template=source) as server:
            assert (await server.chat("hi", **fields))["usage"]["prompt_tokens"] == length, (source, fields)


async def test_an_answer_can_go_on_with_the_last_message() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "I say "}]
    async with serving(say("ok")) as server:
        answer = await server.whole(CHAT, messages=messages, continue_final_message=True)
        # <|turn|>, "user: q\n", <|turn|>, "assistant: I say"
        assert answer["usage"]["prompt_tokens"] == 1 + 8 + 1 + 16
        answer = await server.whole(CHAT, messages=messages, add_generation_prompt=False)
        assert answer["usage"]["prompt_tokens"] == 1 + 8 + 1 + 18
