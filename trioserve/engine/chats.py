"""Conversations: how a model reads them, and how its answers are read.

Owns: the formats of the model, what a template is given, the grammar of an answer that must call tools.
Must not know: how anything is generated, HTTP.
"""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import Final

import attrs
import trio

from trioserve.abc import Tokenizer
from trioserve.engine.options import NO_FORMAT, EngineOptions
from trioserve.errors import ParamError
from trioserve.params import SamplingParams
from trioserve.rendering import Rendering
from trioserve.structure import Structure
from trioserve.text.parser import OutputFormat, special_id
from trioserve.text.reasoning import REASONING_FORMATS, ReasoningFormat, reasoning_format_of
from trioserve.text.schema import prepare_schema
from trioserve.text.template import ChatTemplate
from trioserve.text.tools.format import ToolFormat
from trioserve.text.tools.formats import TOOL_FORMATS, tool_format_of
from trioserve.text.tools.grammar import CallRule, Demand, Spelling, escape, whole_grammar
from trioserve.text.tools.rendering import has_tools, write_tools
from trioserve.tools import Tool, ToolUse

Message = Mapping[str, object]

_PROMPT_END: Final = 32
"""Tokens at the end of a prompt in which a mark that opens a thought may stand."""
_ANY_OBJECT: Final = '{"type": "object"}'


@attrs.frozen(kw_only=True)
class Chat:
    """What ``Engine.generate`` needs in order to answer a conversation."""

    prompt: array[int]
    """Token ids."""
    params: SamplingParams
    output: OutputFormat | None
    """None: all of an answer is text."""


class Chats:
    """The conversations of one model."""

    def __init__(self, model: str, template: ChatTemplate | None, tokenizer: Tokenizer, options: EngineOptions) -> None:
        self._model = model
        self._template = template
        self._tokenizer = tokenizer
        self._inline = options.inline_characters
        self.tools = _tool_format(template, options.tool_format)
        """How the model calls tools; None: not, as far as is known."""
        self.reasoning = _reasoning_format(template, options.reasoning_format)
        """How it marks its thoughts; None: it has none."""

    def __repr__(self) -> str:
        tools, reasoning = (each and each.name for each in (self.tools, self.reasoning))
        return f"<Chats of {self._model}: tools {tools}, reasoning {reasoning}>"

    async def render(self, messages: Sequence[Message], tools: ToolUse | None, rendering: Rendering) -> str:
        """The prompt of a conversation, as text.

        Raises:
            ParamError: the model has no template, or it refuses what it is given.
        """
        template = self._template
        if template is None:
            raise ParamError(
                f"The model {self._model!r} has no chat template; it can be used with /v1/completions.", "messages"
            )
        # a model that is told of tools it must not call may call them all the same
        told = tools if tools is not None and tools.mode != "none" else None
        definitions = [tool.definition() for tool in told.tools] if told is not None else None
        arguments = {**_effort(template, rendering), **rendering.arguments}
        goes_on = rendering.continue_final_message

        def write(render: Callable[..., str | None]) -> str | None:
            said, tools = messages, definitions
            if not template.renders_tools and (tools or has_tools(said)):
                said, tools = write_tools(said, tools or []), None
            add_prompt = rendering.add_generation_prompt and not goes_on
            text = render(said, add_generation_prompt=add_prompt, tools=tools, arguments=arguments)
            return _cut_after(text, said) if goes_on and text is not None else text

        # Short texts don't make a short work: they may be many, and templates are programs of others.
        text = write(template.render_briefly) if is_small([messages, definitions], self._inline) else None
        if text is None:
            text = await trio.to_thread.run_sync(write, template.render)
            assert text is not None
        else:
            await trio.lowlevel.checkpoint()
        return text

    async def prepare(self, prompt: array[int], params: SamplingParams, tools: ToolUse | None) -> Chat:
        """What ``generate`` needs for this prompt.

        Raises:
            ParamError: the model can't call tools, or what is demanded can't be enforced.
        """
        may_call = tools is not None and bool(tools.callable)
        if may_call and self.tools is None:
            raise ParamError(
                f"The model {self._model!r} can't call tools, or in a format that is not known here.", "tools"
            )
        output = self._output(prompt, self.tools if may_call else None)
        if output is None:
            return Chat(prompt=prompt, params=params, output=None)
        if params.structure is None and (tools is None or not may_call or tools.enforced_by is None):
            await trio.lowlevel.checkpoint()
            return Chat(prompt=prompt, params=params, output=output)
        make = partial(self._structure, params.structure, tools if may_call else None, output)
        # schemas are gone through and written anew
        if tools is None or is_small([tool.parameters for tool in tools.callable], self._inline):
            structure = make()
            await trio.lowlevel.checkpoint()
        else:
            structure = await trio.to_thread.run_sync(make)
        if tools is not None and may_call and tools.mode == "required":
            # A stop string ends a text, and of that there will be none. Agents give it with every request.
            params = attrs.evolve(params, stop=(), include_stop=False)
        return Chat(prompt=prompt, params=attrs.evolve(params, structure=structure), output=output)

    def _output(self, prompt: array[int], tools: ToolFormat | None) -> OutputFormat | None:
        if tools is None and self.reasoning is None:
            return None
        end = self._tokenizer.decode(prompt[-_PROMPT_END:], skip_special=False)
        return OutputFormat(
            reasoning=self.reasoning,
            tools=tools,
            starts_inside=self.reasoning is not None and self.reasoning.opened_by(end),
            new_id=lambda: uuid.uuid4().hex,
        )

    def _structure(self, answer: Structure | None, tools: ToolUse | None, output: OutputFormat) -> Structure | None:
        """What the choices are held to: calls, or an answer, or either of them; all after a thought.

        Args:
            answer: what an answer without calls must be; None: any text.
            tools: what may be called; None: nothing.
            output: how the choices are read.
        """
        plain = None if answer is None else _expression(answer)
        if tools is None:
            assert answer is not None
            if plain is None or output.reasoning is None:
                # what can't be taken apart is for all of it, without thoughts
                return answer
            return self._whole([f"answer: {plain}"], output, answer.param)
        assert output.tools is not None
        param = tools.enforced_by or "tools"
        if answer is not None and plain is None and tools.mode != "required":
            raise ParamError(f"{param} can't be enforced together with {answer.param} of this kind.", param)
        demand = Demand(
            tools=[_call_rule(tool, all_follow=tools.mode == "required") for tool in tools.callable],
            required=tools.mode == "required",
            parallel=tools.parallel,
            spelling=self._spelling,
            answer=plain,
        )
        return self._whole(output.tools.rules(demand), output, param)

    def _whole(self, rules: Sequence[str], output: OutputFormat, param: str) -> Structure:
        text = whole_grammar(rules, output.reasoning, self._spelling, starts_inside=output.starts_inside)
        return Structure(kind="lark", text=text, param=param)

    @property
    def _spelling(self) -> Spelling:
        return Spelling(ids=lambda mark: special_id(mark, self._tokenizer))


