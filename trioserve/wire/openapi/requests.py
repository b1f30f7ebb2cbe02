"""The bodies of requests, as the document shows them.

Owns: type, bounds, default and meaning of every field that is read. Must not know: the bounds that a server sets.
The fields that are known but not served are in wire.neutral, and are added to these.

An integer is stricter than JSON Schema can say: 2.0 is none. Null is the same as leaving a field out.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

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
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.tools import (
    AddGenerationPrompt,
    ContinueFinalMessage,
    ParallelToolCalls,
    ReasoningEffort,
    TemplateArguments,
    ToolChoice,
    Tools,
)
from trioserve.wire.prompts import MAX_TOKEN_ID

_DEFAULTS: Final = SamplingParams()

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


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object of a request: a field that is not known is refused."""


class StreamOptions(Body, kw_only=True):
    """What the events of a stream tell. Only with "stream"."""

    include_usage: Annotated[
        bool | None, meaning("Tell the usage of the request in an event of its own, before [DONE].")
    ] = False
    continuous_usage_stats: Annotated[
        bool | None, extension("Tell in every event the usage of its choice so far. Only with include_usage.", 20)
    ] = False


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


class GeneratingRequest(Body, kw_only=True):
    """What both generating routes read."""

    model: Annotated[str, meaning("The id of the served model, as /v1/models tells it.")]
    n: Annotated[Count | None, meaning("Choices per prompt.")] = _DEFAULTS.n
    best_of: Annotated[
        Count | None,
        meaning(
            "Candidates per prompt, n at least and by default. Of more than n, the n whose tokens are likeliest in the "
            "mean are the choices, the best first; all are counted in the usage, and they can't be streamed.",
            32,
        ),
    ] = _DEFAULTS.best_of
    temperature: Annotated[
        Temperature | None,
        meaning(
            "Exactly 0 is greedy: always the most likely token. By default that of the model's generation_config.json, "
            "if it asks for sampling, or else 1."
        ),
    ] = _DEFAULTS.temperature
    top_p: Annotated[
        Share | None, meaning("Keep the smallest set of most likely tokens whose probability reaches this.")
    ] = _DEFAULTS.top_p
    top_k: Annotated[TopK | None, extension("Keep this many most likely tokens; -1 and 0 keep all.")] = _DEFAULTS.top_k
    min_p: Annotated[Share | None, extension("Drop tokens less likely than this times the most likely one.")] = (
        _DEFAULTS.min_p
    )
    seed: Annotated[
        Seed | None,
        meaning(
            "Choice j of a prompt is drawn with seed + j, wrapping in 64 bits. Without a seed, and with -1, the server "
            "picks one. Every choice of the answer tells its own."
        ),
    ] = _DEFAULTS.seed
    stop: Annotated[
        StopString | StopStrings | None,
        meaning("One or several texts that end a choice; none of them is in its text."),
    ] = None
    stop_token_ids: Annotated[
        StopTokenIds | None,
        extension(
            "Tokens that end a choice, besides the model's end-of-sequence tokens; like those they have no text."
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, extension("The text of a choice has the stop string, or the text of the stop token, at its end.")
    ] = _DEFAULTS.include_stop
    min_tokens: Annotated[
        CountFromZero | None,
        extension(
            "Before a choice has so many tokens, none that would end it can be drawn, and stop strings do not count. "
            "Up to max_tokens."
        ),
    ] = _DEFAULTS.min_tokens
    presence_penalty: Annotated[
        Penalty | None, meaning("Subtracted from the logit of every token that the choice has generated.")
    ] = _DEFAULTS.presence_penalty
    frequency_penalty: Annotated[
        Penalty | None, meaning("The same, as many times as the choice has generated the token.")
    ] = _DEFAULTS.frequency_penalty
    repetition_penalty: Annotated[
        RepetitionPenalty | None,
        extension(
            "The logit of every token in the prompt or the choice is divided by this if it is positive, and multiplied "
            "if it is negative."
        ),
    ] = _DEFAULTS.repetition_penalty
    logit_bias: Annotated[
        object,
        Meta(
            description="Token ids, and what is added to their logits.",
            extra_json_schema={"anyOf": [LOGIT_BIAS, {"type": "null"}]},
        ),
    ] = None
    skip_special_tokens: Annotated[bool | None, extension("Special tokens have no text.")] = (
        _DEFAULTS.skip_special_tokens
    )
    prompt_logprobs: Annotated[
        TopCount | None,
        extension(
            "Tell the log-probability of every token of the prompts but the first, and of so many of the likeliest "
            "ones in its place."
        ),
    ] = None
    return_token_ids: Annotated[bool | None, extension("Tell the token ids of the prompts and the choices.")] = False
    priority: Annotated[
        Int32 | None, extension("Requests with a lower one start first; those that run go on, whatever comes.")
    ] = _DEFAULTS.priority
    cache_salt: Annotated[
        CacheSalt | None, extension("Prompts are found in the cache only by requests with the same salt.")
    ] = None
    ignore_eos: Annotated[bool | None, extension("Go on past the model's end-of-sequence tokens.")] = (
        _DEFAULTS.ignore_eos
    )
    stream: Annotated[bool | None, meaning("Send the answer as it is made, as server-sent events.")] = False
    stream_options: StreamOptions | None = None
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
    ] = _DEFAULTS.choice_errors
    prompt_lookup: Annotated[
        bool | None,
        extension(
            "Verify drafts from the prompt and the answer, several tokens in a step: the answer is the same and may "
            "take fewer steps. By default what the server was told, or else where the device gains by it."
        ),
    ] = _DEFAULTS.prompt_lookup


