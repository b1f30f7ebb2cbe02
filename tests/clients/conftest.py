"""What every client is told: where the server is, and what it serves.

The server is started by run.py, in another environment than these tests: trioserve can't be imported here.
"""

from __future__ import annotations

import json
import os
import urllib.request

import pytest


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
