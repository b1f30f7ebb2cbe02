"""The bodies of answers, as the document shows them.

Owns: type and meaning of every field that is written. Must not know: how answers come about.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from trioserve.events import FinishReason
from trioserve.wire.openapi.details import (
    ChatLogprobsField,
    CompletionLogprobsField,
    FirstPromptLogprobs,
    FirstPromptTokenIds,
    PromptLogprobsField,
    PromptTokenIds,
    TokenIdsField,
)
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.tools import CallPiece, MadeCall

Accepted = Annotated[int, meaning("Drafted tokens of the answer; each has saved a step.")]
Rejected = Annotated[int, meaning("Tokens that were drafted in vain; in no total, unlike at OpenAI.")]
Index = Annotated[int, meaning("p times n + j for choice j of prompt p.")]
Created = Annotated[int, meaning("Seconds since the epoch.")]
ChoiceSeed = Annotated[
    int, extension("The seed that the choice was drawn with; giving it back with n = 1 replays the choice.", 16)
]
MeanLogprob = Annotated[
    float | UnsetType | None,
    extension(
        "Mean logarithm of the probabilities of its tokens, before temperature and filters; only with best_of above n, "
        "and null without tokens.",
        32,
    ),
]
Reason = Annotated[
    FinishReason,
    meaning(
        'How the choice ended: "stop" at an end-of-sequence token or a stop string; "length" after max_tokens or at '
        'the end of the context; and, beyond OpenAI\'s API, "cancelled" by stop_when or a DELETE, and "error".'
    ),
]


class ErrorFields(Struct, kw_only=True):
    """What went wrong."""

    message: str
    type: Annotated[str, meaning("The kind of error: whose fault it is.")]
    param: Annotated[str | None, meaning("The field of the request at fault, such as messages.0.content.")]
    code: Annotated[str | None, meaning("A word for programs.")]


class Error(Struct, kw_only=True):
    """The body of every error, and the event in place of the rest of a stream that failed."""

    error: ErrorFields


class ChoiceUsage(Struct, kw_only=True):
    """The tokens of one choice; the sums over all choices, and discarded_tokens, are those of the request."""

    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: Annotated[
        int, meaning("Prompt tokens found in the cache; at the first choice of a prompt, 0 at the others.")
    ]
    shared_tokens: Annotated[
        int, meaning("Prompt tokens taken over from the first choice of the prompt; 0 at that one.")
    ]
    accepted_prediction_tokens: Accepted
    rejected_prediction_tokens: Rejected


ChoiceUsageField = Annotated[ChoiceUsage, extension("What this choice cost.", 21)]
ChoiceError = Annotated[ErrorFields, extension('What went wrong; only of a choice with the finish_reason "error".', 24)]


class PromptDetails(Struct, kw_only=True):
    """The tokens of the prompts, further divided."""

    cached_tokens: int


class CompletionDetails(Struct, kw_only=True):
    """The tokens of the choices, further divided."""

    reasoning_tokens: int
    accepted_prediction_tokens: Accepted
    rejected_prediction_tokens: Rejected


class CandidateDetails(CompletionDetails, kw_only=True):
    """The tokens of the choices, and of all candidates if there were more, further divided."""

    discarded_tokens: Annotated[
        int | UnsetType, extension("Those of the candidates of best_of that are no choices.", 32)
    ] = UNSET


class TokenCounts(Struct, kw_only=True):
    """What every usage has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Usage(TokenCounts, kw_only=True):
    """The tokens of a request: each prompt counted once, whatever n is."""

    prompt_tokens_details: PromptDetails
    completion_tokens_details: CandidateDetails


class StreamUsage(TokenCounts, kw_only=True):
    """The tokens of a streamed request, or those so far of one choice, which has no details."""

    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


ChunkUsage = Annotated[
    StreamUsage | UnsetType | None,
    meaning(
        "Only with include_usage. That of the request, in the event before [DONE], which has no choices; before that "
        "null, or with continuous_usage_stats that of the choice so far."
    ),
]


