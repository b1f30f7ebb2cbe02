"""JSON that is one line for every client, which is what a server-sent event can hold.

Owns: the encoding of all that is written, and the frame of an event that has a name. Must not know: what is written.
"""

from __future__ import annotations

from typing import Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode


def json_line(value: object) -> bytes:
    """``value`` as JSON in UTF-8, without a character that somebody takes for a line end.

    JSON escapes the control characters itself. The three line ends beyond ASCII may stand in JSON as they are, but
    some clients split lines there, as ``str.splitlines`` does.
    """
    line = _encode(value)
    if line.isascii():
        return line
    # In UTF-8 these bytes cannot be part of another character, and in JSON all three can only be inside a string.
    return (
        line.replace(b"\xc2\x85", b"\\u0085").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    )


def named_event(data: dict[str, object]) -> bytes:
    """A server-sent event named by the type of its ``data``: some clients read one, some the other."""
    return b"event: %b\ndata: %b\n\n" % (str(data["type"]).encode(), json_line(data))
