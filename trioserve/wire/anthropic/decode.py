"""The bytes of a request to /v1/messages into a call, or a ParamError that names the field at fault.

Owns: the fields of that API. Must not know: tokens, HTTP.
"""

from __future__ import annotations

from typing import Final

import attrs

from trioserve.errors import ParamError
from trioserve.params import INT32_MAX, Limits, SamplingParams
from trioserve.rendering import Rendering
from trioserve.structure import Structure
from trioserve.tools import ToolUse
from trioserve.wire.anthropic.blocks import build_conversation, take_cache_control
from trioserve.wire.anthropic.call import CountCall, MessagesCall
from trioserve.wire.anthropic.tools import take_tools
from trioserve.wire.body import open_body
from trioserve.wire.fields import Fields
from trioserve.wire.neutral import Labels, Neutral, take_labels, take_neutral
from trioserve.wire.options import Streaming, check_best_of, take_params
from trioserve.wire.structured import as_text

EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
"""How much to think, in that API's words and in those of templates."""
MAX_TEMPERATURE: Final = 1.0
"""Of that API, half of what the others take."""
NAMES: Final = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""What that API calls a parameter of the engine."""
NEUTRAL: Final[Neutral] = {
    "container": (),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
}
"""Fields that are known but not served, and the values of them that ask for nothing."""
COUNT_NEUTRAL: Final[Neutral] = {"speed": ("standard",)}
COUNT_LABELS: Final[Labels] = {"user_profile_id": (str, "a string"), "workspace_id": (str, "a string")}
THINKING_NEUTRAL: Final[Neutral] = {"display": ("summarized",)}


def parse_message(body: bytes, limits: Limits) -> MessagesCall:
    """A request to /v1/messages.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    stream = fields.flag("stream")
    max_tokens = _take_max_tokens(fields)
    shared = _take_shared(fields)
    params = _take_params(fields, max_tokens, shared.structure)
    limits.check(params, prompts=1)
    check_best_of(params, Streaming(stream, include_usage=False, continuous_usage=False))
    take_neutral(fields, NEUTRAL)
    _take_metadata(fields)
    messages = build_conversation(fields)
    fields.finish()
    return MessagesCall(
        model=model,
        params=params,
        stream=stream,
        include_usage=False,
        continuous_usage=False,
        names=NAMES,
        messages=messages,
        tools=shared.tools,
        rendering=shared.rendering,
    )


def parse_count(body: bytes, limits: Limits) -> CountCall:
    """A request to /v1/messages/count_tokens.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    shared = _take_shared(fields)
    messages = build_conversation(fields)
    fields.finish()
    return CountCall(model=model, messages=messages, tools=shared.tools, rendering=shared.rendering, names=NAMES)


def _take_max_tokens(fields: Fields) -> int:
    value = fields.integer("max_tokens", None)
    if value is None:
        raise fields.missing("max_tokens")
    if not 1 <= value <= INT32_MAX:
        raise ParamError(f"max_tokens must be between 1 and {INT32_MAX}, got {value}.", "max_tokens")
    return value


def _take_params(fields: Fields, max_tokens: int, structure: Structure | None) -> SamplingParams:
    try:
        params = take_params(
            fields,
            max_tokens,
            request=fields,
            logprobs=None,
            prompt_logprobs=None,
            response_format=structure,
            stop_name="stop_sequences",
        )
    except ParamError as error:
        error.rename(NAMES)
        raise
    if params.temperature is not None and params.temperature > MAX_TEMPERATURE:
        raise ParamError(f"temperature must be between 0 and 1, got {params.temperature}.", "temperature")
    return params


@attrs.frozen(kw_only=True)
class _Shared:
    """What both paths have beside the messages."""

    tools: ToolUse | None
    rendering: Rendering
    structure: Structure | None


def _take_shared(fields: Fields) -> _Shared:
    take_neutral(fields, COUNT_NEUTRAL)
    take_labels(fields, COUNT_LABELS)
    take_cache_control(fields)
    tools = take_tools(fields)
    effort, structure = _take_output_config(fields)
    thinks = _take_thinking(fields)
    if thinks is not None:
        effort = (effort or "medium") if thinks else "none"
    # a model without thoughts answers whoever would have had some
    rendering = Rendering(reasoning_effort=effort, needs_setting=False)
    return _Shared(tools=tools, rendering=rendering, structure=structure)


def _take_thinking(fields: Fields) -> bool | None:
    """Whether to think; None leaves it to the model."""
    thinking = fields.nested("thinking")
    if thinking is None:
        return None
    kind = thinking.required_text("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise thinking.wrong("type", "one of enabled, disabled, adaptive", kind)
    if kind == "enabled":
        budget = thinking.integer("budget_tokens", None)
        if budget is None:
            raise thinking.missing("budget_tokens")
        if not 1 <= budget <= INT32_MAX:
            raise thinking.wrong("budget_tokens", f"between 1 and {INT32_MAX}", budget)
    if kind != "disabled":
        take_neutral(thinking, THINKING_NEUTRAL)
    thinking.finish()
    return {"enabled": True, "disabled": False}.get(kind)


def _take_output_config(fields: Fields) -> tuple[str | None, Structure | None]:
    """How much to think, and what the answer must be."""
    config = fields.nested("output_config")
    if config is None:
        return None, None
    effort = config.text("effort", None)
    if effort is not None and effort not in EFFORTS:
        raise config.wrong("effort", f"one of {', '.join(EFFORTS)}", effort)
    given = config.nested("format")
    config.finish()
    structure = None if given is None else _build_format(given)
    return None if effort is None else EFFORTS[effort], structure


def _build_format(given: Fields) -> Structure:
    kind = given.required_text("type")
    if kind != "json_schema":
        raise given.wrong("type", "'json_schema'", kind)
    schema = given.take("schema")
    if schema is None:
        raise given.missing("schema")
    if not isinstance(schema, dict):
        raise given.wrong("schema", "an object", schema)
    given.finish()
    return Structure(kind="json_schema", text=as_text(schema), param="output_config.format")


def _take_metadata(fields: Fields) -> None:
    metadata = fields.nested("metadata")
    if metadata is not None:
        metadata.text("user_id", None)
        metadata.finish()
