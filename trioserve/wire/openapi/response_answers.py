"""A response and its items, as the document shows them.

Owns: type and meaning of every field that is written. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trioserve.wire.openapi.answers import ChoiceError, ChoiceSeed, ChoiceUsage, Created, Reason
from trioserve.wire.openapi.details import ChatToken
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.response_requests import FunctionChoice, FunctionsChoice, TextFormat
from trioserve.wire.openapi.tools import ANY_OBJECT

ItemChoice = Annotated[int, extension("The index of the choice that the item belongs to.", 17)]
ItemStatus = Annotated[
    Literal["in_progress", "completed", "incomplete"],
    meaning('"incomplete" if the choice was ended from outside before it came to an end of its own.'),
]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[str]
    logprobs: Annotated[list[ChatToken], meaning("Empty unless include asks for them.")]


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """A thought."""

    text: str


class Item(Struct, kw_only=True, tag_field="type"):
    """What every item has."""

    id: str
    status: ItemStatus
    choice: ItemChoice


class MessageItem(Item, kw_only=True, tag="message"):
    """A text for the user."""

    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Item, kw_only=True, tag="reasoning"):
    """What a choice thinks before it goes on."""

    summary: list[str]
    content: list[ReasoningText]
    encrypted_content: None


class CallItem(Item, kw_only=True, tag="function_call"):
    """A call of a tool."""

    call_id: str
    name: str
    arguments: Annotated[str, meaning("A JSON object, unless the model wrote something else.")]


OutputItem = MessageItem | ReasoningItem | CallItem


class ResponseFailure(Struct, kw_only=True):
    """What went wrong after the response began."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    param: str | None
    type: str


class IncompleteDetails(Struct, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(Struct, kw_only=True):
    """The tokens of the prompt, further divided."""

    cached_tokens: int
    cache_write_tokens: Annotated[int, meaning("0: what is kept in the cache costs nothing.")]


class OutputTokensDetails(Struct, kw_only=True):
    """The tokens of the choices, further divided."""

    reasoning_tokens: int


class ResponseUsage(Struct, kw_only=True):
    """The tokens of a response: the prompt counted once, whatever n is."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ChoiceEnding(Struct, kw_only=True):
    """How a choice ended, and what it cost."""

    index: int
    finish_reason: Reason
    seed: ChoiceSeed
    usage: ChoiceUsage
    error: ChoiceError | UnsetType = UNSET
    mean_logprob: Annotated[
        float | UnsetType | None,
        extension(
            "Mean logarithm of the probabilities of its tokens, before temperature and filters; only with best_of "
            "above n, and null without tokens.",
            32,
        ),
    ] = UNSET


ChoiceEndings = Annotated[
    list[ChoiceEnding] | UnsetType, extension("How each choice ended; only once all have, in index order.", 17)
]


class RepeatedTool(Struct, kw_only=True):
    """What the model may call."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: Annotated[object, Meta(extra_json_schema=ANY_OBJECT)]
    strict: bool


class RepeatedText(Struct, kw_only=True):
    """The form of the answer, as it was asked for."""

    format: TextFormat


class RepeatedReasoning(Struct, kw_only=True):
    """How much the model was to think."""

    effort: str | None
    summary: None


class Response(Struct, kw_only=True):
    """The answer, whole or as far as it has come. Much of it repeats the request."""

    id: str
    object: Literal["response"]
    created_at: Created
    model: str
    status: Annotated[
        Literal["in_progress", "completed", "incomplete", "cancelled", "failed"],
        meaning(
            '"incomplete" if a choice came to max_output_tokens or the end of the context; else "completed" if one '
            'ended by itself; else "cancelled".'
        ),
    ]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    output: Annotated[
        list[OutputItem],
        meaning(
            "What the choices say: an item at least for each. Those of one choice stand together, in index order; of a "
            "stream, they stand in the order in which they began."
        ),
    ]
    usage: ResponseUsage | None
    choices: ChoiceEndings = UNSET
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: RepeatedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    temperature: float | None
    text: RepeatedText
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | FunctionsChoice
    tools: list[RepeatedTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
