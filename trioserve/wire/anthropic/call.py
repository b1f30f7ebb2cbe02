"""What requests to /v1/messages and /v1/messages/count_tokens ask for.

Owns: MessagesCall, CountCall. Must not know: JSON, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trioserve.rendering import Rendering
from trioserve.tools import ToolUse
from trioserve.wire.calls import ChatCall, Message


@attrs.frozen(kw_only=True)
class MessagesCall(ChatCall):
    """A request to /v1/messages: a chat, once its blocks are messages."""


@attrs.frozen(kw_only=True)
class CountCall:
    """A request to /v1/messages/count_tokens."""

    model: str
    messages: tuple[Message, ...]
    """At least one."""
    tools: ToolUse | None
    rendering: Rendering
    names: Mapping[str, str]
    """What the request calls a parameter of the engine, where it has another name for it."""
