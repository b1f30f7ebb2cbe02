"""A response whose body comes out of a channel.

Owns: the bridge from a channel of bytes to Quart, and the headers of server-sent events.
Must not know: what is streamed.
"""

from __future__ import annotations

from types import TracebackType

import trio
from quart.wrappers.response import ResponseBody
from quart_trio.wrappers import TrioResponse


class ChannelBody(ResponseBody):
    """A response body: one write for each item of ``channel``.

    The body ends when the sending side is closed, so closing must be the last thing a producer does: a producer in
    the exchange's nursery that fails in the same breath cuts the response off instead of ending it.

    It owns nothing but its end of the channel. If the response is never sent, nothing is left to clean up.
    """

    def __init__(self, channel: trio.MemoryReceiveChannel[bytes]) -> None:
        self._channel = channel

    async def __aenter__(self) -> trio.MemoryReceiveChannel[bytes]:
        return self._channel

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to do: what the channel still holds ends with the exchange, as its producer does."""


def event_stream(channel: trio.MemoryReceiveChannel[bytes]) -> TrioResponse:
    """A response that sends the items of ``channel``, which are complete server-sent events."""
    return TrioResponse(
        ChannelBody(channel),
        headers={
            "cache-control": "no-cache",
            # asks nginx and those who follow it not to collect events before they pass them on
            "x-accel-buffering": "no",
        },
        content_type="text/event-stream; charset=utf-8",
    )
