"""The client of the comparisons, without a server: bytes in, texts and reasons out."""

from __future__ import annotations

import json

import pytest
from peers.stream import parse

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(index: int, text: str, reason: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


ANSWER = [event(0, "a"), event(1, "x"), event(0, "b", "length"), event(1, "", "stop"), b"data: [DONE]\n\n"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_read_however_its_bytes_are_cut(size: int) -> None:
    whole = HEAD + b"".join(map(chunk, ANSWER)) + chunk(b"")
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert parse(pieces) == ({0: "ab", 1: "x"}, {0: "length", 1: "stop"})


def test_an_event_may_be_spread_over_chunks() -> None:
    body = b"".join(ANSWER)
    assert parse([HEAD, chunk(body[:20]), chunk(body[20:]), chunk(b"")])[0] == {0: "ab", 1: "x"}


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"], "status 400: no"),
        ([HEAD, chunk(b'data: {"error": "full"}\n\n'), chunk(b"data: [DONE]\n\n"), chunk(b"")], "has an error"),
        ([HEAD, *map(chunk, ANSWER[:-1]), chunk(b"")], "without"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata"], "is broken"),
        ([], "is broken"),
    ],
)
def test_half_an_answer_is_an_error(pieces: list[bytes], said: str) -> None:
    with pytest.raises(ConnectionError, match=said):
        parse(pieces)
