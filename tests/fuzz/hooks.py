"""What schemathesis can't know of this API: why a request that fits its schema may be refused all the same."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Final

import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response
from schemathesis.core.failures import Failure

REASONS: Final = [
    re.compile(pattern)
    for pattern in (
        # an integer of JSON Schema may be written with a fraction
        r"\bintegers?\b.* got -?[\d.e+-]+\.[\d.e+-]*( at position \d+)?\.$",
        # the model and its context
        r"^This model's maximum context length is",
        r"^A prompt must have at least one token\.$",
        r"is out of the vocabulary",
        r"^The prediction is longer than any answer",
        r"^reasoning_effort: the model's chat template has no setting",
        r"^chat_template_kwargs",
        r"^The model's chat template can't write these messages",
        r"^continue_final_message: the template does not write the last message as it is\.$",
        # expressions and schemas inside of a request
        r"^stop_when\.pattern is not valid",
        r"can't be enforced",
        r": the schema is not valid JSON: ",
        r"^The names of \S+ must be token ids",
        r"role must not be assistant: this server begins an answer",
        # how fields go together
        r" goes with \w+ only\.$",
        r" can't be given together( with |; )",
        r" can't both be true\.$",
        r"^A request may have at most \d+ choices",
        r"^messages\.\d+\.content is required\.$",
        r" is only allowed when ",
        r"^best_of must be",
        r"^min_tokens (must be at most (max_tokens|the tokens of a choice)|can't be given together)",
        r"^logit_bias has two values for one token\.$",
        r"^structured_outputs takes exactly one of json, regex, choice and grammar\.$",
        r"^There are two tools with the name|^There is no tool with the name",
        r"^stop_when takes exactly one of finished and agree\.$",
        r"^stop_when\.pattern goes with stop_when\.agree\.$",
        r"^stop_when asks for \d+ choices, but the request has",
        r"^choice_params must have one entry for each",
        r"^n must be 1 when",
    )
]


SHORTEST_DEADLINE: Final = 60.0
"""Seconds. A shorter one is likely to end its request with 504, which is as it should be, but looks like a fault."""


@schemathesis.hook
def before_call(context: HookContext, case: Case, **_: object) -> None:
    """Give every request that has a deadline enough time."""
    for name, value in list((case.headers or {}).items()):
        if name.lower() == "x-request-timeout" and re.fullmatch(r"[\d.]+", value):
            with contextlib.suppress(ValueError):
                if 0 < float(value) < SHORTEST_DEADLINE:
                    case.headers[name] = str(SHORTEST_DEADLINE)


@schemathesis.check
def a_refusal_that_no_schema_foretells_has_a_known_reason(
    context: CheckContext, response: Response, case: Case
) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    # /inference/v1/generate has the fields of the other routes in an object of their own
    message = json.loads(response.content)["error"]["message"].removeprefix("sampling_params.")
    if not any(pattern.search(message) for pattern in REASONS):
        raise Failure(
            operation=case.operation.label,
            title="A request that fits its schema is refused for no known reason",
            message=message,
        )
