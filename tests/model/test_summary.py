"""What is said of a model without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve.errors import ModelError
from trioserve.model.cache import folder_bytes
from trioserve.model.summary import ModelSummary, describe
from trioserve.testing.checkpoints import TinyLlama, make_weights, write_tiny_gguf, write_tiny_llama

PARAMETERS = sum(array.size for array in make_weights(TinyLlama()).values())


def test_a_gguf_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf", kind="Q8_0", metadata={"general.license": "mit"})

    assert describe(path) == ModelSummary(
        path=path,
        form="GGUF 3",
        architecture="llama",
        size=path.stat().st_size,
        parameters=PARAMETERS,
        kinds={"Q8_0": 16, "F32": 5},
        context_length=256,
        vocabulary=320,
        has_template=True,
        licence="mit",
    )


def test_a_folder(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", TinyLlama(chat_template=None), dtype="BF16", shards=2)

    assert describe(folder) == ModelSummary(
        path=folder,
        form="safetensors",
        architecture="llama",
        size=folder_bytes(folder),
        parameters=PARAMETERS,
        kinds={"BF16": 21},
        context_length=256,
        vocabulary=320,
        has_template=False,
        licence=None,
    )


def test_an_architecture_that_can_not_be_run_is_described_as_well(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf", metadata={"general.architecture": "other", "other.context_length": 9})

    summary = describe(path)

    assert (summary.architecture, summary.context_length) == ("other", 9)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")

    with pytest.raises(ModelError, match=f"^{tmp_path / 'a.gguf'}: "):
        describe(tmp_path / "a.gguf")


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    summary = describe(default_model_path)

    assert summary == ModelSummary(
        path=default_model_path,
        form="GGUF 3",
        architecture="llama",
        size=98_362_432,
        parameters=134_515_008,
        kinds={"Q4_1": 210, "F32": 61, "Q8_0": 1},
        context_length=8192,
        vocabulary=49152,
        has_template=True,
        licence="apache-2.0",
    )
    assert list(summary.kinds) == ["Q4_1", "F32", "Q8_0"]