class TextPart(Body, kw_only=True):
    """A part of a message; parts are joined by line feeds."""

    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], Meta(min_length=1)]


class Message(Body, kw_only=True, tag_field="role"):
    """What every message has."""

    name: Annotated[str | None, meaning("Given to the model's chat template.")] = None


class SystemMessage(Message, kw_only=True, tag="system"):
    """Instructions."""

    content: str | Parts


class DeveloperMessage(Message, kw_only=True, tag="developer"):
    """The same as a message of the system: templates know no other name."""

    content: str | Parts


class UserMessage(Message, kw_only=True, tag="user"):
    """What the user says."""

    content: str | Parts


class CalledFunction(Body, kw_only=True):
    """A function that the assistant has called."""

    name: str
    arguments: Annotated[str, meaning("JSON. The template is given the object; text that is none stays text.")]


class ToolCall(Body, kw_only=True):
    """A call in an earlier turn."""

    id: str
    function: CalledFunction
    type: Literal["function"] | None = "function"


class AssistantMessage(Message, kw_only=True, tag="assistant"):
    """What the assistant said in an earlier turn."""

    content: Annotated[str | Parts | None, meaning("Required unless there are tool_calls.")] = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: Annotated[
        str | None, extension("What it thought, which the chat template may show to the model or not.")
    ] = None


class ToolMessage(Message, kw_only=True, tag="tool"):
    """The result of a tool call."""

    content: str | Parts
    tool_call_id: str


Messages = Annotated[
    list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage], Meta(min_length=1)
]


class Prediction(Body, kw_only=True):
    """A text that the answer may repeat in large part. The answer is the same, and may take fewer steps."""

    type: Literal["content"]
    content: Annotated[str | Parts, meaning("No longer than the context.")]


class ChatRequest(GeneratingRequest, kw_only=True):
    """A request to /v1/chat/completions."""

    messages: Annotated[Messages, meaning("The conversation, written as the model's chat template says.")]
    max_completion_tokens: Annotated[
        Count | None,
        meaning(
            "Tokens of a choice. By default what the context has room for; a number that is given must fit. "
            "Of this and max_tokens the smaller one counts."
        ),
    ] = None
    max_tokens: Annotated[Count | None, meaning("The older name of max_completion_tokens.")] = None
    logprobs: Annotated[
        bool | None,
        meaning(
            "Tell the log-probability of every token to the model, before penalties, bias, temperature and filters."
        ),
    ] = False
    top_logprobs: Annotated[
        TopCount | None, meaning("Tell those of so many of the likeliest tokens in its place. Only with logprobs.")
    ] = None
    prediction: Annotated[
        Prediction | None, meaning("A text to take drafts from, whatever prompt_lookup says; each choice by itself.")
    ] = None
    tools: Tools = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: ParallelToolCalls = True
    reasoning_effort: ReasoningEffort = None
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = False


class CompletionRequest(GeneratingRequest, kw_only=True):
    """A request to /v1/completions."""

    prompt: Annotated[
        object,
        Meta(
            description="A text, an array of token ids, or an array of such prompts. P prompts give P times n choices, "
            "prompt by prompt.",
            extra_json_schema={
                "anyOf": [
                    {"type": "string"},
                    {"$ref": "#/components/schemas/TokenIds"},
                    {
                        "type": "array",
                        "items": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/TokenIds"}]},
                        "minItems": 1,
                    },
                ]
            },
        ),
    ]
    max_tokens: Annotated[
        CountFromZero | None,
        meaning(
            "Tokens of a choice. By default 16, or less if the context has less room; a number that is given must fit. "
            "0 computes nothing."
        ),
    ] = None
    logprobs: Annotated[
        TopCount | Literal[False] | None,
        meaning(
            "Tell the log-probability of every token to the model, and of so many of the likeliest ones in its place; "
            "with echo, of the prompt's tokens too. OpenAI's API allows 5."
        ),
    ] = None
    echo: Annotated[bool | None, meaning("The text of a choice begins with its prompt.")] = False


TOKEN_IDS: Final[dict[str, object]] = {
    "title": "TokenIds",
    "description": "A prompt that is tokenized already; each id must be in the model's vocabulary.",
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID},
    "minItems": 1,
}
"""The schema that a prompt refers to. msgspec has no union of two arrays."""
