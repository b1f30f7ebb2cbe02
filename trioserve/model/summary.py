"""What can be said of a model without loading it.

Owns: ModelSummary. Must not know: how to run a model; a file of an unsupported architecture is described as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import attrs

from trioserve.model.cache import folder_bytes
from trioserve.model.fields import Fields
from trioserve.model.files import file_size
from trioserve.model.gguf_format import read_gguf
from trioserve.model.hf import read_config, read_template
from trioserve.model.safetensors import read_checkpoint
from trioserve.model.weights import StoredTensor


@attrs.frozen(kw_only=True)
class ModelSummary:
    """A model's files in a few numbers."""

    path: Path
    form: str
    """"GGUF 3" or "safetensors"."""
    architecture: str
    size: int
    """Of the file or the folder, in bytes."""
    parameters: int
    kinds: Mapping[str, int]
    """Tensor kind -> number of tensors, the most frequent first."""
    context_length: int | None
    vocabulary: int | None
    """Tokens."""
    has_template: bool
    """Whether it can chat."""
    licence: str | None


def describe(path: Path) -> ModelSummary:
    """The summary of a GGUF file or of a folder.

    Raises:
        ModelError: it can't be read, or is broken.
    """
    return _describe_folder(path) if path.is_dir() else _describe_gguf(path)


def _describe_gguf(path: Path) -> ModelSummary:
    with read_gguf(path) as file:
        fields = Fields(path, file.metadata)
        architecture = fields.text("general.architecture")
        tokens = fields.value("tokenizer.ggml.tokens")
        return ModelSummary(
            path=path,
            form=f"GGUF {file.version}",
            architecture=architecture,
            size=file_size(path),
            parameters=_parameters(file.tensors),
            kinds=_kinds(file.tensors),
            context_length=fields.integer(f"{architecture}.context_length", None),
            vocabulary=len(tokens) if isinstance(tokens, tuple) else None,
            has_template=fields.text("tokenizer.chat_template", None) is not None,
            licence=fields.text("general.license", None),
        )


def _describe_folder(folder: Path) -> ModelSummary:
    config = read_config(folder)
    checkpoint = read_checkpoint(folder)
    try:
        return ModelSummary(
            path=folder,
            form="safetensors",
            architecture=config.text("model_type"),
            size=folder_bytes(folder),
            parameters=_parameters(checkpoint.tensors),
            kinds=_kinds(checkpoint.tensors),
            context_length=config.integer("max_position_embeddings", None),
            vocabulary=config.integer("vocab_size", None),
            has_template=read_template(folder) is not None,
            licence=None,
        )
    finally:
        checkpoint.close()


def _parameters(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _kinds(tensors: Mapping[str, StoredTensor]) -> dict[str, int]:
    return dict(Counter(tensor.kind for tensor in tensors.values()).most_common())