def is_small(value: object, most: int) -> bool:
    """Whether what JSON may hold has at most ``most`` characters and values. Looks at no more than that."""
    rest = [value]
    while rest:
        item = rest.pop()
        most -= len(item) if isinstance(item, Sized) else 1
        if most < 0:
            return False
        if isinstance(item, Mapping):
            rest += item.keys()
            rest += item.values()
        elif isinstance(item, Sequence) and not isinstance(item, str):
            rest += item
    return True


def _expression(structure: Structure) -> str | None:
    """An expression of a grammar for an answer; None if there is none for this kind."""
    if structure.kind == "json_object":
        return f"%json {_ANY_OBJECT}"
    if structure.kind == "json_schema":
        return f"%json {structure.text}"
    if structure.kind == "choice":
        return f"/{'|'.join(map(escape, json.loads(structure.text)))}/"
    return None


def _call_rule(tool: Tool, *, all_follow: bool) -> CallRule:
    """A tool for a grammar.

    Args:
        tool: it may be called.
        all_follow: the arguments follow the schema even if it is not strict.

    Raises:
        ParamError: the schema can't be enforced.
    """
    if tool.parameters is None:
        return CallRule(tool.name, '{"type": "object", "properties": {}, "additionalProperties": false}', tool.param)
    if not (tool.strict or all_follow):
        return CallRule(tool.name, _ANY_OBJECT, tool.param)
    if tool.parameters.get("type", "object") != "object":
        raise ParamError(f"{tool.param} must be of the type object, since the arguments of a call are one.", tool.param)
    schema = json.dumps({**tool.parameters, "type": "object"})
    # here, where the name of the field that is at fault is known
    prepare_schema(schema, tool.param)
    return CallRule(tool.name, schema, tool.param)


def _tool_format(template: ChatTemplate | None, name: str | None) -> ToolFormat | None:
    if name is not None:
        return None if name == NO_FORMAT else TOOL_FORMATS[name]
    return None if template is None else tool_format_of(template.source, renders_tools=template.renders_tools)


def _reasoning_format(template: ChatTemplate | None, name: str | None) -> ReasoningFormat | None:
    if name is not None:
        return None if name == NO_FORMAT else REASONING_FORMATS[name]
    return None if template is None else reasoning_format_of(template.source)


def _effort(template: ChatTemplate, rendering: Rendering) -> dict[str, object]:
    """What the template is told of how much to think."""
    effort = rendering.reasoning_effort
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    if "enable_thinking" in template.variables:
        return {"enable_thinking": effort != "none"}
    if not rendering.needs_setting:
        return {}
    raise ParamError(
        "reasoning_effort: the model's chat template has no setting for how much to think.", "reasoning_effort"
    )


def _cut_after(text: str, messages: Sequence[Message]) -> str:
    """The prompt up to the end of its last message's content."""
    content = str(messages[-1].get("content") or "").strip()
    at = text.rfind(content)
    if not content or at < 0:
        raise ParamError("continue_final_message: the template does not write the last message as it is.", "messages")
    return text[: at + len(content)]
