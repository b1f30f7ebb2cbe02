"""Tiny models that are written once and read by many tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve.testing.checkpoints import write_tiny_gguf, write_tiny_llama


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a GGUF file. Not to be changed."""
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a Hugging Face folder. Not to be changed."""
    return write_tiny_llama(tmp_path_factory.mktemp("hf") / "tiny")
