"""What tests of streams with named events share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Frames = Callable[[bytes], list[Any]]


@pytest.fixture
def frames() -> Frames:
    """The data of server-sent events, of which each has the name that its data has for a type."""

    def read(body: bytes) -> list[Any]:
        *parts, rest = body.decode().split("\n\n")
        assert rest == ""
        found = []
        for part in parts:
            if part.startswith(":"):
                continue
            name, line = part.splitlines()
            found.append(json.loads(line.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        return found

    return read
