"""Loads a GGUF file: one file with everything in it.

Owns: putting the parts together. Must not know: the file format, or any single key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trioserve.model.fields import Fields
from trioserve.model.files import naming
from trioserve.model.gguf_families import family_of
from trioserve.model.gguf_format import GgufFile, read_gguf
from trioserve.model.gguf_vocabulary import read_vocabulary
from trioserve.model.loaded import LoadedModel
from trioserve.model.weights import MappedWeights, match_weights
from trioserve.params import Pooling
from trioserve.text.template import ChatTemplate
from trioserve.text.tokenizer import BpeTokenizer

_POOLINGS: Final[Mapping[int, Pooling]] = {1: "mean", 3: "last"}
"""As llama.cpp numbers them."""


def load_gguf(path: Path, name: str) -> LoadedModel:
    """The model of a GGUF file, served as ``name``. The file stays mapped until its weights are closed.

    Raises:
        ModelError: the file is broken, or something in it is not supported.
    """
    file = read_gguf(path)
    try:
        with naming(path):
            return _load(file, name)
    except BaseException:
        file.file.close()
        raise


def _load(file: GgufFile, name: str) -> LoadedModel:
    path = file.file.path
    fields = Fields(path, file.metadata)
    family = family_of(fields)
    spec = family.spec(file, fields)
    weights = match_weights(path, spec, file.tensors, family.names, family.ignored)
    read = read_vocabulary(fields, spec.vocab_size)
    # the number 0 says that there is none, and the others are for encoders
    pooling = _POOLINGS.get(fields.integer(f"{spec.architecture}.pooling_type", 0))
    unread = fields.unread(f"{spec.architecture}.")
    template = None
    if read.template is not None:
        template = ChatTemplate(read.template, bos_token=read.bos_token, eos_token=read.eos_token)
    return LoadedModel(
        name=name,
        path=path,
        spec=spec,
        weights=MappedWeights([file.file], weights),
        tokenizer=BpeTokenizer.from_vocabulary(read.vocabulary),
        template=template,
        pooling=pooling,
        warnings=(*read.warnings, *(f"the file's {key} is not understood and has no effect" for key in unread)),
    )
