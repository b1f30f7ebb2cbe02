"""Reading a response piece by piece.

Owns: Reading. Must not know: what is in a response, why one would stop in its middle.
"""

from __future__ import annotations

from typing import Self

import h11
import trio
from answers import Received

from trioserve.testing.http import RawClient


class Reading:
    """One response on a connection, as far as it was read.

    ``after`` is the response before it, of which it takes over bytes that were read too many (pipelining).
    """

    def __init__(self, client: RawClient, *, pause: float = 0.0, after: Self | None = None) -> None:
        self._client = client
        self._pause = pause
        self._parser = h11.Connection(h11.CLIENT)
        self._parser.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
        self._parser.send(h11.EndOfMessage())
        if after is not None and after._parser.trailing_data[0]:
            self._parser.receive_data(after._parser.trailing_data[0])
        self._ended = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.continued = False
        """The server has asked for the body."""

    def received(self) -> Received:
        """What was read so far."""
        return Received(status=self.status, headers=self.headers, body=bytes(self.body), complete=self.complete)

    async def more(self) -> bool:
        """Read until there is a head, a 100 Continue, or more body. False: there is no more, complete or not."""
        while not self._ended:
            try:
                event = self._parser.next_event()
                if event is h11.NEED_DATA:
                    if self._pause:
                        await trio.sleep(self._pause)
                    self._parser.receive_data(await self._client.receive())
                    continue
            except (h11.RemoteProtocolError, ConnectionResetError):
                break
            if isinstance(event, h11.InformationalResponse):
                self.continued = True
                return True
            if isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = {name.decode(): value.decode() for name, value in event.headers}
                return True
            if isinstance(event, h11.Data):
                self.body += event.data
                return True
            self.complete = isinstance(event, h11.EndOfMessage)
            break
        self._ended = True
        return False

    async def whole(self) -> Received:
        """Read to the end."""
        while await self.more():
            pass
        return self.received()
