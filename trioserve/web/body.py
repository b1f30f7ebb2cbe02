"""The body of a request, counted as it arrives.

Owns: the limit on its size, whatever its framing. Must not know: connections, time.

Quart has a body class of its own, but the two versions that we run on fill it by different methods, and the newer
one keeps a chunked upload of any size in memory before it counts it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self

import trio
from quart_trio.wrappers import TrioRequest
from werkzeug.exceptions import RequestEntityTooLarge


class RequestBody:
    """Bytes that arrive. Fed by the exchange; a handler awaits it, by way of ``request.get_data()``.

    Awaiting raises RequestEntityTooLarge as soon as more than ``max_size`` bytes are announced or have arrived,
    and bytes beyond are not kept.
    """

    def __init__(self, announced_size: int | None, max_size: int | None) -> None:
        self._data = bytearray()
        self._max_size = max_size
        self._too_large = False
        self._complete = trio.Event()
        if announced_size is not None and max_size is not None and announced_size > max_size:
            self._refuse()

    def feed(self, data: bytes) -> None:
        """More bytes have arrived."""
        if self._too_large:
            return
        self._data += data
        if self._max_size is not None and len(self._data) > self._max_size:
            self._refuse()

    def end(self) -> None:
        """All bytes have arrived."""
        self._complete.set()

    def clear(self) -> None:
        """Free the memory; Quart calls this for ``get_data(cache=False)``."""
        self._data.clear()

    def _refuse(self) -> None:
        self._too_large = True
        self._data.clear()
        self._complete.set()

    def __await__(self) -> Generator[Any, None, bytes]:
        yield from self._complete.wait().__await__()
        if self._too_large:
            raise RequestEntityTooLarge
        return bytes(self._data)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """All of it as one piece: what Quart's form parser iterates over."""
        data = await self
        self._data.clear()
        if not data:
            raise StopAsyncIteration
        return data


class CountedRequest(TrioRequest):
    """Quart-Trio's request with our body."""

    body_class = RequestBody  # type: ignore[assignment]
