"""tools, tool_choice and parallel_tool_calls of a request, and calls in answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.errors import ParamError
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, ReasoningDelta, TextDelta, ToolCallDelta
from trioserve.params import Limits
from trioserve.rendering import Rendering
from trioserve.tools import MAX_TOOLS, ToolUse
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.calls import ChatCall
from trioserve.wire.chunks import ChunkBuilder
from trioserve.wire.decode import parse_chat
from trioserve.wire.tally import Head

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": SCHEMA}}
G = {"type": "function", "function": {"name": "g", "strict": True}}
NAMED = {"type": "function", "function": {"name": "f"}}


def parse(**fields: Any) -> ChatCall:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), Limits())


def use(**fields: Any) -> ToolUse:
    tools = parse(tools=[F, G], **fields).tools
    assert tools is not None
    return tools


def refused(**fields: Any) -> str | None:
    with pytest.raises(ParamError) as caught:
        parse(**fields)
    return caught.value.param


def test_tools_are_read() -> None:
    tools = use().tools
    assert tools[0].definition() == F
    assert tools[1].definition() == {"type": "function", "function": {"name": "g"}}
    assert [tool.strict for tool in tools] == [False, True]
    assert [tool.param for tool in tools] == ["tools.0.function.parameters", "tools.1.function.parameters"]


@pytest.mark.parametrize(
    ("choice", "mode", "callable_names"),
    [
        (None, "auto", ["f", "g"]),
        ("auto", "auto", ["f", "g"]),
        ("none", "none", []),
        ("required", "required", ["f", "g"]),
        (NAMED, "required", ["f"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, "auto", ["f"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, "required", ["f"]),
    ],
)
def test_the_choice_says_which_may_and_must_be_called(choice: object, mode: str, callable_names: list[str]) -> None:
    # case tool-finish-reason
    tools = use(tool_choice=choice)
    assert tools.mode == mode
    assert [tool.name for tool in tools.callable] == callable_names
    assert len(tools.tools) == 2


def test_what_has_to_be_enforced_has_the_name_of_the_field_that_asks_for_it() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    assert use(tool_choice="required").enforced_by == "tool_choice"
    assert use(tool_choice=NAMED).enforced_by == "tool_choice"
    assert use(tool_choice=allowed).enforced_by == "tool_choice"
    assert use(parallel_tool_calls=False).enforced_by == "parallel_tool_calls"
    assert use().enforced_by == "tools"  # g is strict
    assert use(tool_choice="none", parallel_tool_calls=False).enforced_by is None
    plain = parse(tools=[F], parallel_tool_calls=True).tools
    assert plain is not None
    assert plain.enforced_by is None


def test_a_named_tool_is_called_once() -> None:
    assert use().parallel
    assert not use(tool_choice=NAMED).parallel
    assert not use(parallel_tool_calls=False).parallel


def test_without_tools_there_is_nothing_to_choose() -> None:  # case tool-finish-reason
    for value in ("required", NAMED):
        assert refused(tool_choice=value) == "tool_choice"
        assert refused(tool_choice=value, tools=[]) == "tool_choice"
    for value in ("auto", "none", None):
        assert parse(tool_choice=value, parallel_tool_calls=False).tools is None


@pytest.mark.parametrize(
    ("path", "tools"),
    [
        ("tools", [F] * (MAX_TOOLS + 1)),
        ("tools", "f"),
        ("tools.0", [1]),
        ("tools.0.type", [{"function": {"name": "f"}}]),
        ("tools.0.type", [{"type": "custom", "custom": {"name": "f"}}]),
        ("tools.0.function", [{"type": "function"}]),
        ("tools.0.function.name", [{"type": "function", "function": {}}]),
        ("tools.0.function.name", [{"type": "function", "function": {"name": "a b"}}]),
        ("tools.0.function.name", [{"type": "function", "function": {"name": "x" * 129}}]),
        ("tools.0.function.parameters", [{"type": "function", "function": {"name": "f", "parameters": []}}]),
        ("tools.0.function.strict", [{"type": "function", "function": {"name": "f", "strict": 1}}]),
        ("tools.0.function.x", [{"type": "function", "function": {"name": "f", "x": 1}}]),
        ("tools.0.x", [{**F, "x": 1}]),
        ("tools.1.function.name", [F, F]),
    ],
)
def test_a_wrong_tool_is_refused_by_name(path: str, tools: object) -> None:
    assert refused(tools=tools) == path


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        ("tool_choice", "any"),
        ("tool_choice", 1),
        ("tool_choice.type", {"type": "custom"}),
        ("tool_choice.function", {"type": "function"}),
        ("tool_choice.function.name", {"type": "function", "function": {"name": "zz"}}),
        ("tool_choice.x", {**NAMED, "x": 1}),
        ("tool_choice.allowed_tools", {"type": "allowed_tools"}),
        ("tool_choice.allowed_tools.mode", {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [F]}}),
        ("tool_choice.allowed_tools.tools", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
        (
            "tool_choice.allowed_tools.tools.0.function.name",
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "zz"}}]},
            },
        ),
    ],
)
def test_a_wrong_choice_is_refused_by_name(path: str, choice: object) -> None:  # case tool-finish-reason
    assert refused(tools=[F], tool_choice=choice) == path


def test_how_the_prompt_is_written_is_read() -> None:
    assert parse().rendering == Rendering()
    call = parse(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low", continue_final_message=True)
    assert call.rendering == Rendering(
        arguments={"enable_thinking": False}, reasoning_effort="low", continue_final_message=True
    )
    assert not parse(add_generation_prompt=False).rendering.add_generation_prompt
    assert refused(chat_template_kwargs=[]) == "chat_template_kwargs"
    assert refused(reasoning_effort="very") == "reasoning_effort"
    assert refused(continue_final_message=True, add_generation_prompt=True) == "continue_final_message"


def test_what_the_assistant_thought_is_given_to_the_template() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert parse(messages=[said]).messages == (said,)


# what two choices say: text and two calls, and a thought and text
EVENTS: list[Event] = [
    TextDelta(0, "See.", (1,)),
    ToolCallDelta(0, 0, "call_a", "f", "", (2,)),
    ReasoningDelta(1, "h", (3,)),
    ToolCallDelta(0, 0, None, None, '{"q":', (4,)),
    ReasoningDelta(1, "m", (5,)),
    ToolCallDelta(0, 0, None, None, " 1}", (6,)),
    ToolCallDelta(0, 1, "call_b", "g", "", (7,)),
    ToolCallDelta(0, 1, None, None, "{}", ()),
    TextDelta(1, "", (8,)),
    TextDelta(1, "ok", (9,)),
    ChoiceFinished(0, "tool_calls", ChoiceUsage(completion_tokens=6), 5),
    ChoiceFinished(1, "stop", ChoiceUsage(completion_tokens=4, reasoning_tokens=2), 6),
]
HEAD = Head(kind="chat", id="x", created=1, model="m", n=2, prompt_tokens=(3,))


def test_an_answer_has_thoughts_and_calls() -> None:  # case tool-stream-deltas
    builder = AnswerBuilder(HEAD)
    for event in EVENTS:
        builder.feed(event)
    answer = json.loads(builder.answer())
    calling, thinking = (choice["message"] for choice in answer["choices"])
    assert calling == {
        "role": "assistant",
        "content": "See.",
        "refusal": None,
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"q": 1}'}},
            {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert thinking == {"role": "assistant", "content": "ok", "refusal": None, "reasoning_content": "hm"}
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def test_a_stream_has_thoughts_and_calls_in_pieces() -> None:  # case tool-stream-deltas
    builder = ChunkBuilder(HEAD, include_usage=False, continuous_usage=False)
    builder.start()
    frames = [builder.feed(event) for event in EVENTS[:-2]]
    deltas = [json.loads(frame.removeprefix(b"data: "))["choices"][0]["delta"] for frame in frames if frame]
    assert deltas == [
        {"content": "See."},
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"reasoning_content": "h"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]},
        {"reasoning_content": "m"},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {"content": "ok"},
    ]


def test_content_is_null_where_there_are_calls_alone() -> None:
    builder = AnswerBuilder(Head(kind="chat", id="x", created=1, model="m", n=1, prompt_tokens=(3,)))
    for event in (*EVENTS[1:2], EVENTS[10]):
        builder.feed(event)
    assert json.loads(builder.answer())["choices"][0]["message"]["content"] is None
