"""Loads a model: the one door to the readers of both formats.

Owns: which reader reads what. Must not know: formats, devices.
"""

from __future__ import annotations

from pathlib import Path

from trioserve.abc import Progress, no_progress
from trioserve.model.cache import folder_bytes
from trioserve.model.files import file_size
from trioserve.model.gguf import load_gguf
from trioserve.model.hf import load_hf
from trioserve.model.loaded import LoadedModel
from trioserve.model.sources import ResolvedModel, resolve_path


def load_model(model: ResolvedModel | Path, progress: Progress = no_progress) -> LoadedModel:
    """Open a model's files, check them, and make its tokenizer. Weights are mapped, not read. Blocks.

    Whoever gets the model closes its weights.

    Raises:
        ModelError: a file is missing, broken, or of a kind that is not supported.
    """
    found = resolve_path(model) if isinstance(model, Path) else model
    size = folder_bytes(found.path) if found.kind == "huggingface" else file_size(found.path)
    progress("opening", 0, size)
    loaded = load_gguf(found.path, found.id) if found.kind == "gguf" else load_hf(found.path, found.id)
    progress("opening", size, size)
    return loaded
