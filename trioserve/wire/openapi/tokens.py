"""The bodies of who works with tokens, as the document shows them.

Owns: type and meaning of their fields. Must not know: texts.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from trioserve.wire.openapi.answers import (
    ChoiceError,
    ChoiceSeed,
    ChoiceUsageField,
    ChunkUsage,
    Index,
    MeanLogprob,
    Reason,
    Usage,
)
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.details import FirstPromptLogprobs, Logprob, PromptLogprobs
from trioserve.wire.openapi.marks import meaning
from trioserve.wire.openapi.requests import Messages, Prediction, StreamOptions
from trioserve.wire.openapi.sampling import (
    DEFAULTS,
    CacheSalt,
    CountFromZero,
    Int32,
    Sampling,
    TopCount,
)
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
from trioserve.wire.tokenizing import WITH_MESSAGES

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = list[TokenId]
SomeTokenIds = Annotated[list[TokenId], Meta(min_length=1)]
OptionalModel = Annotated[str | None, meaning("The id of the served model; there is one only.")]


class TokenizeRequest(Body, kw_only=True):
    """A text or a conversation: exactly one of "prompt" and "messages", which the fields of a chat go with."""

    model: OptionalModel = None
    prompt: Annotated[str | None, meaning("A text of any length.")] = None
    messages: Annotated[Messages | None, meaning("A conversation, up to where its answer begins.")] = None
    tools: Tools = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: ParallelToolCalls = True
    reasoning_effort: ReasoningEffort = None
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = False
    add_special_tokens: Annotated[
        bool | None,
        meaning("Begin with the model's BOS token, if it wants one. Only true with prompt, and by default."),
    ] = None
    return_token_strs: Annotated[bool | None, meaning("Tell the text of every token.")] = False


_NOTHING: Final = {"type": "null"}
EITHER: Final = [
    {
        "title": "A text",
        "required": ["prompt"],
        "properties": {"prompt": {"type": "string"}, "messages": _NOTHING, **dict.fromkeys(WITH_MESSAGES, _NOTHING)},
    },
    {
        "title": "A conversation",
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array"},
            "prompt": _NOTHING,
            "add_special_tokens": {"enum": [False, None]},
        },
    },
]
"""What a request to /tokenize is one of."""


class Tokenized(Struct, kw_only=True):
    """The tokens of a text."""

    count: int
    max_model_len: Annotated[int, meaning("Tokens of prompt and answer together at most.")]
    tokens: list[int]
    token_strs: Annotated[
        list[str] | None, meaning("As in logprobs; the mark of a special token. Only with return_token_strs.")
    ]


class DetokenizeRequest(Body, kw_only=True):
    """Token ids."""

    model: OptionalModel = None
    tokens: Annotated[TokenIds, meaning("Each must be in the model's vocabulary.")]


class Detokenized(Struct, kw_only=True):
    """The text of tokens, special ones included; U+FFFD where it is no UTF-8."""

    prompt: str


class TokenizerInfo(Struct, kw_only=True):
    """What a client must know of a tokenizer that it uses over HTTP. The names are those of tokenizer_config.json."""

    tokenizer_class: Literal["trioserve"]
    bos_token: Annotated[str | None, meaning("What a text begins with, if the model wants that.")]
    eos_token: Annotated[str | None, meaning("What ends an answer; the first, if there are several.")]
    pad_token: None
    chat_template: Annotated[str | None, meaning("In Jinja.")]
    vocab_size: int
    model_max_length: Annotated[int, meaning("Tokens of prompt and answer together at most.")]


class GenerateParams(Sampling, kw_only=True):
    """How to draw."""

    max_tokens: Annotated[
        CountFromZero | None, meaning("Tokens of a choice. By default what the context has room for.")
    ] = None
    logprobs: Annotated[
        TopCount | None,
        meaning("Tell the log-probability of every token, and of so many of the likeliest ones in its place."),
    ] = None
    prediction: Annotated[
        Prediction | None, meaning("A text to take drafts from, whatever prompt_lookup says; each choice by itself.")
    ] = None


class GenerateRequest(Body, kw_only=True):
    """A prompt as token ids, which are taken as they are."""

    token_ids: Annotated[SomeTokenIds, meaning("The prompt; each must be in the model's vocabulary.")]
    model: OptionalModel = None
    request_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128, pattern="^[ -~]*$")] | None,
        meaning("The id of the request, which no other running request may have. By default the server makes one."),
    ] = None
    sampling_params: GenerateParams | None = None
    stream: Annotated[bool | None, meaning("Send the answer as it is made, as server-sent events.")] = False
    stream_options: StreamOptions | None = None
    priority: Annotated[
        Int32 | None, meaning("Requests with a lower one start first; those that run go on, whatever comes.")
    ] = DEFAULTS.priority
    cache_salt: Annotated[
        CacheSalt | None, meaning("Prompts are found in the cache only by requests with the same salt.")
    ] = None


class LikelyId(Struct, kw_only=True):
    """A token that might be in a place, and how likely it was."""

    token: Annotated[str, meaning("token_id:5 for token 5.")]
    logprob: Logprob
    bytes: None


class GeneratedId(LikelyId, kw_only=True):
    """A token of the answer."""

    top_logprobs: list[LikelyId]


class IdLogprobs(Struct, kw_only=True):
    """How likely the tokens were."""

    content: list[GeneratedId]


class GeneratedChoice(Struct, kw_only=True):
    """One continuation."""

    index: Index
    token_ids: Annotated[list[int], meaning("An end-of-sequence token included.")]
    logprobs: IdLogprobs | None
    finish_reason: Reason
    seed: ChoiceSeed
    usage: ChoiceUsageField
    error: ChoiceError | UnsetType = UNSET
    mean_logprob: MeanLogprob = UNSET


class Generated(Struct, kw_only=True):
    """The answer to a request that is not streamed; its choices in index order."""

    request_id: str
    choices: list[GeneratedChoice]
    usage: Usage
    prompt_logprobs: Annotated[PromptLogprobs | None, meaning("Only with prompt_logprobs, else null.")]


class GeneratedChunkChoice(Struct, kw_only=True):
    """More of one continuation. What comes with its end is in its last event only, which has no tokens."""

    index: Index
    token_ids: list[int]
    logprobs: IdLogprobs | None
    finish_reason: Reason | None
    seed: ChoiceSeed | UnsetType = UNSET
    usage: ChoiceUsageField | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET


class GeneratedChunk(Struct, kw_only=True):
    """An event of the stream: about one choice; or about none, with what is told of the prompt, or the usage."""

    request_id: str
    choices: list[GeneratedChunkChoice]
    usage: ChunkUsage = UNSET
    prompt_logprobs: FirstPromptLogprobs = UNSET


class RenderedPrompt(Struct, kw_only=True):
    """A request to /inference/v1/generate that has the same answer, in tokens."""

    model: str
    token_ids: Annotated[list[int], meaning("The exact prompt.")]
    sampling_params: Annotated[dict[str, Raw], meaning("Those that are not the default.")]
    stream: bool
    stream_options: dict[str, Raw] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET
