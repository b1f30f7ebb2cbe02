"""The bodies of requests, as the document shows them.

Owns: type, bounds, default and meaning of every field that is read, but for how to draw. Must not know: the bounds that
a server sets.
The fields that are known but not served are in wire.neutral, and are added to these.

An integer is stricter than JSON Schema can say: 2.0 is none. Null is the same as leaving a field out.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import extension, meaning
from trioserve.wire.openapi.sampling import (
    DEFAULTS,
    CacheSalt,
    Count,
    CountFromZero,
    Drawing,
    Int32,
    PromptLogprobsField,
    StopField,
    TopCount,
)
from trioserve.wire.openapi.structured import ResponseFormat
from trioserve.wire.openapi.tools import (
    AddGenerationPrompt,
    ContinueFinalMessage,
    ParallelToolCalls,
    ReasoningEffort,
    TemplateArguments,
    ToolChoice,
    Tools,
)


class StreamOptions(Body, kw_only=True):
    """What the events of a stream tell. Only with "stream"."""

    include_usage: Annotated[
        bool | None, meaning("Tell the usage of the request in an event of its own, before [DONE].")
    ] = False
    continuous_usage_stats: Annotated[
        bool | None, extension("Tell in every event the usage of its choice so far. Only with include_usage.", 20)
    ] = False


class DrawingRequest(Drawing, kw_only=True):
    """What all generating routes read, but for what to answer."""

    model: Annotated[str, meaning("The id of the served model, as /v1/models tells it.")]
    stream: Annotated[bool | None, meaning("Send the answer as it is made, as server-sent events.")] = False
    priority: Annotated[
        Int32 | None, extension("Requests with a lower one start first; those that run go on, whatever comes.")
    ] = DEFAULTS.priority
    cache_salt: Annotated[
        CacheSalt | None, extension("Prompts are found in the cache only by requests with the same salt.")
    ] = None


class GeneratingRequest(DrawingRequest, kw_only=True):
    """What the routes of chats and completions read."""

    stop: StopField = None
    prompt_logprobs: PromptLogprobsField = None
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[bool | None, extension("Tell the token ids of the prompts and the choices.")] = False


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
    response_format: Annotated[
        ResponseFormat | None, meaning("What every choice must be; the same as structured_outputs in other words.")
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


PROMPTS: Final[dict[str, object]] = {
    "anyOf": [
        {"type": "string"},
        {"$ref": "#/components/schemas/TokenIds"},
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/TokenIds"}]},
            "minItems": 1,
        },
    ]
}
"""One prompt, or several. msgspec has no union of two arrays."""


class CompletionRequest(GeneratingRequest, kw_only=True):
    """A request to /v1/completions."""

    prompt: Annotated[
        object,
        Meta(
            description="A text, an array of token ids, or an array of such prompts. P prompts give P times n choices, "
            "prompt by prompt.",
            extra_json_schema=PROMPTS,
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


def token_ids(vocab_size: int) -> dict[str, object]:
    """The schema that a prompt refers to. msgspec has no union of two arrays."""
    return {
        "title": "TokenIds",
        "description": "A prompt that is tokenized already; each id must be in the model's vocabulary.",
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
        "minItems": 1,
    }
