"""The engine's tests run on virtual time."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from trioserve.testing.clock import run_virtual


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if is_async and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.trio(run=run_virtual), append=False)
