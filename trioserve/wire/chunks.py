"""The events of a request as a stream of chunks (FAN-18 to FAN-22).

Owns: the order and the form of chunks, and their frames as server-sent events.
Must not know: when they are written.

There is no ``system_fingerprint``: the format lets it be left out, and there is nothing it would tell.
"""

from __future__ import annotations

from typing import Final

from trioserve.events import ChoiceFinished, Event, TextDelta
from trioserve.wire.errors import error_body
from trioserve.wire.line import json_line
from trioserve.wire.tally import Head, Tally, ending_fields

PING: Final = b": ping\n\n"
"""A comment: keeps a proxy from giving up during a long silence (FAN-20), and is ignored by clients."""

_DONE: Final = b"data: [DONE]\n\n"


class ChunkBuilder:
    """Makes the bytes of one stream: ``start``, ``feed`` for every event, ``end``, each returning frames to write.

    A stream that fails half way gets ``fail`` in place of the rest.
    """

    def __init__(self, head: Head, *, include_usage: bool, continuous_usage: bool) -> None:
        assert include_usage or not continuous_usage
        self._head: Final = head
        self._tally: Final = Tally(head)
        self._include_usage: Final = include_usage
        self._continuous_usage: Final = continuous_usage
        self._started = False
        self._ended = False
        # A chunk with text is the most frequent thing a server writes, so all of it but the text is made here.
        chat = head.kind == "chat"
        shared = json_line(
            {
                "id": head.id,
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": head.created,
                "model": head.model,
            }
        )
        self._opening: Final = shared.removesuffix(b"}") + b',"choices":['
        before_text = b',"delta":{"content":' if chat else b',"text":'
        self._before_text: Final = [
            b'data: %b{"index":%d%b' % (self._opening, index, before_text) for index in range(head.choices)
        ]
        after_text = b"}" if chat else b""
        self._after_text: Final = after_text + b',"logprobs":null,"finish_reason":null}]'

    def __repr__(self) -> str:
        return f"<ChunkBuilder of {self._head.id}: {self._tally!r}>"

    def start(self) -> bytes:
        """The chunks before any event: the role of every choice of a chat, the echoed prompts of a completion."""
        assert not self._started
        self._started = True
        head = self._head
        if head.kind == "completion":
            return b"".join(self._text_chunk(i, head.echo(i)) for i in range(head.choices) if head.echo(i))
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk({"index": i, "delta": delta, "logprobs": None, "finish_reason": None}, i)
            for i in range(head.choices)
        )

    def feed(self, event: Event) -> bytes:
        """The chunk of one event; b"" for a delta that has no text yet."""
        assert self._started
        assert not self._ended
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
            nothing: dict[str, object] = {"delta": {}} if self._head.kind == "chat" else {"text": ""}
            return self._chunk({"index": event.index, **nothing, **ending_fields(event)}, event.index)
        if not isinstance(event, TextDelta):
            return b""
        self._tally.add(event)
        return self._text_chunk(event.index, event.text) if event.text else b""

    def end(self) -> bytes:
        """The end of the stream, after all choices have finished: the usage if it was asked for, and [DONE]."""
        assert self._started
        assert not self._ended
        self._ended = True
        usage = self._tally.usage()
        if not self._include_usage:
            return _DONE
        return _frame(self._opening + b'],"usage":' + json_line(usage) + b"}") + _DONE

    def fail(self, error: BaseException) -> bytes:
        """What takes the place of the rest when the request fails after its headers (FAN-28)."""
        return error_event(error)

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._before_text[index] + json_line(text) + self._after_text + self._usage(index) + b"}\n\n"

    def _chunk(self, choice: dict[str, object], index: int) -> bytes:
        return _frame(self._opening + json_line(choice) + b"]" + self._usage(index) + b"}")

    def _usage(self, index: int) -> bytes:
        if not self._include_usage:
            return b""
        if not self._continuous_usage:
            return b',"usage":null'
        return b',"usage":' + json_line(self._tally.choice_usage(index))


def error_event(error: BaseException) -> bytes:
    """The end of a stream that failed after its headers: the error as the one status code can't tell it (FAN-28)."""
    _, body = error_body(error)
    return _frame(body) + _DONE


def _frame(line: bytes) -> bytes:
    return b"data: " + line + b"\n\n"
