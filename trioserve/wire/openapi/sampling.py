"""How to draw, in the bodies of requests, as the document shows it.

Owns: type, bounds, default and meaning of every field that SamplingParams has. Must not know: which requests have them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from trioserve.params import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    MAX_BIAS,
    MAX_BIASES,
    MAX_CACHE_SALT,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    SamplingParams,
)
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.structured import StructuredOutputs

DEFAULTS: Final = SamplingParams()

Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]
CountFromZero = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Seed = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Temperature = Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
Share = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenIds = Annotated[list[CountFromZero], Meta(max_length=MAX_STOP_TOKEN_IDS)]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=MAX_REPETITION_PENALTY)]
TopCount = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=INT32_MAX)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)]
LOGIT_BIAS: Final[dict[str, object]] = {
    "type": "object",
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    # no larger than INT32_MAX
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
    "maxProperties": MAX_BIASES,
}
StopField = Annotated[
    StopString | StopStrings | None,
    meaning("One or several texts that end a choice; none of them is in its text."),
]
PromptLogprobsField = Annotated[
    TopCount | None,
    extension(
        "Tell the log-probability of every token of the prompts but the first, and of so many of the likeliest ones in "
        "its place."
    ),
]
JsonObject = Annotated[object, Meta(extra_json_schema={"type": "object"})]


class ChoiceParams(Body, kw_only=True):
    """How one choice differs from the request."""

    max_tokens: Annotated[Count | None, meaning("Tokens of this choice.")] = None
    temperature: Annotated[Temperature | None, meaning("0 is greedy, for this choice alone.")] = None
    top_p: Annotated[Share | None, meaning("As in the request.")] = None
    top_k: Annotated[TopK | None, meaning("As in the request.")] = None
    min_p: Annotated[Share | None, meaning("As in the request.")] = None
    seed: Annotated[
        Seed | None, meaning("The seed itself, to which no index is added; -1 is one that the server picks.")
    ] = None


class StopWhen(Body, kw_only=True):
    """Either "finished", or "agree" and "pattern"."""

    finished: Annotated[Count | None, meaning("As soon as this many choices have ended by themselves.")] = None
    agree: Annotated[Count | None, meaning("As soon as this many of those have the same answer.")] = None
    pattern: Annotated[
        str | None,
        meaning(
            "A regular expression in RE2's syntax, of up to 1000 characters. The answer of a choice is what the first "
            "group, or without groups all of it, matched last in the text; a choice without a match has none."
        ),
    ] = None


class Drawing(Body, kw_only=True):
    """How to draw, and how a choice ends, as all requests say it."""

    n: Annotated[Count | None, meaning("Choices per prompt.")] = DEFAULTS.n
    best_of: Annotated[
        Count | None,
        meaning(
            "Candidates per prompt, n at least and by default. Of more than n, the n whose tokens are likeliest in the "
            "mean are the choices, the best first; all are counted in the usage, and they can't be streamed.",
            32,
        ),
    ] = DEFAULTS.best_of
    temperature: Annotated[
        Temperature | None,
        meaning(
            "Exactly 0 is greedy: always the most likely token. By default that of the model's generation_config.json, "
            "if it asks for sampling, or else 1."
        ),
    ] = DEFAULTS.temperature
    top_p: Annotated[
        Share | None, meaning("Keep the smallest set of most likely tokens whose probability reaches this.")
    ] = DEFAULTS.top_p
    top_k: Annotated[TopK | None, extension("Keep this many most likely tokens; -1 and 0 keep all.")] = DEFAULTS.top_k
    min_p: Annotated[Share | None, extension("Drop tokens less likely than this times the most likely one.")] = (
        DEFAULTS.min_p
    )
    seed: Annotated[
        Seed | None,
        meaning(
            "Choice j of a prompt is drawn with seed + j, wrapping in 64 bits. Without a seed, and with -1, the server "
            "picks one. Every choice of the answer tells its own."
        ),
    ] = DEFAULTS.seed
    stop_token_ids: Annotated[
        StopTokenIds | None,
        extension(
            "Tokens that end a choice, besides the model's end-of-sequence tokens; like those they have no text."
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, extension("The text of a choice has the stop string, or the text of the stop token, at its end.")
    ] = DEFAULTS.include_stop
    min_tokens: Annotated[
        CountFromZero | None,
        extension(
            "Before a choice has so many tokens, none that would end it can be drawn, and stop strings do not count. "
            "Up to max_tokens."
        ),
    ] = DEFAULTS.min_tokens
    presence_penalty: Annotated[
        Penalty | None, meaning("Subtracted from the logit of every token that the choice has generated.")
    ] = DEFAULTS.presence_penalty
    frequency_penalty: Annotated[
        Penalty | None, meaning("The same, as many times as the choice has generated the token.")
    ] = DEFAULTS.frequency_penalty
    repetition_penalty: Annotated[
        RepetitionPenalty | None,
        extension(
            "The logit of every token in the prompt or the choice is divided by this if it is positive, and multiplied "
            "if it is negative."
        ),
    ] = DEFAULTS.repetition_penalty
    logit_bias: Annotated[
        object,
        Meta(
            description="Token ids, and what is added to their logits.",
            extra_json_schema={"anyOf": [LOGIT_BIAS, {"type": "null"}]},
        ),
    ] = None
    skip_special_tokens: Annotated[bool | None, extension("Special tokens have no text.")] = (
        DEFAULTS.skip_special_tokens
    )
    ignore_eos: Annotated[bool | None, extension("Go on past the model's end-of-sequence tokens.")] = (
        DEFAULTS.ignore_eos
    )
    choice_params: Annotated[
        list[ChoiceParams] | None,
        extension(
            "One object for each of the n choices, or best_of candidates: how choice j of every prompt differs from "
            "the request. With it, "
            "n above 1 and a temperature of 0 go together.",
            33,
        ),
    ] = None
    stop_when: Annotated[
        StopWhen | None,
        extension(
            'When to end the choices that still run, over all prompts of the request, with the reason "cancelled".', 31
        ),
    ] = None
    choice_errors: Annotated[
        Literal["fail", "isolate"] | None,
        extension(
            'What a choice that fails means: the request fails, or the choice ends alone, with the reason "error". '
            "If all choices fail, so does the request.",
            24,
        ),
    ] = DEFAULTS.choice_errors
    prompt_lookup: Annotated[
        bool | None,
        extension(
            "Verify drafts from the prompt and the answer, several tokens in a step: the answer is the same and may "
            "take fewer steps. By default what the server was told, or else where the device gains by it."
        ),
    ] = DEFAULTS.prompt_lookup
    structured_outputs: Annotated[
        StructuredOutputs | None,
        extension(
            "What every choice must be. Together with it, what would end a choice elsewhere is refused: stop, "
            "stop_token_ids, ignore_eos and min_tokens. So is what can't be enforced."
        ),
    ] = None


class Sampling(Drawing, kw_only=True):
    """The same, with what the newer dialects don't have, or have under another name."""

    stop: StopField = None
    prompt_logprobs: PromptLogprobsField = None
