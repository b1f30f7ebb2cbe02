"""What every client is told: where the server is, and what it serves.

The server is started by run.py, in another environment than these tests: trioserve can't be imported here.
"""

from __future__ import annotations

import json
import os
import urllib.request

import pytest

NOT_SERVED_YET: set[str] = set()
"""What tests marked with ``needs`` wait for."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(feature): the test is of a feature that may not be served yet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        missing = {mark.args[0] for mark in item.iter_markers("needs")} & NOT_SERVED_YET
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"not served yet: {', '.join(sorted(missing))}"))


@pytest.fixture(scope="session")
def url() -> str:
    """Where the server is, such as http://127.0.0.1:8000."""
    found = os.environ.get("TRIOSERVE_URL")
    if found is None:
        pytest.fail("TRIOSERVE_URL is not set: these tests are run by tests/clients/run.py")
    return found


@pytest.fixture(scope="session")
def model(url: str) -> str:
    """The id of the model that is served."""
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        (card,) = json.load(response)["data"]
    return str(card["id"])
