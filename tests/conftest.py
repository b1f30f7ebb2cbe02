"""Fixtures for every test folder, and the folders whose tests run on virtual time."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from trioserve.testing.clock import run_virtual

# each client has an environment of its own: tests/clients/run.py
collect_ignore = ["clients"]

VIRTUAL_TIME = [Path(__file__).parent / folder for folder in ("engine", "web")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-library", type=Path, help="native CPU kernels to test in place of the installed ones")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-library")
    if path is not None:
        from trioserve_kernels.cpu import library

        # before any test module asks for it
        library.library_path = lambda: path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if is_async and item.path.parent in VIRTUAL_TIME:
            item.add_marker(pytest.mark.trio(run=run_virtual), append=False)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The GGUF file of the default model, fetched on first use. For tests marked ``model``."""
    # imported here, so that folders which test no model load none of this
    from trioserve.model.cache import cache_dir
    from trioserve.model.sources import resolve

    return resolve("smollm2", cache=cache_dir(os.environ)).path
