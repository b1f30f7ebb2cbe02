"""What clients do: each kind of visit is one connection, from its beginning to its end.

Owns: the kinds, and how often each comes. Must not know: how many there are, what is measured besides.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import attrs
import trio
from answers import Outcome, Received, check_envelope, check_partial, check_refusal, check_response
from calls import MAX_BODY_SIZE, Call, bulk_call, long_call, not_http, random_bad_call, random_call
from census import phase_of, wait_until
from details import require
from figures import Figures
from reading import Reading
from vectors import check_vectors
from world import MODEL, chat_prompt, text_prompt

from trioserve.engine.engine import Engine
from trioserve.testing.http import RawClient, request_bytes

STALL_SECONDS: Final = 3.0
"""How long the server waits for a client that reads nothing. Longer than a busy machine keeps a client from reading."""
_SMALL_BUFFER: Final = 2048
_RELEASE_SECONDS: Final = 5.0
"""A disconnect has to reach the scheduler within this: the load makes it long, not the server."""


@attrs.define(eq=False)
class Visit:
    """One client."""

    number: int
    rng: random.Random
    engine: Engine
    port: int
    figures: Figures

    async def connect(self, *, receive_buffer: int | None = None) -> RawClient:
        self.figures.connections += 1
        return await RawClient.connect(self.port, receive_buffer=receive_buffer)

    async def send(self, client: RawClient, call: Call) -> None:
        """Send the request of a call, all at once."""
        self.figures.requests += 1
        await client.send(request_bytes("POST", call.path, body=call.encoded()))

    async def check(self, call: Call, received: Received) -> None:
        """Check a complete response, and count it."""
        outcome: Outcome = await check_response(call, received)
        figures = self.figures
        figures.outcomes[outcome.name] += 1
        figures.choices += outcome.choices
        figures.completion_tokens += outcome.completion_tokens
        figures.cached_tokens += outcome.cached_tokens
        figures.pings += received.body.count(b"\n: ping\n")

    async def leave(self, client: RawClient, reading: Reading, call: Call, phase: str) -> None:
        """Leave in one way or another, and see that nothing of the request stays."""
        manner = self.rng.choice(("close", "reset", "half-close"))
        self.figures.disconnects[f"{phase}, {manner}"] += 1
        if manner == "reset":
            client.reset()
        elif manner == "close":
            client.close()
        else:
            # to the server that is a client that has left, unless the answer is out already
            client.half_close()
            await reading.whole()
        if reading.complete:
            await self.check(call, reading.received())
        else:
            self.figures.outcomes["left"] += 1
            await check_partial(call, reading.received())
        await self.wait_until_released(call)

    async def wait_until_released(self, call: Call, seconds: float = _RELEASE_SECONDS) -> None:
        """Wait until the scheduler knows nothing of a call, which has a seed of its own."""
        seed = call.seed
        assert seed is not None
        released = await wait_until(lambda: phase_of(self.engine, seed) is None, seconds)
        require(released, f"still {phase_of(self.engine, seed)} after its client has left")


async def ask_and_wait(visit: Visit) -> None:
    """A few calls, one after the other."""
    reading: Reading | None = None
    with await visit.connect() as client:
        for _ in range(visit.rng.choice((1, 1, 2, 3))):
            call = random_call(visit.rng)
            await visit.send(client, call)
            reading = Reading(client, after=reading)
            await visit.check(call, await reading.whole())


async def pipeline(visit: Visit) -> None:
    """A few calls, all at once."""
    calls = [random_call(visit.rng) for _ in range(visit.rng.randint(2, 4))]
    reading: Reading | None = None
    with await visit.connect() as client:
        for call in calls:
            # what waits its turn must not be large, or the server cuts the client off
            call.body.pop("user", None)
        await client.send(b"".join(request_bytes("POST", call.path, body=call.encoded()) for call in calls))
        visit.figures.requests += len(calls)
        for call in calls:
            reading = Reading(client, after=reading)
            await visit.check(call, await reading.whole())


async def pipeline_and_leave(visit: Visit) -> None:
    """Two calls at once, and gone during the first."""
    first, second = (long_call(visit.rng, stream=True) for _ in range(2))
    with await visit.connect() as client:
        await visit.send(client, first)
        await visit.send(client, second)
        reading = Reading(client)
        for _ in range(visit.rng.randint(0, 10)):
            await reading.more()
        await visit.leave(client, reading, first, "pipelined")
        await visit.wait_until_released(second)


async def leave_in_body(visit: Visit) -> None:
    """Gone before the request is complete."""
    call = long_call(visit.rng, stream=visit.rng.random() < 0.5)
    request = request_bytes("POST", call.path, body=call.encoded())
    with await visit.connect() as client:
        visit.figures.requests += 1
        await client.send(request[: visit.rng.randrange(1, len(request))])
        await trio.sleep(visit.rng.choice((0, 0.002, 0.01)))
        await visit.leave(client, Reading(client), call, "body incomplete")


async def leave_at_once(visit: Visit) -> None:
    """Gone some turns of the event loop after the request: amid parsing, tokenizing, submitting or being admitted."""
    call = long_call(visit.rng, stream=visit.rng.random() < 0.5, prompt_tokens=visit.rng.choice((10, 200)))
    with await visit.connect() as client:
        await visit.send(client, call)
        for _ in range(visit.rng.randrange(25)):
            await trio.lowlevel.checkpoint()
        await visit.leave(client, Reading(client), call, "at once")


async def leave_in_engine(visit: Visit) -> None:
    """Gone, without having read anything, when the request is in a certain phase."""
    wanted = visit.rng.choice(("queued", "prefill", "decoding"))
    size = 200 if wanted == "prefill" else 20
    call = long_call(visit.rng, stream=visit.rng.random() < 0.5, prompt_tokens=size)
    assert call.seed is not None
    with await visit.connect() as client:
        await visit.send(client, call)
        seed = call.seed
        if await wait_until(lambda: phase_of(visit.engine, seed) is not None, 1):
            # "decoding" is the last one: there is no use in waiting beyond
            await wait_until(lambda: phase_of(visit.engine, seed) in (wanted, "decoding", None), math.inf)
        phase = phase_of(visit.engine, seed) or "refused or ended"
        await visit.leave(client, Reading(client), call, phase)


async def leave_in_answer(visit: Visit) -> None:
    """Gone in the middle of the answer, or at one of its edges."""
    marks = {
        "first byte": b"",
        "mid-stream": b"",
        "finish chunk": b'"finish_reason":"',
        "[DONE]": b"data: [DONE]",
        "mid-answer": b"",
    }
    phase, mark = visit.rng.choice(tuple(marks.items()))
    if phase == "mid-answer":
        call = bulk_call(visit.rng, stream=False)
    else:
        # short ones end, so that there is a finish to see
        call = long_call(visit.rng, stream=True, max_tokens=20 if mark else 150)
    with await visit.connect(receive_buffer=_SMALL_BUFFER if phase == "mid-answer" else None) as client:
        await visit.send(client, call)
        reading = Reading(client)
        pieces = 1 if phase == "first byte" else visit.rng.randint(2, 80)
        while (mark not in reading.body or pieces > 0) and await reading.more():
            pieces -= 1
            if mark and mark in reading.body:
                break
        await visit.leave(client, reading, call, phase if reading.status == 200 else "refused or ended")


async def give_up(visit: Visit) -> None:
    """Wait for some time, and no longer."""
    call = long_call(visit.rng, stream=visit.rng.random() < 0.5, max_tokens=visit.rng.choice((5, 30, 100)))
    with await visit.connect() as client:
        await visit.send(client, call)
        reading = Reading(client)
        with trio.move_on_after(visit.rng.expovariate(20)) as deadline:
            await reading.whole()
        if deadline.cancelled_caught:
            await visit.leave(client, reading, call, "deadline")
        else:
            await visit.check(call, reading.received())


async def cancel(visit: Visit) -> None:
    """End a request, or one choice of it, by its name on another connection; and take what there is."""
    call = long_call(visit.rng, stream=visit.rng.random() < 0.5, prompt_tokens=visit.rng.choice((10, 200)))
    call = attrs.evolve(call, is_cancelled=True)
    # which candidates were cancelled is told of choices only
    call.body.pop("best_of", None)
    name = f"visit-{visit.number}"
    request = request_bytes("POST", call.path, headers={"X-Request-Id": name}, body=call.encoded())
    index = visit.rng.randrange(call.choices) if visit.rng.random() < 0.5 else None
    target = f"/v1/requests/{name}" if index is None else f"/v1/requests/{name}/choices/{index}"
    with await visit.connect() as client, await visit.connect() as other:
        visit.figures.requests += 2
        await client.send(request)
        await trio.sleep(visit.rng.choice((0, 0.001, 0.01)))
        await wait_until(lambda: phase_of(visit.engine, call.body["seed"]) is not None, visit.rng.choice((0, 0.5)))
        await other.send(request_bytes("DELETE", target))
        answer = await Reading(other).whole()
        reading, steps = Reading(client), visit.engine.statistics().scheduler.steps
        received = await reading.whole()
        steps = visit.engine.statistics().scheduler.steps - steps
        require(reading.headers.get("x-request-id") == name, f"no X-Request-Id in {reading.headers}")
        await visit.check(call, received)
        if answer.status == 404:
            check_envelope(answer, 404)
            require(b'"cancelled"' not in received.body, "cancelled, though there was nothing to cancel")
            visit.figures.outcomes["cancelled too late or too early"] += 1
            return
        require(answer.complete and answer.status == 200, f"DELETE answers {answer}")
        if received.status == 200:
            ended = received.body.count(b'"finish_reason":"cancelled"')
            require(index is None or ended <= 1, f"{ended} choices were cancelled in place of one")
            require(ended or steps < call.body["max_tokens"] / 2, f"cancelled, and went on for {steps} steps")
            visit.figures.outcomes["cancelled" if ended else "cancelled, and finished all the same"] += 1


async def read_slowly(visit: Visit) -> None:
    """Take everything, a little at a time."""
    stream = visit.rng.random() < 0.7
    call = bulk_call(visit.rng, stream=stream) if visit.rng.random() < 0.4 else long_call(visit.rng, stream=stream)
    with await visit.connect(receive_buffer=_SMALL_BUFFER) as client:
        await visit.send(client, call)
        await visit.check(call, await Reading(client, pause=visit.rng.choice((0.001, 0.003, 0.005))).whole())
        visit.figures.outcomes["read slowly to the end"] += 1


async def stop_reading(visit: Visit) -> None:
    """Take a little, then nothing more, but stay."""
    stream = visit.rng.random() < 0.7
    call = bulk_call(visit.rng, stream=stream)
    with await visit.connect(receive_buffer=_SMALL_BUFFER) as client:
        await visit.send(client, call)
        reading = Reading(client)
        for _ in range(visit.rng.randint(1, 5)):
            await reading.more()
        # nobody stalls as long as there is nothing to read: the request may wait its turn for a while
        await visit.wait_until_released(call, seconds=math.inf)
        await trio.sleep(2 * STALL_SECONDS)
        received = await reading.whole()
        if received.status != 200:
            await visit.check(call, received)
            return
        require(not received.complete, f"a client that reads nothing got {len(received.body)} bytes")
        await check_partial(call, received)
        visit.figures.outcomes["cut off: reads nothing"] += 1


async def upload_oddly(visit: Visit) -> None:
    """A call whose body comes in pieces, in chunks, or only when it is asked for."""
    call = random_call(visit.rng)
    body = call.encoded()
    headers = {"Content-Length": str(len(body))}
    form = visit.rng.choice(("pieces", "chunked", "expect"))
    if form == "chunked":
        headers = {"Transfer-Encoding": "chunked"}
    elif form == "expect":
        headers["Expect"] = "100-continue"
    with await visit.connect() as client:
        visit.figures.requests += 1
        await client.send(request_bytes("POST", call.path, headers=headers))
        reading = Reading(client)
        if form == "expect":
            await reading.more()
            require(reading.continued, "no 100 Continue")
        size = visit.rng.choice((100, 1000, 50_000))
        for begin in range(0, len(body), max(size, len(body) // 10)):
            piece = body[begin : begin + max(size, len(body) // 10)]
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if form == "chunked" else piece)
            await trio.sleep(0.001)
        if form == "chunked":
            await client.send(b"0\r\n\r\n")
        await visit.check(call, await reading.whole())


async def ask_wrongly(visit: Visit) -> None:
    """A request that must be refused, and after it perhaps one that must not."""
    bad = random_bad_call(visit.rng)
    with await visit.connect() as client:
        visit.figures.requests += 1
        await client.send(request_bytes(bad.method, bad.path, body=bad.body))
        reading = Reading(client)
        check_refusal(await reading.whole(), bad)
        visit.figures.outcomes[f"refused, {bad.status}"] += 1
        if len(bad.body) < 1000 and visit.rng.random() < 0.5:
            call = random_call(visit.rng)
            await visit.send(client, call)
            await visit.check(call, await Reading(client, after=reading).whole())


async def send_too_much(visit: Visit) -> None:
    """A body over the limit, with and without saying so."""
    announced = visit.rng.random() < 0.5
    size = MAX_BODY_SIZE + visit.rng.choice((1, 100_000))
    head = {"Content-Length": str(size)} if announced else {"Transfer-Encoding": "chunked"}

    async def send_all() -> None:
        # the server may have had enough before all is sent
        with suppress(BrokenPipeError, ConnectionResetError):
            await client.send(request_bytes("POST", "/v1/completions", headers=head))
            for _ in range(0, size, 10_000):
                await client.send(bytes(10_000) if announced else b"2710\r\n" + bytes(10_000) + b"\r\n")
            if not announced:
                await client.send(b"0\r\n\r\n")

    with await visit.connect() as client:
        visit.figures.requests += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            check_envelope(await Reading(client).whole(), 413)
            nursery.cancel_scope.cancel()
        visit.figures.outcomes["refused, 413"] += 1


async def talk_nonsense(visit: Visit) -> None:
    """Bytes that are no request of ours."""
    data, status = not_http(visit.rng)
    with await visit.connect() as client:
        visit.figures.requests += 1
        await client.send(data)
        check_envelope(await Reading(client).whole(), status)
        visit.figures.outcomes[f"refused, {status}"] += 1
        with suppress(ConnectionResetError):
            require(not await client.receive(), "the connection stays open after nonsense")


async def look_around(visit: Visit) -> None:
    """The routes that cost nothing."""
    reading: Reading | None = None
    with await visit.connect() as client:
        for path in visit.rng.sample(("/health", "/version", "/v1/models", f"/v1/models/{visit.engine.model.id}"), 2):
            visit.figures.requests += 1
            await client.send(request_bytes("GET", path))
            reading = Reading(client, after=reading)
            received = await reading.whole()
            require(received.complete and received.status == 200, f"{path} answers {received}")
            visit.figures.outcomes["looked around"] += 1


async def ask_for_vectors(visit: Visit) -> None:
    """Embeddings of some texts; or gone before they are there."""
    texts = ["".join(visit.rng.choices("abc ", k=visit.rng.randint(1, 200))) for _ in range(visit.rng.randint(1, 3))]
    body = {"model": MODEL, "input": texts[0] if len(texts) == 1 else texts}
    with await visit.connect() as client:
        visit.figures.requests += 1
        await client.send(request_bytes("POST", "/v1/embeddings", body=json.dumps(body).encode()))
        if visit.rng.random() < 0.3:
            await trio.sleep(visit.rng.choice((0, 0.001, 0.01)))
            visit.figures.outcomes["left"] += 1
            return
        received = await Reading(client).whole()
        if received.status == 429:
            check_envelope(received, 429)
            visit.figures.outcomes["queue full"] += 1
            return
        require(received.status == 200, f"/v1/embeddings answers {received}")
        check_vectors([text_prompt(text) for text in texts], json.loads(received.body))
        visit.figures.outcomes["vectors"] += 1


async def ask_for_tokens(visit: Visit) -> None:
    """A text to tokens, and back."""
    text = "".join(visit.rng.choices("ab é😀", k=visit.rng.randint(0, 300)))
    chats = visit.rng.random() < 0.3
    asked = {"messages": [{"role": "user", "content": text}]} if chats else {"prompt": text}
    tokens = chat_prompt([("user", text)]) if chats else text_prompt(text)
    with await visit.connect() as client:
        visit.figures.requests += 2
        await client.send(request_bytes("POST", "/tokenize", body=json.dumps(asked).encode()))
        reading = Reading(client)
        received = await reading.whole()
        require(received.status == 200, f"/tokenize answers {received}")
        require(json.loads(received.body)["tokens"] == list(tokens), f"{text!r} is {received.body!r}")
        asked = {"tokens": list(text.encode())}
        await client.send(request_bytes("POST", "/detokenize", body=json.dumps(asked).encode()))
        received = await Reading(client, after=reading).whole()
        require(received.status == 200 and json.loads(received.body) == {"prompt": text}, f"{received}")
        visit.figures.outcomes["tokens"] += 1


async def say_nothing(visit: Visit) -> None:
    """Connect, and leave."""
    with await visit.connect() as client:
        await trio.sleep(visit.rng.choice((0, 0.005)))
        if visit.rng.random() < 0.5:
            client.reset()
    visit.figures.outcomes["said nothing"] += 1


Behaviour = Callable[[Visit], Awaitable[None]]

BEHAVIOURS: Final[dict[Behaviour, float]] = {
    ask_and_wait: 40,
    pipeline: 5,
    pipeline_and_leave: 2,
    leave_in_body: 4,
    leave_at_once: 6,
    leave_in_engine: 10,
    leave_in_answer: 10,
    give_up: 8,
    cancel: 4,
    read_slowly: 2,
    stop_reading: 1,
    upload_oddly: 4,
    ask_wrongly: 6,
    send_too_much: 1,
    talk_nonsense: 1.5,
    look_around: 2,
    ask_for_vectors: 2,
    ask_for_tokens: 1.5,
    say_nothing: 1.5,
}
"""How often each comes, in any unit."""
