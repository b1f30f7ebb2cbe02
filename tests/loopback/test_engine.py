"""The real HTTP stack in front of a real engine: sockets, the official client, and a device in its own thread."""

from __future__ import annotations

import json
import logging
import threading
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import openai
import pytest
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import Engine, ModelInfo
from trioserve.engine.observer import AbortCause, ChoiceReport, Observer, RequestReport
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.errors import DeviceError
from trioserve.params import SamplingParams
from trioserve.step import StepPlan, StepResult
from trioserve.testing.engine import FAKE_MODEL, FAKE_TEMPLATE, open_fake_engine, say
from trioserve.testing.http import RawClient, request_bytes
from trioserve.testing.tokenizer import EOS, BrokenTokenizer, ByteTokenizer
from trioserve.text.template import ChatTemplate
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve
from trioserve.web.shutdown import Shutdown

STEP_SECONDS = 0.002


@attrs.define(eq=False)
class Served:
    engine: Engine
    port: int
    shutdown: Shutdown

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)


@asynccontextmanager
async def serving(block: EngineBlock) -> AsyncIterator[Served]:
    options = ServeOptions(port=0, graceful_timeout=0.2)
    with trio.fail_after(20), bind(options) as listeners:
        async with block as engine, trio.open_nursery() as nursery:
            shutdown = Shutdown()
            await nursery.start(
                lambda task_status: serve(
                    engine, options, listeners=listeners, shutdown=shutdown, task_status=task_status
                )
            )
            yield Served(engine, listeners.port, shutdown)
            shutdown.begin(0)


async def until(condition: Callable[[], bool]) -> float:
    """Seconds until something holds; the clock of the test is real."""
    begin = trio.current_time()
    while not condition():  # noqa: ASYNC110  # what is waited for is another library's state
        await trio.sleep(STEP_SECONDS / 4)
    return trio.current_time() - begin


