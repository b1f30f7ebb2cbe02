"""Complaints about other servers, as they were made: streams, and clients that leave. Each test names its case."""

from __future__ import annotations

import gc
import itertools
import json
import random
from typing import Any

import attrs
import pytest
import trio

from trioserve.engine.observer import Observer, RequestReport
from trioserve.params import SamplingParams
from trioserve.testing.device import Draw
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, say, say_ids
from trioserve.testing.http import AsgiExchange
from trioserve.testing.server import CHAT, TEXT, FakeServer, events_of, serving
from trioserve.testing.tokenizer import EOS, ByteTokenizer


class EventReader:
    """Reads the events of a stream one by one."""

    def __init__(self, exchange: AsgiExchange) -> None:
        self._exchange = exchange
        self._events: list[Any] = []

    async def next(self) -> Any:
        """The data of the next event; raises trio.EndOfChannel after the last."""
        while not self._events:
            self._events = events_of(await self._exchange.receive())
        return self._events.pop(0)


def texts_of(events: list[Any], n: int = 1) -> list[str]:
    """The text of each choice."""
    texts = [""] * n
    for chunk in events:
        for choice in chunk["choices"] if chunk != "[DONE]" else ():
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return texts


def finish_reasons(events: list[Any]) -> list[tuple[int, str]]:
    """Index and reason of every choice that ended, in order."""
    choices = [choice for chunk in events if chunk != "[DONE]" for choice in chunk["choices"]]
    return [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"] is not None]


async def test_ninety_tokens_in_ninety_seconds_come_to_their_end() -> None:  # case stream-cut-at-60s
    async with serving(step_seconds=1) as server:
        began = trio.current_time()
        events = await server.stream(CHAT, max_tokens=90)
        assert trio.current_time() - began > 89
        assert texts_of(events) == ["0123456789" * 9]
        assert finish_reasons(events) == [(0, "length")]
        assert events[-1] == "[DONE]"
        await server.assert_idle()


LENGTHS = (2, 9, 1, 50)


async def test_choices_that_end_apart_each_end_once() -> None:  # FAN-19, FAN-20; case n-finish-independently
    async with serving(say(["x" * (length - 1) for length in LENGTHS])) as server:
        *chunks, usage, done = await server.stream(CHAT, n=4, max_tokens=50, stream_options={"include_usage": True})
        await server.assert_idle()
    assert done == "[DONE]"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], sum(LENGTHS))
    ended: list[int] = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in ended
        if choice["finish_reason"] is not None:
            ended.append(choice["index"])
    assert ended == [2, 0, 1, 3]


async def test_a_client_that_leaves_between_two_ends_takes_the_other_choices_along() -> None:
    # FAN-25, FAN-27; case n-finish-independently
    reports: list[RequestReport] = []

    class Reports(Observer):
        def request_ended(self, report: RequestReport) -> None:
            reports.append(report)

    async with serving(say(["x" * (length - 1) for length in LENGTHS])) as server:
        server.engine.add_observer(Reports())
        async with server.open(CHAT, n=4, max_tokens=50, stream=True) as exchange:
            reader, events = EventReader(exchange), []
            while (2, "stop") not in finish_reasons(events) or texts_of(events, 4)[0] != "x":
                events.append(await reader.next())
            assert len(finish_reasons(events)) == 1
            exchange.disconnect()
            await server.assert_idle()
    (report,) = reports
    assert (report.aborted_choices, report.abort_cause) == (3, "left")
    assert server.engine.snapshot().requests == ()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_the_queue_is_never_computed(stream: bool) -> None:
    # FAN-25; case disconnect-before-first-chunk
    options = attrs.evolve(FAKE_OPTIONS, max_running=2)
    async with serving(options=options) as server:
        async with server.open(TEXT, prompt="slow", n=2, max_tokens=100, stream=True) as slow:
            reader = EventReader(slow)
            events = [await reader.next()]
            async with server.open(TEXT, prompt="Q" * 40, max_tokens=2000, stream=stream) as queued:
                await trio.sleep(0.05)
                assert server.engine.statistics().scheduler.waiting == 1
                queued.disconnect()
                await trio.sleep(0.011)
                assert server.engine.statistics().scheduler.waiting == 0
            assert queued.status is None
            # the others notice nothing
            while events[-1] != "[DONE]":
                events.append(await reader.next())
        assert [len(text) for text in texts_of(events, 2)] == [100, 100]
        assert not any(ord("Q") in plan.spans.tokens for plan in server.device.plans)
        await server.assert_idle()
    assert sorted(access.status for access in server.accesses) == [200, 499]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_in_mid_prefill_is_not_computed_to_the_end(stream: bool) -> None:
    # FAN-25; case disconnect-before-first-chunk: 3,000 tokens in steps of 256
    async with serving() as server:
        async with server.open(TEXT, prompt="P" * 3000, max_tokens=20, stream=stream) as exchange:
            await trio.sleep(0.035)
            exchange.disconnect()
            await server.assert_idle()
        computed = sum(len(plan.spans.tokens) for plan in server.device.plans)
        assert 256 * 3 <= computed <= 256 * 5
        assert sum(len(plan.rows.tokens) for plan in server.device.plans) == 0


