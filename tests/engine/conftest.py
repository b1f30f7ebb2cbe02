"""The engine's tests run on virtual time: trio's clock jumps to the next deadline when every task waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing


@pytest.fixture(autouse=True)
async def deadlock_guard(autojump_clock: trio.testing.MockClock) -> AsyncIterator[None]:
    """A deadlock is a jump to this deadline: it fails at once instead of hanging."""
    with trio.fail_after(1e5):
        yield
