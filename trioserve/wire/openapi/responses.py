"""/v1/responses, as the document shows it.

Owns: type and meaning of every field of its requests and answers. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trioserve.params import MAX_LOGPROBS
from trioserve.tools import MAX_TOOLS
from trioserve.wire.neutral import STREAM_OPTIONS, Labels, Neutral
from trioserve.wire.openapi.answers import ChoiceError, ChoiceSeed, ChoiceUsage, Created, Reason
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.details import ChatToken
from trioserve.wire.openapi.marks import extension, extension_marks, meaning
from trioserve.wire.openapi.requests import DrawingRequest
from trioserve.wire.openapi.sampling import Count, StopString, StopStrings
from trioserve.wire.openapi.structured import AsJsonObject, AsText, NamedSchema
from trioserve.wire.openapi.tools import ANY_OBJECT, ParallelToolCalls, ReasoningEffort, ToolName
from trioserve.wire.responses import decode, items, tools

# ---- what is read


class InputPart(Body, kw_only=True):
    """A part of a text; parts are joined by line feeds."""

    type: Literal["input_text", "output_text"]
    text: str


InputText = str | Annotated[list[InputPart], Meta(min_length=1)]


class InputMessage(Body, kw_only=True):
    """What somebody says. "developer" is the same as "system"."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: InputText


class InputCall(Body, kw_only=True):
    """A call that the assistant made in an earlier turn."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[str, meaning("JSON. The template is given the object; text that is none stays text.")]


class InputOutput(Body, kw_only=True):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: InputText
    name: str | None = None


class InputThought(Body, kw_only=True):
    """A part of what the assistant thought."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(Body, kw_only=True):
    """What the assistant thought before the message or call that follows."""

    type: Literal["reasoning"]
    content: list[InputThought] | None = None


INPUT_ITEMS: Final = (InputMessage, InputCall, InputOutput, InputReasoning)


class FlatSchema(NamedSchema, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that is valid by a schema."""


TextFormat = AsText | AsJsonObject | FlatSchema


class TextConfig(Body, kw_only=True):
    """What the text of an answer must be."""

    format: TextFormat | None = None


class GivenFunction(Body, kw_only=True):
    """A function that the caller runs when the model asks for it."""

    type: Literal["function"]
    name: Annotated[ToolName, meaning("No other tool of the request has it.")]
    description: str | None = None
    parameters: Annotated[
        object,
        Meta(
            description="The JSON schema of the arguments, which are an object. By default there are none.",
            extra_json_schema=ANY_OBJECT,
        ),
    ] = None
    strict: Annotated[
        bool | None, meaning("The arguments always follow the schema, which must be one that can be enforced.")
    ] = False


class OneOfTools(Body, kw_only=True):
    """One of the tools."""

    type: Literal["function"]
    name: ToolName


class FunctionChoice(Body, kw_only=True, tag_field="type", tag="function"):
    """Every choice is one call of this tool."""

    name: ToolName


class FunctionsChoice(Body, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model is told of all tools, and can call these."""

    mode: Annotated[Literal["auto", "required"], meaning("Whether a choice may call them or must.")]
    tools: Annotated[list[OneOfTools], Meta(min_length=1)]


class ReasoningConfig(Body, kw_only=True):
    """How much the model should think."""

    effort: ReasoningEffort = None


class ResponseStreamOptions(Body, kw_only=True):
    """Only with "stream"."""


class ResponsesRequest(DrawingRequest, kw_only=True):
    """A request to /v1/responses. Nothing is stored: the whole conversation is in its input."""

    input: Annotated[
        object,
        Meta(
            description="A text of the user, or an array of items: messages, calls and their outputs, thoughts. The "
            "output of one response can be given back in it as it is.",
            extra_json_schema={
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {"anyOf": [{"$ref": f"#/components/schemas/{cls.__name__}"} for cls in INPUT_ITEMS]},
                        "minItems": 1,
                    },
                ]
            },
        ),
    ]
    instructions: Annotated[str | None, meaning("A message of the system before all others.")] = None
    max_output_tokens: Annotated[
        Count | None,
        meaning("Tokens of a choice. By default what the context has room for; a number that is given must fit."),
    ] = None
    stop: Annotated[
        StopString | StopStrings | None,
        extension("One or several texts that end a choice; none of them is in its text."),
    ] = None
    text: Annotated[TextConfig | None, meaning("The form of an answer.")] = None
    reasoning: Annotated[ReasoningConfig | None, meaning("How much the model should think.")] = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
        meaning(
            "What else to tell: the log-probabilities of texts. Thoughts are told anyway, in the clear, and nothing "
            "is encrypted."
        ),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        meaning("Tell so many of the likeliest tokens in each place. Only if include has the log-probabilities."),
    ] = 0
    metadata: Annotated[
        Annotated[dict[str, str], Meta(max_length=decode.MAX_METADATA)] | None, meaning("Comes back with the response.")
    ] = None
    user: Annotated[str | None, meaning("Comes back with the response.")] = None
    safety_identifier: Annotated[str | None, meaning("Comes back with the response.")] = None
    prompt_cache_key: Annotated[
        str | None, meaning("Comes back with the response. The cache needs no key: every prefix is found.")
    ] = None
    max_tool_calls: Annotated[
        Count | None, meaning("Comes back with the response. It is about tools that a server calls: there are none.")
    ] = None
    service_tier: Annotated[str | None, meaning("There is one tier, whatever this says.")] = None
    tools: Annotated[
        Annotated[list[GivenFunction], Meta(max_length=MAX_TOOLS)] | None, meaning("What the model may call.")
    ] = None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | FunctionChoice | FunctionsChoice | None,
        meaning(
            "Whether a choice may call tools, must not, or must. Only with tools may it be more than auto or none. "
            "What a choice must do is enforced: its calls are of tools that there are, and follow their schemas."
        ),
    ] = "auto"
    parallel_tool_calls: ParallelToolCalls = True
    stream_options: ResponseStreamOptions | None = None