PIECES = (b"al", b"pha", b"<e", b"nd", b" x", b">", b" tail")


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        (["<end>"], "alpha<end x> tail", "length"),
        (["<end x>"], "alpha", "stop"),
        (["d x", "<end"], "alpha", "stop"),
        (["tail!!"], "alpha<end x> tail", "length"),
        (["pha<", "a<e"], "al", "stop"),
        (["n"], "alpha<e", "stop"),
    ],
)
async def test_a_stop_string_over_several_tokens(stop: list[str], text: str, reason: str) -> None:
    # FAN-22; case stop-split-and-holdback
    script = say_ids(range(259, 259 + len(PIECES)))
    async with serving(script, tokenizer=ByteTokenizer(PIECES)) as server:
        events = await server.stream(CHAT, stop=stop, max_tokens=7)
        (choice,) = (await server.whole(CHAT, stop=stop, max_tokens=7))["choices"]
        await server.assert_idle()
    assert texts_of(events) == [text] == [choice["message"]["content"]]
    assert finish_reasons(events) == [(0, reason)]
    assert choice["finish_reason"] == reason
    # what can't be part of a stop string was not held back
    first = next(text for event in events for text in texts_of([event]) if text)
    assert first == "al"


async def test_characters_over_several_tokens_come_whole_and_once() -> None:  # FAN-22; case utf8-across-tokens
    pieces = (b"\xe4\xb8", b"\x96", b"a", b"\xf0\x9f", b"\x98\x80", b"\xff", b"b", b"\xe4\xb8")
    script = say_ids(range(259, 259 + len(pieces)))
    async with serving(script, tokenizer=ByteTokenizer(pieces)) as server:
        events = await server.stream(CHAT, max_tokens=8)
        (choice,) = (await server.whole(CHAT, max_tokens=8))["choices"]
    # the byte that is no character comes with the token that shows it, and the end is one U+FFFD in both forms
    deltas = [text for event in events for text in texts_of([event]) if text]
    assert deltas == ["世", "a", "😀", "\ufffd", "b", "\ufffd"]
    assert choice["message"]["content"] == "".join(deltas) == b"".join(pieces).decode(errors="replace")


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_envelope_of_a_stream_is_what_strict_clients_need(path: str) -> None:
    # FAN-18, FAN-19; case stream-envelope
    text = "a\nb\r\n\u2028\u2029\x85 data: [DONE]\n\n"
    async with serving(say(text)) as server:
        response = await server.post(
            path, n=2, stream=True, max_tokens=100, **({"prompt": "a"} if path == TEXT else {})
        )
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert not {"content-encoding", "content-length"} & response.headers.keys()
    # every frame is a line and an empty line, wherever a client may see the end of a line
    lines = response.body.decode().splitlines()
    assert lines[1::2] == [""] * (len(lines) // 2)
    *frames, done = lines[::2]
    assert done == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert all(frame.startswith("data: {") for frame in frames)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
    assert texts_of(chunks, 2) == [text] * 2
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        if path == CHAT:
            assert choices[0]["delta"]["role"] == "assistant"
            assert not any("role" in choice["delta"] for choice in choices[1:])
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_thirty_two_streams_do_not_mix() -> None:  # FAN-9, FAN-29; case concurrent-streams
    order = random.Random(32)

    names = [f"<{number:02}>" for number in range(33)]
    tokenizer = ByteTokenizer([name.encode() for name in names])

    def spell(draw: Draw) -> int:
        # the prompt is a name, which is said 50 times
        return draw.prompt[0] if len(draw.generated) < 50 else EOS

    async def read(server: FakeServer, number: int, *, leaves: bool) -> None:
        name, pause = names[number], order.choice([0, 0.001, 0.1, 2])
        async with server.open(TEXT, prompt=[259 + number], max_tokens=1000, stream=True) as exchange:
            reader, events = EventReader(exchange), []
            while not events or events[-1] != "[DONE]":
                events.append(await reader.next())
                (text,) = texts_of(events)
                assert (name * 50).startswith(text)
                if leaves and len(text) > 60:
                    exchange.disconnect()
                    return
                await trio.sleep(pause)
        assert text == name * 50
        assert finish_reasons(events) == [(0, "stop")]

    options = attrs.evolve(FAKE_OPTIONS, max_backlog=16)
    async with serving(spell, options=options, tokenizer=tokenizer) as server:
        async with trio.open_nursery() as nursery:
            for number in range(32):
                nursery.start_soon(lambda number=number: read(server, number, leaves=number % 10 == 0))
            await trio.sleep(0.1)
            # a newcomer does not wait for any of them
            began = trio.current_time()
            async with server.open(TEXT, prompt=[259 + 32], stream=True) as exchange:
                await exchange.receive()
            assert trio.current_time() - began < 5 * 0.01
        await server.assert_idle()


async def test_nothing_crosses_from_one_task_to_another(caplog: pytest.LogCaptureFixture) -> None:
    # FAN-25, FAN-27; case lock-across-tasks: a client that leaves, one that stays, and a deadline. The chaos run has
    # thousands of each.
    moments = itertools.cycle([0.0, 0.005, 0.01, 0.02, 0.025])

    async def leave(server: FakeServer) -> None:
        async with server.open(TEXT, prompt="x", n=3, max_tokens=50, stream=True) as exchange:
            await trio.sleep(next(moments))
            exchange.disconnect()

    async def stay(server: FakeServer) -> None:
        async with server.open(TEXT, prompt="y", n=3, max_tokens=2, stream=True) as exchange:
            assert (await exchange.response()).body.endswith(b"data: [DONE]\n\n")

    async def have_a_deadline(server: FakeServer) -> None:
        with trio.move_on_after(next(moments)):
            await server.engine.complete("z", SamplingParams(n=3, max_tokens=50))

    async with serving() as server:
        for _ in range(100):
            async with trio.open_nursery() as nursery:
                for client in (leave, stay, have_a_deadline):
                    nursery.start_soon(client, server)
        await server.assert_idle()
        assert server.state.scope_count == 0
    gc.collect()  # what was never awaited, or closed in the wrong place, would say so now
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_failure_in_mid_stream_ends_the_siblings_and_not_the_engine() -> None:
    # FAN-23, FAN-28; case mid-stream-error-visible
    class Broken(ByteTokenizer):
        def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
            if token_id == ord("!"):
                raise ValueError("broken parser")
            return super().token_bytes(token_id, skip_special=skip_special)

    async with serving(say(["a" * 49, "bbbbb!", "c"]), tokenizer=Broken()) as server:
        *chunks, error, done = await server.stream(CHAT, n=2, max_tokens=50)
        assert error["error"].keys() >= {"message", "type", "code"}
        assert "broken parser" in error["error"]["message"]
        assert done == "[DONE]"
        assert finish_reasons(chunks) == []
        assert texts_of(chunks, 2) == ["aaaaa", "bbbbb"]
        await server.assert_idle()
        # six tokens each, and a step that was under way
        assert sum(len(plan.rows.tokens) for plan in server.device.plans) <= 2 * 7
        assert (await server.chat(seed=2))["choices"][0]["message"]["content"] == "c"


async def test_a_silent_prefill_is_filled_with_comments_only() -> None:  # FAN-20; case mid-stream-error-visible
    # two steps of 20 s, before the first token
    options = attrs.evolve(FAKE_OPTIONS, max_batch_tokens=32)
    async with serving(count_for_ever, options=options, step_seconds=20) as server:
        response = await server.post(TEXT, prompt=[1] * 64, max_tokens=1, stream=True)
    frames = response.body.decode().split("\n\n")
    assert frames[:2] == [": ping"] * 2
    assert all(frame.startswith(("data: ", ": ping")) for frame in frames if frame)
