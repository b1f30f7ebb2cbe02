"""The bytes of a request to /v1/responses into a ResponsesCall, or a ParamError that names the field at fault.

Owns: the fields of that API, and what is refused because nothing is stored. Must not know: tokens, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.params import INT32_MAX, MAX_LOGPROBS, Limits
from trioserve.rendering import Rendering
from trioserve.structure import Structure
from trioserve.wire.body import open_body
from trioserve.wire.fields import Fields, shown
from trioserve.wire.neutral import STREAM_OPTIONS, Neutral, is_neutral, take_neutral
from trioserve.wire.options import Streaming, check_best_of, take_params
from trioserve.wire.rendering import EFFORTS
from trioserve.wire.responses.call import ResponsesCall
from trioserve.wire.responses.items import build_input
from trioserve.wire.responses.tools import take_tools
from trioserve.wire.structured import take_named_schema

NAMES: Final = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
"""What this API calls a parameter of the engine."""
NEUTRAL: Final[Neutral] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "image": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "truncation": ("disabled",),
}
"""Fields that are known but not served, and the values of them that ask for nothing."""
STATELESS: Final[Neutral] = {"store": (False,), "previous_response_id": (), "conversation": ()}
"""The same of fields that are about what a server has stored."""
TEXT_NEUTRAL: Final[Neutral] = {"verbosity": ("medium",)}
REASONING_NEUTRAL: Final[Neutral] = {
    "context": ("auto",),
    "generate_summary": ("auto",),
    "mode": ("standard",),
    # there is none if the model makes none
    "summary": ("auto",),
}
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDABLE: Final = (LOGPROBS, "reasoning.encrypted_content")
"""What ``include`` may name. Thoughts are given in the clear, and taken back so: there is nothing to encrypt."""
MAX_METADATA: Final = 16


def parse_response(body: bytes, limits: Limits) -> ResponsesCall:
    """A request to /v1/responses.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    stream = fields.flag("stream")
    _take_stream_options(fields, stream=stream)
    max_tokens = _take_count(fields, "max_output_tokens")
    logprobs = _take_logprobs(fields)
    structure, text = _take_text(fields)
    params = take_params(
        fields, max_tokens, request=fields, logprobs=logprobs, prompt_logprobs=None, response_format=structure
    )
    limits.check(params, prompts=1)
    check_best_of(params, Streaming(stream, include_usage=False, continuous_usage=False))
    _refuse_state(fields)
    take_neutral(fields, NEUTRAL)
    instructions = fields.text("instructions", None)
    tools, said_of_tools = take_tools(fields)
    effort = _take_effort(fields)
    repeated = {
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        "text": text,
        "top_logprobs": logprobs or 0,
        "reasoning": {"effort": effort, "summary": None},
        **said_of_tools,
        **_take_labels(fields),
    }
    given = fields.take("input")
    fields.finish()
    if given is None:
        raise fields.missing("input")
    return ResponsesCall(
        model=model,
        params=params,
        stream=stream,
        include_usage=False,
        continuous_usage=False,
        names=NAMES,
        messages=build_input(given, instructions),
        repeated=repeated,
        tools=tools,
        rendering=Rendering(reasoning_effort=effort),
    )


def _take_stream_options(fields: Fields, *, stream: bool) -> None:
    options = fields.nested("stream_options")
    if options is None:
        return
    if not stream:
        raise ParamError("stream_options is only allowed when stream is true.", "stream_options")
    take_neutral(options, STREAM_OPTIONS)
    options.finish()


def _take_count(fields: Fields, name: str) -> int | None:
    value = fields.integer(name, None)
    if value is not None and not 1 <= value <= INT32_MAX:
        raise ParamError(f"{name} must be between 1 and {INT32_MAX}, got {value}.", name)
    return value


def _take_logprobs(fields: Fields) -> int | None:
    """How many likeliest tokens are told of each token; None: not even its own probability is."""
    included = fields.array("include") or []
    for i, name in enumerate(included):
        if name not in INCLUDABLE:
            known = " or ".join(repr(each) for each in INCLUDABLE)
            raise ParamError(f"include.{i} must be {known}, got {shown(name)}.", f"include.{i}")
    wanted = fields.integer("top_logprobs", 0)
    if not 0 <= wanted <= MAX_LOGPROBS:
        raise ParamError(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {wanted}.", "top_logprobs")
    if LOGPROBS in included:
        return wanted
    if wanted:
        raise ParamError(f"top_logprobs is only allowed when include has {LOGPROBS!r}.", "top_logprobs")
    return None


def _take_text(fields: Fields) -> tuple[Structure | None, Mapping[str, object]]:
    """What the answer must be, and how a response says so."""
    text = fields.nested("text")
    if text is None:
        return None, {"format": {"type": "text"}}
    take_neutral(text, TEXT_NEUTRAL)
    given = text.nested("format")
    text.finish()
    if given is None:
        return None, {"format": {"type": "text"}}
    kind = given.required_text("type")
    structure: Structure | None = None
    said: dict[str, object] = {}
    if kind == "json_object":
        structure = Structure(kind="json_object", text="", param="text.format")
    elif kind == "json_schema":
        said = {name: given.peek(name) for name in ("name", "description", "schema", "strict")}
        structure = take_named_schema(given, "text.format")
    elif kind != "text":
        raise given.wrong("type", "one of text, json_object, json_schema", kind)
    given.finish()
    return structure, {"format": {"type": kind, **said}}


def _refuse_state(fields: Fields) -> None:
    for name, accepted in STATELESS.items():
        value = fields.take(name)
        if not is_neutral(value, accepted):
            raise ParamError(
                f"{name} can't be {shown(value)}: this server stores nothing. Send the whole conversation as input.",
                name,
            )


def _take_effort(fields: Fields) -> str | None:
    reasoning = fields.nested("reasoning")
    if reasoning is None:
        return None
    effort = reasoning.text("effort", None)
    if effort is not None and effort not in EFFORTS:
        raise reasoning.wrong("effort", f"one of {', '.join(EFFORTS)}", effort)
    take_neutral(reasoning, REASONING_NEUTRAL)
    reasoning.finish()
    return effort


def _take_labels(fields: Fields) -> dict[str, object]:
    """Fields that say something about a request and ask for nothing."""
    metadata = fields.take("metadata")
    if metadata is not None and not _is_metadata(metadata):
        raise fields.wrong("metadata", f"an object of up to {MAX_METADATA} strings", metadata)
    # there is one tier
    fields.text("service_tier", None)
    return {
        "metadata": metadata or {},
        "user": fields.text("user", None),
        "safety_identifier": fields.text("safety_identifier", None),
        "prompt_cache_key": fields.text("prompt_cache_key", None),
        # it is about tools that a server calls itself, of which there are none: every number is kept
        "max_tool_calls": _take_count(fields, "max_tool_calls"),
    }


def _is_metadata(value: object) -> bool:
    return (
        isinstance(value, dict) and len(value) <= MAX_METADATA and all(isinstance(text, str) for text in value.values())
    )
