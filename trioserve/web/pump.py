"""From a generation's events to the bytes of a response.

Owns: the pump, the task that runs one streamed request inside its exchange's nursery.
Must not know: connections, routes.

The pump owns the generation, so whatever ends the exchange ends the request. It says ``started`` once the
request is admitted: what it raises before becomes a response with a real status, what goes wrong later becomes
an event of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from trioserve.engine.generation import Generation
from trioserve.errors import DeadlineError, EngineStoppingError, InternalError, TrioserveError
from trioserve.events import Event

# One batch being written and one ready. More would only be memory between a slow reader and the scheduler.
WIRE_BATCHES = 2

logger = logging.getLogger(__name__)


class AnswerMaker(Protocol):
    """Makes one answer of all events: ``feed`` for each, then ``answer``."""

    def feed(self, event: Event) -> None: ...

    def answer(self) -> bytes: ...


class ChunkMaker(Protocol):
    """Makes a stream of events: ``start``, ``feed`` for each, then ``end``, each returning complete frames to write.

    A stream that fails half way gets ``fail`` in place of the rest; a long silence is filled with ``ping``.
    """

    def start(self) -> bytes: ...

    def feed(self, event: Event) -> bytes: ...

    def end(self) -> bytes: ...

    def fail(self, error: TrioserveError) -> bytes: ...

    def ping(self) -> bytes: ...


async def fold(generation: Generation, builder: AnswerMaker) -> bytes:
    """The whole answer of an entered generation."""
    async for event in generation:
        builder.feed(event)
    return builder.answer()


async def pump(
    block: Generation,
    make_builder: Callable[[Generation], ChunkMaker],
    wire: trio.MemorySendChannel[bytes],
    scope: trio.CancelScope,
    ping_interval: float,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run ``block`` and send its stream to ``wire``: all chunks, or an error event, and always an end.

    Args:
        block: a generation that was not entered yet.
        make_builder: makes the chunk builder, once the generation knows its prompts.
        wire: gets one item of bytes for each wake-up, however many events that is.
        scope: cancelled when the server is about to close all connections, and at the request's deadline; ends the
            stream with an error event.
        ping_interval: seconds of silence after which the builder's sign of life is sent.

    Raises (before started only):
        TrioserveError: the request was refused.
    """
    admitted = False
    with wire:
        try:
            with scope:
                async with block as generation:
                    builder = make_builder(generation)
                    admitted = True
                    task_status.started()
                    await _send_events(generation, builder, wire, ping_interval)
            if scope.cancelled_caught:
                raise DeadlineError if trio.current_time() >= scope.deadline else EngineStoppingError
        except TrioserveError as error:
            if not admitted:
                raise
            if isinstance(error, InternalError):
                logger.error("request %s failed", block.request_id, exc_info=error)
            await wire.send(builder.fail(error))


async def _send_events(
    generation: Generation, builder: ChunkMaker, wire: trio.MemorySendChannel[bytes], ping_interval: float
) -> None:
    batch = builder.start()
    while True:
        if batch:
            await wire.send(batch)
        try:
            batch = await _next_batch(generation, builder, ping_interval)
        except trio.EndOfChannel:
            await wire.send(builder.end())
            return


async def _next_batch(generation: Generation, builder: ChunkMaker, ping_interval: float) -> bytes:
    """The chunks of all events that are there, after waiting for the first; a sign of life after a long silence."""
    with trio.move_on_after(ping_interval) as silence:
        parts = [builder.feed(await generation.receive())]
    if silence.cancelled_caught:
        return builder.ping()
    while True:
        try:
            parts.append(builder.feed(generation.receive_nowait()))
        except (trio.WouldBlock, trio.EndOfChannel):
            return b"".join(parts)
