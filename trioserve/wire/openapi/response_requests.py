"""The body of a request to /v1/responses, as the document shows it.

Owns: type and meaning of every field that is read. Must not know: how they come about.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from trioserve.params import MAX_LOGPROBS
from trioserve.tools import MAX_TOOLS
from trioserve.wire.neutral import STREAM_OPTIONS, Labels, Neutral
from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import extension, extension_marks, meaning
from trioserve.wire.openapi.requests import DrawingRequest
from trioserve.wire.openapi.sampling import Count, StopString, StopStrings
from trioserve.wire.openapi.structured import AsJsonObject, AsText, NamedSchema
from trioserve.wire.openapi.tools import ParallelToolCalls, ReasoningEffort, ToolFunction, ToolName
from trioserve.wire.responses import decode, items, tools


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


class GivenFunction(ToolFunction, kw_only=True):
    """A function that the caller runs when the model asks for it."""

    type: Literal["function"]


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
