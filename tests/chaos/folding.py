"""Streams, put together.

Owns: StreamFold, the state machine of chunks, and the form of errors. Must not know: what choices have to say.
"""

from __future__ import annotations

import json
from typing import Any

from calls import Call
from details import Told, require


def error_of(body: Any) -> dict[str, Any]:
    """The error in an envelope."""
    require(isinstance(body, dict) and set(body) == {"error"}, f"no envelope: {body!r}")
    error = body["error"]
    require(set(error) == {"message", "type", "param", "code"}, f"fields of the error: {error!r}")
    require(isinstance(error["message"], str) and error["message"], f"no message: {error!r}")
    require(isinstance(error["type"], str), f"no type: {error!r}")
    return dict(error)


class StreamFold:
    """A stream, event by event: the state machine of its chunks, and what they add up to."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.texts = [""] * call.choices
        self.told = [Told() for _ in self.texts]
        self.endings: list[dict[str, Any] | None] = [None] * call.choices
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.done = False
        self.pings = 0
        self._roles = 0
        self._shared: dict[str, Any] | None = None
        self.tokens = [0] * call.choices

    @property
    def finished(self) -> int:
        """Choices that have."""
        return sum(ending is not None for ending in self.endings)

    def feed(self, event: bytes) -> None:
        """One event, or comment, without the empty line after it."""
        if not event:
            return
        require(not self.done, f"{event!r} after [DONE]")
        if event.startswith(b":"):
            require(event == b": ping", f"comment {event!r}")
            self.pings += 1
            return
        require(event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event, f"event {event!r}")
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            self.done = True
            return
        require(self.error is None, f"{event!r} after an error")
        chunk = json.loads(data)
        if "error" in chunk:
            self.error = error_of(chunk)
            return
        self._feed_chunk(chunk)

    def _feed_chunk(self, chunk: dict[str, Any]) -> None:
        require(self.usage is None, "a chunk after the usage")
        names = ("request_id",) if self._call.kind == "tokens" else ("id", "object", "created", "model")
        shared = {name: chunk[name] for name in names}
        self._shared = self._shared or shared
        require(shared == self._shared, f"{shared} after {self._shared}")
        options = self._call.stream_options
        if not chunk["choices"] and "prompt_logprobs" in chunk and self._call.kind == "tokens":
            self.told[0].feed({}, chunk)
            return
        if not chunk["choices"]:
            require(options.get("include_usage"), "usage that nobody asked for")
            require(self.finished == self._call.choices, "usage before the last finish")
            self.usage = chunk["usage"]
            return
        (choice,) = chunk["choices"]
        index = choice["index"]
        require(self.endings[index] is None, f"choice {index} goes on after its finish: {choice}")
        self._check_usage(chunk, index)
        had = self.told[index].size
        self.told[index].feed(choice, chunk)
        told = self.told[index].size - had
        if self._call.chat and self._roles < self._call.choices:
            require(index == self._roles and choice["delta"] == {"role": "assistant", "content": ""}, f"role: {choice}")
            self._roles += 1
            return
        if choice["finish_reason"] is not None:
            nothing = {"chat": choice.get("delta") == {}, "completion": choice.get("text") == "", "tokens": not told}
            require(nothing[self._call.kind], f"text with a finish: {choice}")
            self.endings[index] = choice
            return
        if self._call.kind == "chat":
            text = choice["delta"].get("content") or ""
            told += len(choice["delta"].get("tool_calls") or ())
        else:
            text = choice.get("text", "")
        require(text or told, f"a delta that tells nothing: {choice}")
        self.texts[index] += text

    def _check_usage(self, chunk: dict[str, Any], index: int) -> None:
        options = self._call.stream_options
        continuous = bool(options.get("continuous_usage_stats"))
        # where choices say nothing but tokens, chunks have no usage that is null
        wanted = continuous if self._call.kind == "tokens" else bool(options.get("include_usage"))
        require(("usage" in chunk) == wanted, f"usage of a chunk: {chunk}")
        if continuous:
            tokens = chunk["usage"]["completion_tokens"]
            require(tokens >= self.tokens[index], f"choice {index} had {self.tokens[index]} tokens, has {tokens}")
            self.tokens[index] = tokens
        else:
            require(chunk.get("usage") is None, f"usage of a chunk: {chunk}")
