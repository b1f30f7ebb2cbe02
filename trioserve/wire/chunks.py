"""The events of a request as a stream of chunks (FAN-18 to FAN-22).

Owns: the order and the form of chunks, and their frames as server-sent events.
Must not know: when they are written.

There is no ``system_fingerprint``: the format lets it be left out, and there is nothing it would tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioserve.events import ChoiceFinished, Delta, Event, PromptScored, TextDelta
from trioserve.wire.details import ChoiceDetails
from trioserve.wire.errors import error_body
from trioserve.wire.line import json_line
from trioserve.wire.message_parts import delta_fields
from trioserve.wire.tally import Head, Tally, ending_fields

PING: Final = b": ping\n\n"
"""A comment: keeps a proxy from giving up during a long silence (FAN-20), and is ignored by clients."""

DONE: Final = b"data: [DONE]\n\n"
"""The end of every stream."""


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
        self._details: Final = head.choice_details()
        # prompts whose choices begin with what is yet to come about them
        self._unopened: Final[set[int]] = set()
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
        """The chunks before any event: the role of every choice of a chat, the echoed prompts of a completion.

        If something is to be told of the prompts, these chunks wait for it.
        """
        assert not self._started
        self._started = True
        prompts = range(len(self._head.prompt_tokens))
        if self._head.details is not None and self._head.details.of_prompts:
            self._unopened.update(prompts)
            return b""
        return b"".join(self._open(prompt, None) for prompt in prompts)

    def feed(self, event: Event) -> bytes:
        """The chunk of one event; b"" for a delta that has nothing to tell yet."""
        assert self._started
        assert not self._ended
        if self._details is None and isinstance(event, TextDelta):
            # nearly all there is to write
            self._tally.add(event)
            return self._text_chunk(event.index, event.text) if event.text else b""
        if isinstance(event, PromptScored):
            return self._open(event.prompt, event)
        opening = b""
        if self._unopened and event.index // self._head.n in self._unopened:
            # it ended before its prompt was computed
            opening = self._open(event.index // self._head.n, None)
        if isinstance(event, ChoiceFinished):
            self._tally.finish(event)
            nothing: dict[str, object] = {"delta": {}} if self._head.kind == "chat" else {"text": ""}
            return opening + self._chunk({"index": event.index, **nothing, **ending_fields(event)}, event.index)
        self._tally.add(event)
        if self._details is not None:
            return opening + self._detailed_chunk(event, self._details[event.index])
        delta = delta_fields(event)
        return b"" if delta is None else self._delta_chunk(event.index, delta)

    def end(self) -> bytes:
        """The end of the stream, after all choices have finished: the usage if it was asked for, and [DONE]."""
        assert self._started
        assert not self._ended
        self._ended = True
        usage = self._tally.usage()
        if not self._include_usage:
            return DONE
        return frame(self._opening + b'],"usage":' + json_line(usage) + b"}") + DONE

    def fail(self, error: BaseException) -> bytes:
        """What takes the place of the rest when the request fails after its headers (FAN-28)."""
        return error_event(error)

    def ping(self) -> bytes:
        """What fills a long silence (FAN-20)."""
        return PING

    def _open(self, prompt: int, scored: PromptScored | None) -> bytes:
        """The first chunks of a prompt's choices."""
        self._unopened.discard(prompt)
        indices = range(prompt * self._head.n, (prompt + 1) * self._head.n)
        return b"".join(self._first_chunk(index, scored) for index in indices)

    def _first_chunk(self, index: int, scored: PromptScored | None) -> bytes:
        head = self._head
        about = {} if index % head.n and head.kind == "chat" else head.of_prompt(index, scored)
        if head.kind == "chat":
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            return self._chunk(choice, index, about)
        echo = head.echo(index)
        logprobs = None if self._details is None else self._details[index].opening(scored)
        if not echo and logprobs is None and not about:
            return b""
        return self._chunk({"index": index, "text": echo, "logprobs": logprobs, "finish_reason": None, **about}, index)

    def _delta_chunk(self, index: int, delta: Mapping[str, object]) -> bytes:
        return self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, index)

    def _detailed_chunk(self, event: Delta, details: ChoiceDetails) -> bytes:
        token_ids = {"token_ids": event.token_ids} if details.token_ids else {}
        logprobs = details.more(event.logprobs)
        delta = delta_fields(event)
        if delta is None and logprobs is None and not (token_ids and event.token_ids):
            return b""
        said: dict[str, object] = {"delta": {"content": ""} if delta is None else delta}
        if self._head.kind == "completion":
            # a completion has no thoughts and calls
            said = {"text": event.text if isinstance(event, TextDelta) else ""}
        choice = {"index": event.index, **said, "logprobs": logprobs, "finish_reason": None, **token_ids}
        return self._chunk(choice, event.index)

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._before_text[index] + json_line(text) + self._after_text + self._usage(index) + b"}\n\n"

    def _chunk(self, choice: Mapping[str, object], index: int, about: Mapping[str, object] = {}) -> bytes:
        """A chunk of one choice; ``about``: what is told beside the choices."""
        beside = b"," + json_line(about)[1:-1] if about else b""
        return frame(self._opening + json_line(choice) + b"]" + beside + self._usage(index) + b"}")

    def _usage(self, index: int) -> bytes:
        if not self._include_usage:
            return b""
        if not self._continuous_usage:
            return b',"usage":null'
        return b',"usage":' + json_line(self._tally.choice_usage(index))


def error_event(error: BaseException) -> bytes:
    """The end of a stream that failed after its headers: the error as the one status code can't tell it (FAN-28)."""
    _, body = error_body(error)
    return frame(body) + DONE


def frame(line: bytes) -> bytes:
    """A server-sent event whose data is ``line``."""
    return b"data: " + line + b"\n\n"
