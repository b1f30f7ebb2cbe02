"""What a request asks for, once its bytes have been read: complete, checked, every default filled in.

Owns: the Call classes. Must not know: JSON, HTTP, or whether the model is served.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trioserve.params import SamplingParams
from trioserve.rendering import AS_USUAL, Rendering
from trioserve.tools import ToolUse

Message = Mapping[str, object]
"""A message as a chat template is given it; see wire.messages for its keys."""

Prompt = str | tuple[int, ...]
"""A text, or token ids of which there is at least one."""


@attrs.frozen(kw_only=True)
class Call:
    """What both endpoints share."""

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    """The last chunk tells the usage of the request. Only with ``stream``."""
    continuous_usage: bool
    """Every chunk tells the usage so far of its choice. Only with ``include_usage``."""
    return_token_ids: bool = False
    """The answer tells the ids of the prompts and of the choices."""
    prompt_logprobs: int | None = None
    """What the answer tells of the prompts; an echo may need more."""
    names: Mapping[str, str] = attrs.field(factory=dict)
    """What the request calls a parameter of the engine, where it has another name for it."""


@attrs.frozen(kw_only=True)
class ChatCall(Call):
    """A request to /v1/chat/completions."""

    messages: tuple[Message, ...]
    """At least one."""
    tools: ToolUse | None = None
    rendering: Rendering = AS_USUAL


@attrs.frozen(kw_only=True)
class CompletionCall(Call):
    """A request to /v1/completions."""

    prompts: tuple[Prompt, ...]
    """At least one."""
    echo: bool
    """The text of a choice starts with its prompt."""
