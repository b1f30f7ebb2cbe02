"""A call to the engine, answered whole or as a stream.

Owns: how a call becomes a generation, and a generation a response. Must not know: formats, which builders are for.
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol

import trio
from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.errors import EngineStoppingError
from trioserve.web.exchange import exchange
from trioserve.web.pump import WIRE_BATCHES, AnswerMaker, ChunkMaker, fold, pump
from trioserve.web.routes.service import Service, as_written, given_request_id, json_response
from trioserve.web.stream import event_stream
from trioserve.wire.calls import Call, ChatCall
from trioserve.wire.details import Details
from trioserve.wire.tally import Head, Kind


class Builders(Protocol):
    """What makes answers of the events of a call. Asked for one once the generation knows its prompts."""

    def answer_builder(self, generation: Generation) -> AnswerMaker: ...

    def chunk_builder(self, generation: Generation) -> ChunkMaker: ...


def head_of(
    generation: Generation,
    call: Call,
    kind: Kind,
    *,
    echo_texts: tuple[str, ...] = (),
    details: Details | None = None,
) -> Head:
    """What the answer to a call says of itself, once its generation is entered."""
    return Head(
        kind=kind,
        id=generation.request_id,
        created=int(time.time()),
        model=call.model,
        n=generation.n,
        prompt_tokens=tuple(prompt.prompt_tokens for prompt in generation.prompts),
        ranked=call.params.ranked,
        echo_texts=echo_texts,
        details=details,
    )


async def run_chat(service: Service, call: ChatCall, id_prefix: str, builders: Builders) -> TrioResponse:
    """Answer a conversation. Raises what preparing it raises, and as ``run_generation``."""
    with as_written(call.names):
        chat = await service.engine.prepare_chat(call.messages, call.params, tools=call.tools, rendering=call.rendering)
        generation = service.engine.generate(
            chat.prompt,
            chat.params,
            request_id=f"{id_prefix}{uuid.uuid4().hex}",
            alias=given_request_id(),
            output=chat.output,
        )
    return await run_generation(service, call, generation, builders)


async def run_generation(service: Service, call: Call, generation: Generation, builders: Builders) -> TrioResponse:
    """Enter the generation, and answer. Raises what entering raises, and unless it is streamed what leaving raises."""
    with as_written(call.names):
        if not call.stream:
            with exchange().closing_scope():
                async with generation:
                    return json_response(await fold(generation, builders.answer_builder(generation)))
            raise EngineStoppingError
        send, receive = trio.open_memory_channel[bytes](WIRE_BATCHES)
        here, ping_interval = exchange(), service.options.ping_interval
        await here.nursery.start(pump, generation, builders.chunk_builder, send, here.closing_scope(), ping_interval)
        return event_stream(receive)
