"""The names that other programs may build on."""

from __future__ import annotations

import trioserve

PUBLIC = {
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
}


def test_the_public_names_are_these() -> None:
    assert set(trioserve.__all__) == PUBLIC
    for name in PUBLIC:
        assert hasattr(trioserve, name)