async def test_the_official_client_gets_n_answers() -> None:
    block, _ = open_fake_engine(say(["red", "green", "blue", "grey"]), step_seconds=STEP_SECONDS)
    async with serving(block) as served:
        with served.client() as client:
            answer = await trio.to_thread.run_sync(
                lambda: client.chat.completions.create(
                    model=FAKE_MODEL, messages=[{"role": "user", "content": "go"}], n=4, temperature=1
                )
            )
    assert [choice.message.content for choice in answer.choices] == ["red", "green", "blue", "grey"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 + 5 + 4 + 4 + 4


async def test_the_official_client_gets_the_best_of_more_candidates() -> None:  # FAN-32
    logprobs = (-3.0, -1.0, -2.0)
    block, _ = open_fake_engine(
        say(["red", "green", "blue"]), step_seconds=STEP_SECONDS, score=lambda draw, token: logprobs[draw.seed]
    )

    def ask(client: openai.OpenAI) -> tuple[Any, Any]:
        completion = client.completions.create(model=FAKE_MODEL, prompt="go", n=2, best_of=3)
        messages: Any = [{"role": "user", "content": "go"}]
        chat = client.chat.completions.create(model=FAKE_MODEL, messages=messages, extra_body={"best_of": 3})
        with pytest.raises(openai.BadRequestError, match="best_of must be n when stream is true") as caught:
            client.completions.create(model=FAKE_MODEL, prompt="go", best_of=3, stream=True)
        assert caught.value.param == "best_of"
        return completion, chat

    async with serving(block) as served:
        with served.client() as client:
            completion, chat = await trio.to_thread.run_sync(ask, client)
    assert [(choice.index, choice.text, choice.mean_logprob) for choice in completion.choices] == [
        (0, "green", -1.0),
        (1, "blue", -2.0),
    ]
    assert [choice.message.content for choice in chat.choices] == ["green"]
    for answer, kept in ((completion, 6 + 5), (chat, 6)):
        assert answer.usage.completion_tokens == 4 + 6 + 5
        assert answer.usage.completion_tokens_details.discarded_tokens == 4 + 6 + 5 - kept


async def test_the_official_client_gets_a_stream_with_the_right_indices() -> None:
    def read(client: openai.OpenAI) -> list[Any]:
        return list(
            client.chat.completions.create(
                model=FAKE_MODEL,
                messages=[{"role": "user", "content": "go"}],
                n=3,
                stream=True,
                stream_options={"include_usage": True},
            )
        )

    block, _ = open_fake_engine(say(["red", "green", "blue"]), step_seconds=STEP_SECONDS)
    async with serving(block) as served:
        with served.client() as client:
            chunks = await trio.to_thread.run_sync(read, client)
    texts, finishes = ["", "", ""], []
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes.append((choice.index, choice.finish_reason))
    assert texts == ["red", "green", "blue"]
    assert sorted(finishes) == [(0, "stop"), (1, "stop"), (2, "stop")]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [15]


async def test_the_official_client_raises_what_the_server_says() -> None:
    def ask(client: openai.OpenAI, **fields: Any) -> Any:
        return client.completions.create(**{"model": FAKE_MODEL, "prompt": "x", **fields})

    block, _ = open_fake_engine(say("ok"), step_seconds=STEP_SECONDS)
    async with serving(block) as served:
        with served.client() as client:
            with pytest.raises(openai.NotFoundError, match="does not exist here"):
                await trio.to_thread.run_sync(lambda: ask(client, model="nope"))
            with pytest.raises(openai.BadRequestError, match="n must be at most 128") as caught:
                await trio.to_thread.run_sync(lambda: ask(client, n=129))
    assert caught.value.param == "n"


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_disconnect_frees_all_pages_within_one_step(stream: bool, reset: bool) -> None:  # FAN-25
    body = json.dumps({"model": FAKE_MODEL, "prompt": "p" * 300, "n": 16, "max_tokens": 3000, "stream": stream})
    block, device = open_fake_engine(step_seconds=0.05)
    async with serving(block) as served:
        client = await RawClient.connect(served.port)
        await client.send(request_bytes("POST", "/v1/completions", body=body.encode()))
        await until(lambda: served.engine.statistics().scheduler.running == 16)
        steps = len(device.plans)
        client.reset() if reset else client.close()
        await until(lambda: served.engine.statistics().scheduler.pages_held == 0)
        # the step that ran when the client left, and no other
        assert len(device.plans) <= steps + 1
        assert served.engine.statistics().requests == 0
        served.engine.check()


class Reports(Observer):
    """Remembers how every request ended."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        self.aborted: Counter[AbortCause | None] = Counter()

    def choice_finished(self, report: ChoiceReport) -> None:
        self.finished[report.reason] += 1

    def request_ended(self, report: RequestReport) -> None:
        self.aborted[report.abort_cause] += report.aborted_choices


async def test_every_disconnect_of_many_is_one_abort_and_no_answer_is(caplog: pytest.LogCaptureFixture) -> None:
    # FAN-25, FAN-27; case abort-needs-shield: 200 that leave, 16 at a time, and every fifth time one that stays
    reports, numbers = Reports(), iter(range(200))
    body = {"model": FAKE_MODEL, "prompt": "count forever", "n": 2, "stream": True}
    block, device = open_fake_engine(step_seconds=STEP_SECONDS)

    async def leave(served: Served, number: int) -> None:
        client = await RawClient.connect(served.port)
        data = json.dumps({**body, "max_tokens": 4000}).encode()
        await client.send(request_bytes("POST", "/v1/completions", body=data))
        for _ in range(3):
            await client.receive_until(b"data: ")
        client.reset() if number % 2 else client.close()

    async def stay(served: Served) -> None:
        data = json.dumps({**body, "max_tokens": 5}).encode()
        with await RawClient.connect(served.port) as client:
            await client.send(request_bytes("POST", "/v1/completions", body=data))
            assert (await client.response()).body.endswith(b"data: [DONE]\n\n")

    async def clients(served: Served) -> None:
        for number in numbers:
            await leave(served, number)
            if number % 5 == 0:
                await stay(served)

    async with serving(block) as served:
        served.engine.add_observer(reports)
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(clients, served)
        with trio.fail_after(1):
            await until(lambda: served.engine.statistics().requests == 0)
            await until(lambda: served.engine.statistics().scheduler.pages_held == 0)
        statistics = served.engine.statistics().scheduler
        assert (statistics.running, statistics.prefilling, statistics.waiting, statistics.paused) == (0, 0, 0, 0)
        assert statistics.pages_free + statistics.pages_cached == device.info.page_count
        served.engine.check()
    assert reports.aborted == {"left": 2 * 200, None: 0}
    assert reports.finished == {"length": 2 * 40}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_official_client_raises_what_goes_wrong_in_mid_stream() -> None:
    # FAN-23, FAN-28; case mid-stream-error-visible
    def read(client: openai.OpenAI, texts: list[str]) -> None:
        chunks = client.chat.completions.create(
            model=FAKE_MODEL, messages=[{"role": "user", "content": "go"}], n=2, max_tokens=50, stream=True
        )
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                assert choice.finish_reason is None

    texts = ["", ""]
    block, _ = open_fake_engine(say(["a" * 49, "bbbbbx", "ok"]), tokenizer=BrokenTokenizer(), step_seconds=STEP_SECONDS)
    async with serving(block) as served:
        with served.client() as client:
            with pytest.raises(openai.APIError, match="Choice 1 failed: ValueError: no x please") as caught:
                await trio.to_thread.run_sync(read, client, texts)
            assert caught.value.code == "generation_failed"
            assert texts == ["aaaaa", "bbbbb"]
            await until(lambda: served.engine.statistics().scheduler.running == 0)
            answer = await trio.to_thread.run_sync(
                lambda: client.completions.create(model=FAKE_MODEL, prompt="go", seed=2)
            )
    assert answer.choices[0].text == "ok"


@attrs.define(eq=False)
class ThreadDevice:
    """An abc.Device that says "a", and notes what happens to it."""

    step_seconds: float = 0.0
    fails_at: int | None = None
    threads: set[int] = attrs.field(factory=set)
    interrupted: threading.Event = attrs.field(factory=threading.Event)
    closed: bool = False
    info: DeviceInfo = DeviceInfo(  # noqa: RUF009  # frozen
        name="thread", vocab_size=259, context_length=4096, page_size=16, page_count=512
    )

    def run(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.get_ident())
        if plan.number == self.fails_at:
            raise RuntimeError("out of order")
        if self.interrupted.wait(self.step_seconds):
            raise DeviceError("interrupted")
        return StepResult(plan.number, array("i", [ord("a")] * len(plan.rows.tokens)))

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        assert threading.get_ident() not in self.threads
        self.closed = True


def on_thread(device: ThreadDevice) -> EngineBlock:
    async def load() -> tuple[ModelInfo, ThreadDevice]:
        await trio.lowlevel.checkpoint()
        template = ChatTemplate(FAKE_TEMPLATE, bos_token="", eos_token="")
        return ModelInfo(id=FAKE_MODEL, tokenizer=ByteTokenizer(), template=template), device

    return EngineBlock(load, EngineOptions())


async def test_the_device_runs_in_one_thread_of_its_own() -> None:
    device = ThreadDevice()
    async with on_thread(device) as engine:
        answer = await engine.complete("x", SamplingParams(n=3, max_tokens=20))
        await engine.complete("y", SamplingParams(max_tokens=20))
    assert [choice.text for choice in answer.choices] == ["a" * 20] * 3
    assert len(device.threads) == 1
    assert threading.get_ident() not in device.threads
    assert device.closed


async def test_leaving_an_engine_interrupts_the_step_that_runs() -> None:
    device = ThreadDevice(step_seconds=60)
    begin = time.monotonic()
    async with on_thread(device) as engine, engine.generate("x", SamplingParams(n=2)):
        await until(lambda: bool(device.threads))
    assert time.monotonic() - begin < 5
    assert device.closed


async def test_a_step_that_fails_in_the_thread_ends_the_engine() -> None:
    device = ThreadDevice(fails_at=3)
    with pytest.raises(DeviceError, match="step 3: RuntimeError: out of order"):
        async with on_thread(device) as engine:
            await engine.complete("x", SamplingParams(max_tokens=20, ignore_eos=True))
    assert device.closed
    assert EOS not in device.threads


async def test_an_event_loop_serves_while_the_device_computes() -> None:
    device = ThreadDevice(step_seconds=0.3)
    async with serving(on_thread(device)) as served:
        async with served.engine.generate("x", SamplingParams(n=2)):
            await until(lambda: bool(device.threads))
            begin = trio.current_time()
            client = await RawClient.connect(served.port)
            await client.send(request_bytes("GET", "/health"))
            await client.receive_until(b'{"status":"ok"}')
            assert trio.current_time() - begin < 0.2
            client.close()


async def test_requests_that_a_shutdown_cuts_off_are_counted_as_such() -> None:  # case shutdown-inflight
    reports = Reports()
    block, _ = open_fake_engine(step_seconds=STEP_SECONDS)
    async with serving(block) as served:
        served.engine.add_observer(reports)
        body = {"model": FAKE_MODEL, "prompt": "x", "n": 2, "max_tokens": 4000}
        with await RawClient.connect(served.port) as streaming, await RawClient.connect(served.port) as whole:
            for client, stream in ((streaming, True), (whole, False)):
                await client.send(
                    request_bytes("POST", "/v1/completions", body=json.dumps({**body, "stream": stream}).encode())
                )
            await until(lambda: served.engine.statistics().scheduler.running == 4)
            with await RawClient.connect(served.port) as leaving:
                await leaving.send(request_bytes("POST", "/v1/completions", body=json.dumps(body).encode()))
                await until(lambda: served.engine.statistics().requests == 3)
            await until(lambda: reports.aborted == {"left": 2})
            served.shutdown.begin()
            assert b'"server_stopping"' in await streaming.receive_all()
            assert b'"server_stopping"' in await whole.receive_all()
    assert reports.aborted == {"left": 2, "shutdown": 4}


class WatchedTemplate(ChatTemplate):
    """Remembers in which thread it was rendered without a bound."""

    def __init__(self, source: str) -> None:
        super().__init__(source, bos_token="", eos_token="")
        self.threads: list[int] = []

    def render(self, messages: Sequence[Mapping[str, object]], **settings: Any) -> str:
        self.threads.append(threading.get_ident())
        return super().render(messages, **settings)


@pytest.mark.parametrize(
    ("source", "messages", "in_a_thread"),
    [
        (FAKE_TEMPLATE, 3, False),
        (FAKE_TEMPLATE, 3000, True),
        # few and short messages say nothing about the work that a template makes of them
        ("{% for a in range(20000) %}{% endfor %}" + FAKE_TEMPLATE, 3, True),
    ],
    ids=["short", "many messages", "long work"],
)
async def test_a_template_never_holds_the_event_loop_for_long(source: str, messages: int, in_a_thread: bool) -> None:
    template = WatchedTemplate(source)
    block, _ = open_fake_engine(options=EngineOptions(), context_length=100_000, template=template)
    async with block as engine:
        ids = await engine.encode_chat([{"role": "user", "content": ""}] * messages)
    assert engine.tokenizer.decode(ids, skip_special=False).count("user: ") == messages
    assert len(template.threads) == in_a_thread
    assert threading.get_ident() not in template.threads
