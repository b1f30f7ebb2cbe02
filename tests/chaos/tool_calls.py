"""Whether choices that have to be tool calls are.

Owns: check_calls(). Must not know: grammars, how calls are written.
What the calls are is not replayed: they are judged by the schema of their arguments.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from calls import Call
from details import require
from wishes import PARAMETERS, TOOLS


def check_calls(call: Call, text: str, parts: list[dict[str, Any]], ending: dict[str, Any]) -> None:
    """The calls of a choice, from the parts of a stream or whole, and how it ended."""
    reason, tokens = ending["finish_reason"], ending["usage"]["completion_tokens"]
    require(0 <= tokens <= call.body["max_tokens"], f"{tokens} tokens: {ending}")
    require(reason in ("tool_calls", "length") or (reason == "cancelled" and call.may_be_cancelled), f"{ending}")
    require(reason != "length" or tokens == call.body["max_tokens"], f"{ending}")
    calls: list[tuple[str, str]] = []
    for part in parts:
        function = part["function"]
        if part.get("id") is not None:
            calls.append((function["name"], ""))
        name, arguments = calls[-1]
        calls[-1] = (name, arguments + function.get("arguments", ""))
    require({name for name, _ in calls} <= set(TOOLS), f"calls {calls}")
    if call.body.get("parallel_tool_calls") is False:
        require(len(calls) <= 1, f"calls {calls}")
    if reason == "tool_calls":
        require(calls and not text, f"calls {calls}, and the text {text!r}")
        for _, arguments in calls:
            try:
                jsonschema.validate(json.loads(arguments), PARAMETERS)
            except ValueError as error:
                require(False, f"arguments {arguments!r}: {error}")
