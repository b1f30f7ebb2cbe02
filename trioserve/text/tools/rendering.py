"""Tools for chat templates that know nothing of them.

Owns: how a model is told of tools, calls and results in its messages, where its template can't. Must not know: how
templates work.

It is the form of Hermes, so that the answers can be read as such: the tools stand at the end of the system message,
calls in <tool_call>, results in <tool_response>.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from trioserve.text.tools.hermes import CLOSE, OPEN

Message = Mapping[str, object]

_INTRODUCTION: Final = (
    "You can call functions to help with the user's request. These are the functions you have, as JSON:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "To call a function, write its name and arguments as a JSON object inside of <tool_call></tool_call>:\n"
    f'{OPEN}\n{{{{"name": <function name>, "arguments": <arguments as a JSON object>}}}}\n{CLOSE}'
)


def write_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, object]]) -> list[Message]:
    """The messages without calls, results and tools, all of which are written into their contents.

    Args:
        messages: as a template is given them.
        tools: their definitions; may be empty.
    """
    written = [_write_message(message) for message in messages]
    if not tools:
        return written
    introduction = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if written and written[0]["role"] == "system":
        return [{**written[0], "content": f"{written[0]['content']}\n\n{introduction}"}, *written[1:]]
    return [{"role": "system", "content": introduction}, *written]


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether a call or a result is among the messages."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def _write_message(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    parts = [str(content)] if content else []
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*parts, *map(_write_call, calls)])}


def _write_call(call: Mapping[str, Mapping[str, object]]) -> str:
    function = call["function"]
    said = {"name": function["name"], "arguments": function["arguments"]}
    return f"{OPEN}\n{json.dumps(said, ensure_ascii=False)}\n{CLOSE}"
