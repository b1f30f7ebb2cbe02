"""The exact prompts of a request, as requests to /inference/v1/generate that give the same answer.

Owns: how params are written. Must not know: how prompts come about.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec

from trioserve.params import SamplingParams
from trioserve.structure import Structure
from trioserve.wire.calls import Call
from trioserve.wire.line import json_line
from trioserve.wire.options import ABOUT_REQUEST

_DEFAULTS = SamplingParams()


def rendered_fields(call: Call, token_ids: Sequence[int], params: SamplingParams) -> dict[str, object]:
    """A request for one prompt of ``call``, with its ids; ``params``: those of the call, or what became of them."""
    stream = {"stream_options": _stream_options(call)} if call.include_usage else {}
    outside = {name: value for name in ABOUT_REQUEST if (value := getattr(params, name)) != getattr(_DEFAULTS, name)}
    return {
        "model": call.model,
        "token_ids": token_ids,
        "sampling_params": sampling_fields(params),
        "stream": call.stream,
        **stream,
        **outside,
    }


def rendered_body(requests: dict[str, object] | list[dict[str, object]]) -> bytes:
    """The answer of a render endpoint: one request for a chat, a list of them for a completion."""
    return json_line(requests)


def sampling_fields(params: SamplingParams) -> dict[str, object]:
    """The fields of ``sampling_params`` that say ``params``; those that have their defaults are left out."""
    written: dict[str, object] = {}
    for attribute in attrs.fields(SamplingParams):
        name, value = attribute.name, getattr(params, attribute.name)
        if name not in ABOUT_REQUEST and value != getattr(_DEFAULTS, name):
            written[name] = value
    if params.logit_bias:
        written["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.include_stop:
        written["include_stop_str_in_output"] = written.pop("include_stop")
    if params.choice_params:
        written["choice_params"] = [_given(own) for own in params.choice_params]
    if params.stop_when is not None:
        written["stop_when"] = _given(params.stop_when)
    if params.prediction is not None:
        written["prediction"] = {"type": "content", "content": params.prediction}
    if params.structure is not None:
        del written["structure"]
        written["structured_outputs"] = _structure_fields(params.structure)
    return written


def _structure_fields(structure: Structure) -> dict[str, object]:
    """The field of ``structured_outputs`` that says the same."""
    if structure.kind == "json_object":
        return {"json": {"type": "object"}}
    if structure.kind == "lark":
        return {"grammar": structure.text}
    if structure.kind == "regex":
        return {"regex": structure.text}
    name = "json" if structure.kind == "json_schema" else "choice"
    return {name: msgspec.json.decode(structure.text)}


def _given(value: attrs.AttrsInstance) -> dict[str, object]:
    return {name: inner for name, inner in attrs.asdict(value).items() if inner is not None}


def _stream_options(call: Call) -> dict[str, object]:
    return {"include_usage": True, **({"continuous_usage_stats": True} if call.continuous_usage else {})}
