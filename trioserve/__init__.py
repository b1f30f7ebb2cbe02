"""Language models over the OpenAI HTTP API on trio: n choices for the price of one prefill.

async with trioserve.open_engine("smollm2") as engine:
    async with engine.generate("Once upon a time", trioserve.SamplingParams(n=4)) as generation:
        async for event in generation:
            ...
"""

from trioserve.engine.engine import Answer, ChoiceAnswer, Engine, EngineStatistics, ModelInfo
from trioserve.engine.generation import Generation
from trioserve.engine.observer import AbortCause, ChoiceReport, Observer, RequestReport
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.errors import (
    ChoiceFailedError,
    ContextLengthError,
    DeviceError,
    EngineClosedError,
    EngineStoppingError,
    GenerationError,
    InternalError,
    ModelError,
    ParamError,
    QueueFullError,
    TrioserveError,
)
from trioserve.events import ChoiceFinished, ChoiceUsage, Event, FinishReason, TextDelta
from trioserve.params import ChoiceParams, Limits, SamplingParams, StopWhen
from trioserve.version import __version__

__all__ = [
    "AbortCause",
    "Answer",
    "ChoiceAnswer",
    "ChoiceFailedError",
    "ChoiceFinished",
    "ChoiceParams",
    "ChoiceReport",
    "ChoiceUsage",
    "ContextLengthError",
    "DeviceError",
    "Engine",
    "EngineClosedError",
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
    "QueueFullError",
    "RequestReport",
    "SamplingParams",
    "StopWhen",
    "TextDelta",
    "TrioserveError",
    "__version__",
    "open_engine",
]