class Answer(Struct, kw_only=True):
    """What answers and chunks of both routes have in common."""

    id: str
    created: Created
    model: str


class Ended(Struct, kw_only=True):
    """A choice of a whole answer."""

    index: Index
    finish_reason: Reason
    seed: ChoiceSeed
    usage: ChoiceUsageField
    error: ChoiceError | UnsetType = UNSET
    mean_logprob: MeanLogprob = UNSET


class Passing(Struct, kw_only=True):
    """A choice in one event of a stream. What comes with its end is in its last event only."""

    index: Index
    finish_reason: Reason | None
    seed: ChoiceSeed | UnsetType = UNSET
    usage: ChoiceUsageField | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True):
    """What the assistant says."""

    role: Literal["assistant"]
    content: Annotated[str | None, meaning("Null if there are calls and no text.")]
    refusal: None
    reasoning_content: Annotated[str | UnsetType, extension("What it thought before, if it did.")] = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET


class ChatChoice(Ended, kw_only=True):
    """One answer to the conversation."""

    message: ChatMessage
    logprobs: ChatLogprobsField
    token_ids: TokenIdsField = UNSET


class ChatCompletion(Answer, kw_only=True):
    """The answer to a chat that is not streamed; its choices in index order."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: PromptTokenIds = UNSET
    prompt_logprobs: PromptLogprobsField = UNSET


class Delta(Struct, kw_only=True):
    """More of a message: the role in the first event of a choice, nothing in its last."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: Annotated[str | UnsetType, extension("More of what it thinks before.")] = UNSET
    tool_calls: list[CallPiece] | UnsetType = UNSET


class ChatChunkChoice(Passing, kw_only=True):
    """More of one answer to the conversation."""

    delta: Delta
    logprobs: ChatLogprobsField
    token_ids: TokenIdsField = UNSET


class ChatChunk(Answer, kw_only=True):
    """An event of the stream of a chat: about one choice, or about none and with the usage."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: ChunkUsage = UNSET
    prompt_token_ids: FirstPromptTokenIds = UNSET
    prompt_logprobs: FirstPromptLogprobs = UNSET


class CompletionChoice(Ended, kw_only=True):
    """One continuation of one prompt."""

    text: str
    logprobs: CompletionLogprobsField
    token_ids: TokenIdsField = UNSET
    prompt_token_ids: PromptTokenIds = UNSET
    prompt_logprobs: PromptLogprobsField = UNSET


class Completion(Answer, kw_only=True):
    """The answer to a completion that is not streamed; its choices in index order."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(Passing, kw_only=True):
    """More of one continuation."""

    text: str
    logprobs: CompletionLogprobsField
    token_ids: TokenIdsField = UNSET
    prompt_token_ids: FirstPromptTokenIds = UNSET
    prompt_logprobs: FirstPromptLogprobs = UNSET


class CompletionChunk(Answer, kw_only=True):
    """An event of the stream of a completion: about one choice, or about none and with the usage."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: ChunkUsage = UNSET


class Model(Struct, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: Created
    owned_by: str
    max_model_len: Annotated[int, extension("Tokens of prompt and answer together at most.")]


class Models(Struct, kw_only=True):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[Model]


class Cancelled(Struct, kw_only=True):
    """What has been ended. The clients of it get a regular answer."""

    id: Annotated[str, meaning("As it was given.")]
    object: Literal["request.cancelled"]
    cancelled: Literal[True]
    index: Annotated[int | UnsetType, meaning("Of the choice, if it was only one.")] = UNSET


class Health(Struct, kw_only=True):
    """The server runs."""

    status: Literal["ok"]


class Version(Struct, kw_only=True):
    """The server's version."""

    version: str


class Document(Struct, kw_only=True):
    """This document."""

    openapi: str
    info: dict[str, Raw]
    servers: list[Raw]
    security: list[Raw]
    options: Annotated[dict[str, Raw], extension("The bounds of this server.")] = field(name="x-options")
    paths: dict[str, Raw]
    components: dict[str, Raw]
