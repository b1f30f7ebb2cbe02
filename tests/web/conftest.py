"""The tests of the app's side run in memory and on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing


@pytest.fixture
async def virtual_time(autojump_clock: trio.testing.MockClock) -> AsyncIterator[None]:
    """The clock jumps when every task waits. A deadlock is a jump to this deadline: it fails at once."""
    with trio.fail_after(1e5):
        yield
