"""A client that costs next to nothing: while an answer streams it only keeps bytes and looks at the clock.

Owns: one request over HTTP, and when its tokens came. Must not know: which server answers.

The client runs beside the server on the same cores, so what it did per token would count against the server. It reads
everything first and takes it apart when the answer is whole.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import h11

_READ: Final = 1 << 18
_TEXT: Final = b'"text":"'
"""In every event with a token, as compact JSON has it."""
_TIMEOUT_S: Final = 600.0


@attrs.frozen
class Streamed:
    """An answer to /v1/completions. Times are seconds since the request was sent."""

    first: float
    """Until the first token was here."""
    total: float
    """Until the last byte was here."""
    cpu_first: float
    """CPU seconds of the server until ``first``."""
    cpu_total: float
    """CPU seconds of the server until ``total``."""
    client_cpu: float
    """CPU seconds of this client until ``total``."""
    texts: Mapping[int, str]
    """The text of each choice."""
    reasons: Mapping[int, str]
    """Why each choice ended."""


def stream(port: int, body: Mapping[str, object], cpu: Callable[[], float]) -> Streamed:
    """Ask for a streamed completion and read it to its end.

    Args:
        port: of a server on this machine.
        body: of the request, without ``stream``.
        cpu: tells the CPU seconds that the server has used.

    Raises:
        ConnectionError: the answer is an error, or no stream that has an end.
    """
    content = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    pieces: list[bytes] = []
    first = cpu_first = total = 0.0
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
        cpu_before, own_before, sent = cpu(), time.thread_time(), time.perf_counter()
        connection.sendall(head.encode() + content)
        while data := connection.recv(_READ):
            total = time.perf_counter()
            if not first and _TEXT in data:
                first, cpu_first = total, cpu()
            pieces.append(data)
        cpu_total, own_total = cpu(), time.thread_time()
    texts, reasons = parse(pieces)
    return Streamed(
        first=first - sent,
        total=total - sent,
        cpu_first=cpu_first - cpu_before,
        cpu_total=cpu_total - cpu_before,
        client_cpu=own_total - own_before,
        texts=texts,
        reasons=reasons,
    )


def parse(pieces: list[bytes]) -> tuple[dict[int, str], dict[int, str]]:
    """The texts and finish reasons in a response, by choice.

    Raises:
        ConnectionError: it is no whole stream of completions.
    """
    status, body = _unframe(pieces)
    if status != 200:
        raise ConnectionError(f"status {status}: {body.decode(errors='replace')[:2000]}")
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    ended = False
    for line in body.split(b"\n"):
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            ended = True
            continue
        event = json.loads(data)
        if "choices" not in event:
            raise ConnectionError(f"the stream has an error: {event}")
        for choice in event["choices"]:
            index = choice.get("index", 0)
            texts[index] = texts.get(index, "") + (choice.get("text") or "")
            if choice.get("finish_reason"):
                reasons[index] = choice["finish_reason"]
    if not ended:
        raise ConnectionError("the stream ended without [DONE]")
    return texts, reasons


def _unframe(pieces: list[bytes]) -> tuple[int, bytes]:
    """The status and the body of a response, whatever its framing."""
    protocol = h11.Connection(h11.CLIENT)
    protocol.send(h11.Request(method="GET", target="/", headers=[("Host", "x"), ("Connection", "close")]))
    protocol.send(h11.EndOfMessage())
    for piece in pieces:
        protocol.receive_data(piece)
    protocol.receive_data(b"")
    status, body = 0, bytearray()
    while True:
        try:
            event = protocol.next_event()
        except h11.RemoteProtocolError as error:
            raise ConnectionError(f"the response is broken: {error}") from error
        if isinstance(event, h11.EndOfMessage):
            return status, bytes(body)
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
