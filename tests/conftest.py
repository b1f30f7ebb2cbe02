"""Fixtures for every test folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The GGUF file of the default model, fetched on first use. For tests marked ``model``."""
    # imported here, so that folders which test no model load none of this
    from trioserve.model.cache import cache_dir
    from trioserve.model.sources import resolve

    return resolve("smollm2", cache=cache_dir(os.environ)).path
