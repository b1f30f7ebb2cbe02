"""The names that other programs may build on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trioserve

PUBLIC = {
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
    "RequestCancelledError",
    "Rendering",
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
}


def test_the_public_names_are_these() -> None:
    assert set(trioserve.__all__) == PUBLIC
    assert set(dir(trioserve)) >= PUBLIC
    for name in PUBLIC:
        assert hasattr(trioserve, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'trioserve' has no attribute 'Generator'"):
        trioserve.Generator  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Generator'"):
        from trioserve import Generator  # type: ignore[attr-defined]  # noqa: F401


LARGE = ("torch", "numpy", "trio", "quart", "rich", "jinja2")


def imported_by(program: str) -> list[str]:
    """The large packages that a fresh process has imported after ``program``."""
    program += f"; import sys; print(*[name for name in {LARGE} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()[-1].split()


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    # Ctrl-C while the package is imported would be a traceback: the command can't help it yet
    assert imported_by("import trioserve, trioserve.cli") == []
    assert imported_by("from trioserve import SamplingParams, ParamError") == []
    assert "trio" in imported_by("from trioserve import open_engine")


def test_help_imports_no_more_than_it_shows() -> None:
    assert imported_by("from trioserve.cli.commands import run; run(['--help'])") == []


def test_torch_is_not_imported_before_a_model_is_loaded() -> None:
    program = "import trioserve.cli.serve, trioserve.cli.generate, trioserve.cli.models; from trioserve import *"
    assert "torch" not in imported_by(program)
