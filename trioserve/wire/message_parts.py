"""What a choice of a chat says besides its text: thoughts and tool calls, whole and in pieces.

Owns: ``reasoning_content`` and ``tool_calls`` in messages and deltas. Must not know: chunks, usage.

Both are as the ``openai`` client gathers them. ``reasoning_content``, which is not in OpenAI's format, is what other
servers call it.
"""

from __future__ import annotations

import attrs

from trioserve.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta


def delta_fields(event: Delta) -> dict[str, object] | None:
    """The ``delta`` of a chunk; None if there is nothing in it."""
    if isinstance(event, ToolCallDelta):
        return {"tool_calls": [_call_piece(event)]}
    if not event.text:
        return None
    return {"content" if isinstance(event, TextDelta) else "reasoning_content": event.text}


def _call_piece(event: ToolCallDelta) -> dict[str, object]:
    if event.id is None:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.call, "id": event.id, "type": "function", "function": function}


@attrs.define(eq=False)
class MessageParts:
    """Gathers the events of one choice; ``fields`` makes its message of them."""

    text: list[str] = attrs.field(factory=list)
    _thoughts: list[str] = attrs.field(factory=list)
    _calls: list[tuple[str, str, list[str]]] = attrs.field(factory=list)
    """Id, name and arguments of each call."""

    def feed(self, event: Delta) -> None:
        """One more event."""
        if isinstance(event, TextDelta):
            self.text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._thoughts.append(event.text)
        elif event.id is not None and event.name is not None:
            self._calls.append((event.id, event.name, [event.arguments]))
        else:
            self._calls[-1][2].append(event.arguments)

    def fields(self) -> dict[str, object]:
        """The message. Its content is null if there are calls and no text."""
        text = "".join(self.text)
        message: dict[str, object] = {
            "role": "assistant",
            "content": None if self._calls and not text else text,
            "refusal": None,
        }
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for call_id, name, arguments in self._calls
            ]
        return message
