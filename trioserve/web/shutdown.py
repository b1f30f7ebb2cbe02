"""Telling a server to end.

Owns: Shutdown. Must not know: signals of the operating system, connections.
"""

from __future__ import annotations

import attrs
import trio


@attrs.define(eq=False)
class Shutdown:
    """A switch, pulled once, that says how long running requests may go on."""

    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _graceful_timeout: float | None = attrs.field(default=None, init=False)

    @property
    def begun(self) -> bool:
        """Whether the switch was pulled."""
        return self._begun.is_set()

    def begin(self, graceful_timeout: float | None = None) -> None:
        """Pull the switch. ``graceful_timeout`` is in seconds; None: the server's own option. The first call counts."""
        if not self.begun:
            self._graceful_timeout = graceful_timeout
            self._begun.set()

    async def wait(self) -> float | None:
        """Wait for ``begin``; returns its argument."""
        await self._begun.wait()
        return self._graceful_timeout