UNSERVED: Final[tuple[tuple[str, Neutral, Labels], ...]] = (
    ("ResponsesRequest", {**decode.STATELESS, **decode.NEUTRAL}, {}),
    ("ResponseStreamOptions", STREAM_OPTIONS, {}),
    ("GivenFunction", tools.TOOL_NEUTRAL, {}),
    ("TextConfig", decode.TEXT_NEUTRAL, {}),
    ("ReasoningConfig", decode.REASONING_NEUTRAL, {}),
    ("InputPart", items.PART_NEUTRAL, items.PART_LABELS),
    ("InputMessage", {}, items.ITEM_LABELS),
    ("InputCall", items.CALL_NEUTRAL, items.ITEM_LABELS),
    ("InputOutput", items.CALL_NEUTRAL, items.ITEM_LABELS),
    ("InputReasoning", items.REASONING_NEUTRAL, {**items.ITEM_LABELS, **items.REASONING_LABELS}),
)
"""Fields of the schemas above that are known but not served, and those that ask for nothing."""
EXTENSIONS: Final = {
    "n": extension_marks(1),
    "best_of": extension_marks(32),
    "seed": extension_marks(14),
    **{name: extension_marks(None) for name in ("presence_penalty", "frequency_penalty", "logit_bias")},
}
"""Fields of the older APIs that this one does not know; nor does Anthropic's."""


# ---- what is written

ItemChoice = Annotated[int, extension("The index of the choice that the item belongs to.", 17)]
ItemStatus = Annotated[
    Literal["in_progress", "completed", "incomplete"],
    meaning('"incomplete" if the choice was ended from outside before it came to an end of its own.'),
]
Number = Annotated[int, meaning("Counts the events of the stream from 0.")]
Position = Annotated[int, meaning("Counts the items of the stream from 0, as they begin, those of all choices.")]


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


class Event(Struct, kw_only=True, tag_field="type"):
    """What every event of a stream has."""

    sequence_number: Number


class ResponseEvent(Event, kw_only=True):
    """What events of the response as a whole have."""

    response: Response


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The first event."""


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The second event."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The last event, of a response with that status."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The last event, of a response that is incomplete or was cancelled."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The last event, in place of the rest, of a response that failed half way."""


class ItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """An item begins, with nothing in it."""

    output_index: Position
    item: OutputItem


class ItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: Position
    item: OutputItem


class ItemEvent(Event, kw_only=True):
    """What events inside an item have."""

    item_id: str
    output_index: Position


class ContentEvent(ItemEvent, kw_only=True):
    """What events inside the content of an item have."""

    content_index: Literal[0]


class PartAdded(ContentEvent, kw_only=True, tag="response.content_part.added"):
    """The content of a message or of a thought begins, with nothing in it."""

    part: OutputText | ReasoningText


class PartDone(ContentEvent, kw_only=True, tag="response.content_part.done"):
    """The content of a message or of a thought is whole."""

    part: OutputText | ReasoningText


class TextDelta(ContentEvent, kw_only=True, tag="response.output_text.delta"):
    """More of a text."""

    delta: str
    logprobs: list[ChatToken]


class TextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """A text is whole."""

    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """A thought is whole."""

    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of the arguments of a call."""

    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a call are whole."""

    arguments: str
    name: str


EVENTS: Final = (
    *(ResponseCreated, ResponseInProgress, ResponseCompleted, ResponseIncomplete, ResponseFailed),
    *(ItemAdded, ItemDone, PartAdded, PartDone),
    *(TextDelta, TextDone, ReasoningDelta, ReasoningDone, ArgumentsDelta, ArgumentsDone),
)
STREAM: Final = (
    'With "stream": the data of each event, which has the name of its type. The items of different choices take turns. '
    "What goes wrong half way is response.failed in place of the rest. A long silence is filled with comment lines. A "
    "client that reads nothing for the --slow-reader-timeout is cut off."
)
