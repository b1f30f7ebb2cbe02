"""Messages to the text of a prompt, by the model's chat template.

Owns: ChatTemplate and the variables of a template. Must not know: requests, tokens, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final, NoReturn

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from trioserve.errors import ModelError, ParamError
from trioserve.text.metering import METER, Meter, WorkError
from trioserve.text.sandbox import Sandbox

MAX_SOURCE_LENGTH: Final = 2**18
"""Characters of a template; real ones have some 30,000 at most."""
BRIEF_STEPS: Final = 10_000
"""Steps of a rendering that is brief. A step can take up to 2 microseconds; a message takes some tens of them."""
RESERVED: Final = frozenset(
    ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now")
)
"""What templates are given by us, and callers can't set."""
_MAX_ERROR_LENGTH: Final = 1000
_MAX_NAME_LENGTH: Final = 60
_PROBE_STEPS: Final = 100_000


class _OutOfStepsError(ParamError):
    """A template needs more work than it may."""


class _RaisedError(TemplateError):
    """What a template says by ``raise_exception``."""


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedError(str(message))


class ChatTemplate:
    """A model's chat template: a jinja2 template that writes a conversation as the model was trained to read it.

    It has what transformers gives it: ``messages``, ``tools``, ``add_generation_prompt``, ``bos_token``,
    ``eos_token``, ``raise_exception``, ``strftime_now``, loop controls and ``{% generation %}``; in a sandbox, where it
    can neither change what it gets nor work without bound. No template means no chat: there is no default one, since
    the wrong one makes a model worse without a sign of it.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        max_length: int = 2**22,
        max_steps: int = 2_000_000,
    ) -> None:
        """``max_length``: characters of a rendered prompt at most; ``max_steps``: see metering.Meter.

        Raises:
            ModelError: the template is wrong.
        """
        if len(source) > MAX_SOURCE_LENGTH:
            raise ModelError(f"the chat template has {len(source)} characters, more than {MAX_SOURCE_LENGTH}")
        try:
            self._template = Sandbox().counted_template(source)
            self.variables = Sandbox().variables(source)
            """The names that it reads and doesn't set."""
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template is wrong in line {error.lineno}: {_one_line(error)}") from error
        except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
            raise ModelError(f"the chat template can't be compiled: {_one_line(error)}") from error
        self.source = source
        self._constants = {"bos_token": bos_token, "eos_token": eos_token, "raise_exception": _raise_exception}
        self._max_length = max_length
        self._max_steps = max_steps
        self._writes_null = self._can_write_null()
        self.renders_tools = self._can_render_tools()
        """Whether it tells the model of tools."""

    def __repr__(self) -> str:
        return f"<ChatTemplate: {len(self.source)} characters>"

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] = MappingProxyType({}),
        now: datetime | None = None,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: each with ``role`` and ``content``, a string or None. To templates that would fail on None, or
                write "None", it is the empty string.
            add_generation_prompt: end with the start of an answer.
            tools: the functions the model may call, as the template expects them.
            arguments: values for the template's own variables, such as ``enable_thinking``.
            now: what ``strftime_now`` tells; None: the template finds no such function.

        Raises:
            ParamError: the template refuses these messages, fails on them, or needs more work or room than it may;
                ``param`` is "messages".
        """
        variables = self._variables(messages, add_generation_prompt, tools, arguments)
        if now is not None:
            variables["strftime_now"] = now.strftime
        return self._generate(variables, self._max_steps)

    def render_briefly(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] = MappingProxyType({}),
    ) -> str | None:
        """``render(...)``, or None if that takes more than a few milliseconds. Raises what that raises."""
        variables = self._variables(messages, add_generation_prompt, tools, arguments)
        if self._max_steps <= BRIEF_STEPS:
            return self._generate(variables, self._max_steps)
        try:
            return self._generate(variables, BRIEF_STEPS)
        except _OutOfStepsError:
            return None

    def _variables(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None,
        arguments: Mapping[str, object],
    ) -> dict[str, object]:
        for name in arguments:
            if name in RESERVED or name not in self.variables:
                param = f"chat_template_kwargs.{name[:_MAX_NAME_LENGTH]}"
                raise ParamError(f"{param}: the model's chat template has no variable of this name to set.", param)
        return {
            **arguments,
            **self._conversation(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }

    def _conversation(self, messages: Sequence[Mapping[str, object]]) -> dict[str, object]:
        if not self._writes_null:
            messages = [
                {**message, "content": ""} if message.get("content", "") is None else message for message in messages
            ]
        return {"messages": messages}

    def _generate(self, variables: Mapping[str, object], steps: int) -> str:
        parts = []
        length = 0
        try:
            for part in self._template.generate({**self._constants, **variables, METER: Meter(steps)}):
                parts.append(part)
                length += len(part)
                if length > self._max_length:
                    raise _RaisedError(f"The prompt would have more than {self._max_length} characters.")
        except _RaisedError as error:
            raise ParamError(str(error)[:_MAX_ERROR_LENGTH], "messages") from error
        except Exception as error:  # a template is a program of others: it can raise anything
            failure = _OutOfStepsError if isinstance(error, WorkError) else ParamError
            text = f"The model's chat template can't write these messages: {_one_line(error)}."
            raise failure(text[:_MAX_ERROR_LENGTH], "messages") from error
        return "".join(parts)

    def _can_render_tools(self) -> bool:
        name = "find_the_needle"
        tool = {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
        question = {"role": "user", "content": "q"}
        variables = {"messages": [question], "add_generation_prompt": True, "tools": [tool]}
        try:
            return name in self._generate(variables, min(self._max_steps, _PROBE_STEPS))
        except ParamError:
            return False

    def _can_write_null(self) -> bool:
        """Whether the template knows that a message that calls tools may have None for its content."""
        # some templates want the arguments of a call as an object, some as its JSON
        arguments: tuple[object, ...] = ({}, "{}")
        return any(self._count_none(None, form) == self._count_none("", form) for form in arguments)

    def _count_none(self, content: str | None, arguments: object) -> int | float:
        """How often the text of a call of a tool has the word None; NaN, equal to nothing, if the template fails."""
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        question = {"role": "user", "content": "q"}
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        variables = {"messages": [question, answer], "add_generation_prompt": False, "tools": None}
        try:
            return self._generate(variables, min(self._max_steps, _PROBE_STEPS)).count("None")
        except ParamError:
            return math.nan


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
