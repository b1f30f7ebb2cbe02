"""Language models over the OpenAI HTTP API on trio: n choices for the price of one prefill.

async with trioserve.open_engine("smollm2") as engine:
    async with engine.generate("Once upon a time", trioserve.SamplingParams(n=4)) as generation:
        async for event in generation:
            ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trioserve.engine.answers import Answer, ChoiceAnswer, Embeddings, ToolCall
    from trioserve.engine.chats import Chat
    from trioserve.engine.engine import Engine, EngineStatistics, ModelInfo
    from trioserve.engine.generation import Generation
    from trioserve.engine.observer import AbortCause, ChoiceReport, Observer, RequestReport, RequestUsage
    from trioserve.engine.open import open_engine
    from trioserve.engine.options import EngineOptions
    from trioserve.errors import (
        ChoiceFailedError,
        ContextLengthError,
        DeviceError,
        EngineClosedError,
        EngineFailedError,
        EngineStoppingError,
        GenerationError,
        InternalError,
        ModelError,
        ParamError,
        QueueFullError,
        RequestCancelledError,
        StructureError,
        TrioserveError,
    )
    from trioserve.events import (
        ChoiceFinished,
        ChoiceUsage,
        Event,
        FinishReason,
        PromptScored,
        ReasoningDelta,
        TextDelta,
        TokenLogprob,
        ToolCallDelta,
    )
    from trioserve.params import ChoiceParams, Limits, SamplingParams, StopWhen
    from trioserve.rendering import Rendering
    from trioserve.structure import Structure
    from trioserve.tools import Tool, ToolUse
    from trioserve.version import __version__

__all__ = [
    "AbortCause",
    "Answer",
    "Chat",
    "ChoiceAnswer",
    "ChoiceFailedError",
    "ChoiceFinished",
    "ChoiceParams",
    "ChoiceReport",
    "ChoiceUsage",
    "ContextLengthError",
    "DeviceError",
    "Embeddings",
    "Engine",
    "EngineClosedError",
    "EngineFailedError",
    "EngineOptions",
    "EngineStatistics",
    "EngineStoppingError",
    "Event",
    "FinishReason",
    "Generation",
    "GenerationError",
    "InternalError",
    "Limits",
    "ModelError",
    "ModelInfo",
    "Observer",
    "ParamError",
    "PromptScored",
    "QueueFullError",
    "ReasoningDelta",
    "Rendering",
    "RequestCancelledError",
    "RequestReport",
    "RequestUsage",
    "SamplingParams",
    "StopWhen",
    "Structure",
    "StructureError",
    "TextDelta",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolUse",
    "TrioserveError",
    "__version__",
    "open_engine",
]

# Names are imported when they are first asked for (PEP 562): an engine takes some 0.3 seconds to import, which
# ``trioserve --help`` does not need, and in which Ctrl-C would be a traceback before the command can help it.
_HOMES: Final = {
    "trioserve.engine.answers": ("Answer", "ChoiceAnswer", "Embeddings", "ToolCall"),
    "trioserve.engine.chats": ("Chat",),
    "trioserve.engine.engine": ("Engine", "EngineStatistics", "ModelInfo"),
    "trioserve.engine.generation": ("Generation",),
    "trioserve.engine.observer": ("AbortCause", "ChoiceReport", "Observer", "RequestReport", "RequestUsage"),
    "trioserve.engine.open": ("open_engine",),
    "trioserve.engine.options": ("EngineOptions",),
    "trioserve.errors": (
        "ChoiceFailedError",
        "ContextLengthError",
        "DeviceError",
        "EngineClosedError",
        "EngineFailedError",
        "EngineStoppingError",
        "GenerationError",
        "InternalError",
        "ModelError",
        "ParamError",
        "QueueFullError",
        "RequestCancelledError",
        "StructureError",
        "TrioserveError",
    ),
    "trioserve.events": (
        "ChoiceFinished",
        "ChoiceUsage",
        "Event",
        "FinishReason",
        "PromptScored",
        "ReasoningDelta",
        "TextDelta",
        "TokenLogprob",
        "ToolCallDelta",
    ),
    "trioserve.params": ("ChoiceParams", "Limits", "SamplingParams", "StopWhen"),
    "trioserve.rendering": ("Rendering",),
    "trioserve.structure": ("Structure",),
    "trioserve.tools": ("Tool", "ToolUse"),
    "trioserve.version": ("__version__",),
}

if not TYPE_CHECKING:  # or every misspelt name would be an object

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                return globals().setdefault(name, getattr(import_module(module), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
