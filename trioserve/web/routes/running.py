"""A call to the engine, answered whole or as a stream.

Owns: how a generation becomes a response. Must not know: formats, which its builders are for.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio
from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.errors import EngineStoppingError
from trioserve.web.exchange import exchange
from trioserve.web.pump import WIRE_BATCHES, AnswerMaker, ChunkMaker, fold, pump
from trioserve.web.routes.service import json_response
from trioserve.web.stream import event_stream


@attrs.frozen(kw_only=True)
class Job:
    """A generation, and what is made of its events. The builders are made once it knows its prompts."""

    generation: Generation
    stream: bool
    answer_builder: Callable[[Generation], AnswerMaker]
    chunk_builder: Callable[[Generation], ChunkMaker]


async def run_job(job: Job, ping_interval: float) -> TrioResponse:
    """Enter the generation, and answer. Raises what entering raises, and unless it is streamed what leaving raises."""
    if not job.stream:
        with exchange().closing_scope():
            async with job.generation as generation:
                return json_response(await fold(generation, job.answer_builder(generation)))
        raise EngineStoppingError
    send, receive = trio.open_memory_channel[bytes](WIRE_BATCHES)
    here = exchange()
    await here.nursery.start(pump, job.generation, job.chunk_builder, send, here.closing_scope(), ping_interval)
    return event_stream(receive)
