"""How late the event loop is.

Owns: Ticker. Must not know: who makes it late.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

_INTERVAL: Final = 0.005


class Ticker:
    """Wakes up again and again, and notes by how many milliseconds it was late."""

    def __init__(self) -> None:
        self._delays: Counter[int] = Counter()
        self.longest = 0.0
        """Milliseconds."""

    def __repr__(self) -> str:
        return f"<Ticker: {self._delays.total()} ticks, {self.longest:.1f} ms late at most>"

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due = trio.current_time() + _INTERVAL
            await trio.sleep_until(due)
            delay = (trio.current_time() - due) * 1000
            self._delays[round(delay)] += 1
            self.longest = max(self.longest, delay)

    def percentile(self, share: float) -> int:
        """Milliseconds that ``share`` of the ticks were not later than."""
        left = share * self._delays.total()
        for delay in sorted(self._delays):
            left -= self._delays[delay]
            if left <= 0:
                return delay
        return 0
