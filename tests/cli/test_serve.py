"""``trioserve serve`` in this process: a fake engine behind real sockets, and real signals."""

from __future__ import annotations

import contextlib
import gc
import json
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import h11
import pytest
import trio

from trioserve.abc import DeviceInfo
from trioserve.cli.commands import run
from trioserve.cli.logs import configure_logs
from trioserve.cli.serve import command_to_try, run_server
from trioserve.engine.engine import Engine
from trioserve.engine.options import EngineOptions
from trioserve.errors import DeviceError, ModelError
from trioserve.testing.device import Draw, Script
from trioserve.testing.engine import FAKE_MODEL, count_for_ever, open_fake_engine, say
from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.auth import ApiKeys
from trioserve.web.listeners import Listeners, bind
from trioserve.web.options import ServeOptions

STEP_SECONDS = 0.002


@attrs.define(eq=False)
class Running:
    """A server that runs, and how it ended."""

    where: int | Path
    ended: trio.Event = attrs.field(factory=trio.Event)
    error: BaseException | None = None

    async def stream(self, max_tokens: int, *, receive_buffer: int | None = None) -> RawClient:
        """A client of a stream of two choices that has begun."""
        body = {"model": FAKE_MODEL, "prompt": "go", "n": 2, "stream": True, "max_tokens": max_tokens}
        client = await RawClient.connect(self.where, receive_buffer=receive_buffer)
        await client.send(request_bytes("POST", "/v1/completions", body=json.dumps(body).encode()))
        await client.receive_until(b"data: ")
        return client


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(nursery: trio.Nursery) -> AsyncIterator[Start]:
    """Starts ``run_server`` over a fake engine that runs a script."""

    async def start(script: Script = count_for_ever, **settings: Any) -> Running:
        configure_logs()
        options = ServeOptions(port=0, **settings)
        listeners = bind(options)
        running = Running(listeners.port or listeners.addresses[0].removeprefix("unix:"))
        serving = trio.Event()

        async def serve() -> None:
            try:
                await run_server(
                    lambda: open_fake_engine(script, step_seconds=STEP_SECONDS)[0], listeners, options, serving.set
                )
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                running.error = error
            running.ended.set()

        nursery.start_soon(serve)
        await serving.wait()
        # it answers: serving has begun
        with await RawClient.connect(running.where) as client:
            await client.send(request_bytes("GET", "/health"))
            await client.response()
        return running

    with trio.fail_after(10):
        yield start


async def refused(running: Running) -> None:
    """Wait until nobody can connect any more."""
    with suppress(ConnectionRefusedError, ConnectionResetError):
        while True:
            (await RawClient.connect(running.where)).close()
            await trio.sleep(STEP_SECONDS)


async def test_it_says_where_it_serves_and_gives_a_command_to_paste(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start()
    signal.raise_signal(signal.SIGTERM)
    await running.ended.wait()
    out, err = capsys.readouterr()
    address = f"http://127.0.0.1:{running.where}"
    assert f"Serving {FAKE_MODEL} on {address} (Ctrl-C stops it)." in out
    (command,) = [line for line in out.splitlines() if line.startswith("  curl")]
    curl, url, flag, body = shlex.split(command)
    assert (curl, url, flag) == ("curl", f"{address}/v1/chat/completions", "-d")
    assert json.loads(body)["n"] == 4
    assert f"model={FAKE_MODEL}" in err


async def test_the_command_to_paste_is_what_the_server_answers(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start(say("red"))
    body = shlex.split(capsys.readouterr().out)[-1].encode()
    with await RawClient.connect(running.where) as client:
        # curl's own content type for -d
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        await client.send(request_bytes("POST", "/v1/chat/completions", body=body, headers=headers))
        answer = await client.response("POST")
    assert answer.status == 200
    assert [choice["message"]["content"] for choice in json.loads(answer.body)["choices"]] == ["red"] * 4
    signal.raise_signal(signal.SIGTERM)
    await running.ended.wait()


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("http://127.0.0.1:8000", ["http://127.0.0.1:8000/v1/chat/completions"]),
        ("http://0.0.0.0:8000", ["http://127.0.0.1:8000/v1/chat/completions"]),
        ("http://[::]:8000", ["http://[::1]:8000/v1/chat/completions"]),
        ("unix:/run/a socket", ["--unix-socket", "/run/a socket", "http://localhost/v1/chat/completions"]),
    ],
)
def test_the_command_to_paste_reaches_every_kind_of_address_from_this_machine(address: str, reached: list[str]) -> None:
    words = shlex.split(command_to_try("it's", address))
    assert words[1 : 1 + len(reached)] == reached
    assert json.loads(words[-1])["model"] == "it's"


def test_the_command_to_paste_shows_a_key_that_only_the_shell_knows() -> None:
    command = command_to_try("m", "http://127.0.0.1:1", wants_key=True)
    assert command.endswith(' -H "Authorization: Bearer $TRIOSERVE_API_KEY"')


async def test_a_key_is_told_neither_on_the_terminal_nor_in_the_log(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start(say("red"), api_keys=ApiKeys.of(["secret"]))
    for key in ("secret", "guess"):
        with await RawClient.connect(running.where) as client:
            headers = {"Authorization": f"Bearer {key}", "X-Request-Id": f"with {key[0]}"}
            await client.send(request_bytes("GET", "/v1/models?api_key=secret", headers=headers))
            assert (await client.response()).status == (200 if key == "secret" else 401)
    signal.raise_signal(signal.SIGTERM)
    await running.ended.wait()
    out, err = capsys.readouterr()
    assert "$TRIOSERVE_API_KEY" in out
    assert "GET /v1/models" in err
    assert "request_id=with g" in err or "request_id='with g'" in err
    assert "secret" not in out + err
    assert "guess" not in out + err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_idle_server_ends_at_once(number: int, start: Start) -> None:
    running = await start()
    began = trio.current_time()
    signal.raise_signal(number)
    await running.ended.wait()
    assert trio.current_time() - began < 0.4
    assert running.error is None


async def test_ctrl_c_tells_running_streams_and_ends_within_a_second(start: Start) -> None:  # FAN-28
    running = await start()
    with await running.stream(max_tokens=3000) as client:
        began = trio.current_time()
        signal.raise_signal(signal.SIGINT)
        rest = await client.receive_all()
        await running.ended.wait()
        assert trio.current_time() - began < 1
    assert b'"code":"server_stopping"' in rest
    assert b"data: [DONE]" in rest
    assert running.error is None


async def test_sigterm_lets_running_streams_end_and_takes_nothing_new(start: Start) -> None:
    running = await start()
    with await running.stream(max_tokens=100) as client:
        signal.raise_signal(signal.SIGTERM)
        await refused(running)
        rest = await client.receive_all()
    await running.ended.wait()
    assert rest.count(b'"finish_reason":"length"') == 2
    assert b"error" not in rest
    assert running.error is None


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_it_at_once(second: int, start: Start) -> None:
    running = await start(graceful_timeout=60.0)
    with await running.stream(max_tokens=3000):
        signal.raise_signal(signal.SIGTERM)
        await refused(running)
        assert not running.ended.is_set()
        began = trio.current_time()
        signal.raise_signal(second)
        await running.ended.wait()
        assert trio.current_time() - began < 0.4
    assert running.error is None


@pytest.mark.parametrize("second", [False, True], ids=["one signal", "a second one"])
async def test_no_client_keeps_a_server_that_shuts_down(second: bool, start: Start) -> None:
    # case shutdown-inflight: one client that reads, one that does not, one whose prompt is still being computed
    graceful_timeout = 1.5
    running = await start(graceful_timeout=graceful_timeout)
    # more than there is memory for at once
    prompts = [letter * 4000 for letter in "abcdefghijkl"]
    prefilling = json.dumps({"model": FAKE_MODEL, "prompt": prompts, "stream": True}).encode()
    async with contextlib.AsyncExitStack() as clients:
        reads = clients.enter_context(await running.stream(max_tokens=4000))
        unread = clients.enter_context(await running.stream(max_tokens=4000, receive_buffer=4096))
        waits = clients.enter_context(await RawClient.connect(running.where))
        await waits.send(request_bytes("POST", "/v1/completions", body=prefilling))
        # the roles, or the first of nothing: it was admitted
        await waits.receive_until(b"\r\n\r\n")
        began = trio.current_time()
        signal.raise_signal(signal.SIGTERM)
        await refused(running)
        if second:
            await trio.sleep(0.2)
            signal.raise_signal(signal.SIGTERM)
        for client in (reads, waits):
            # it is told, and no end looks like that of an answer
            *_, error, done = (await client.receive_all()).split(b"data: ")
            assert json.loads(error)["error"]["code"] == ("engine_closed" if second else "server_stopping")
            assert done.startswith(b"[DONE]")
        await running.ended.wait()
        assert trio.current_time() - began < (1.4 if second else graceful_timeout + 0.5)
        with pytest.raises((ConnectionResetError, h11.RemoteProtocolError)):
            await unread.response()
    assert running.error is None


@pytest.mark.parametrize("draining", [False, True], ids=["serving", "draining"])
async def test_a_device_that_fails_ends_the_server_but_first_the_clients_are_told(
    draining: bool, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:  # FAN-28
    failing = False

    def script(draw: Draw) -> int:
        if failing:
            raise RuntimeError("out of order")
        return count_for_ever(draw)

    running = await start(script)
    with await running.stream(max_tokens=3000) as client:
        if draining:
            signal.raise_signal(signal.SIGTERM)
            await refused(running)
        began = trio.current_time()
        failing = True
        rest = await client.receive_all()
        await running.ended.wait()
        assert trio.current_time() - began < 0.4
    error, done = rest.split(b"data: ")[-2:]
    told = json.loads(error)["error"]
    assert told["code"] == "engine_failed"
    assert "RuntimeError: out of order" in told["message"]
    assert done.startswith(b"[DONE]")
    assert isinstance(running.error, DeviceError)
    log = capsys.readouterr().err
    assert "the device failed" in log
    assert "RuntimeError: out of order" in log
    await refused(running)


async def test_what_is_loaded_is_left_alone_by_the_garbage_collector(start: Start) -> None:
    assert gc.get_freeze_count() == 0
    await start()
    assert gc.get_freeze_count() > 10_000
    signal.raise_signal(signal.SIGTERM)


async def test_a_client_that_dawdles_keeps_no_server_whose_device_has_failed(start: Start) -> None:
    failing = False

    def script(draw: Draw) -> int:
        if failing:
            raise RuntimeError("out of order")
        return count_for_ever(draw)

    running = await start(script, graceful_timeout=60.0)
    with await running.stream(max_tokens=3000), await RawClient.connect(running.where) as dawdler:
        await dawdler.send(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\n")
        signal.raise_signal(signal.SIGTERM)
        await refused(running)
        began = trio.current_time()
        failing = True
        await running.ended.wait()
        assert trio.current_time() - began < 1.5
    assert isinstance(running.error, DeviceError)


# ---- before it serves


class Loading(AbstractAsyncContextManager[Engine]):
    """An engine that takes for ever to load."""

    async def __aenter__(self) -> Engine:
        signal.raise_signal(self.number)
        await trio.sleep_forever()
        raise AssertionError

    async def __aexit__(self, *exc_info: object) -> None: ...

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes ``trioserve serve`` open something else than an engine."""

    def use(block: Any) -> None:
        monkeypatch.setattr("trioserve.cli.serve.resolve", lambda *_, **__: None)
        monkeypatch.setattr("trioserve.cli.serve.open_engine", lambda *_: block)

    return use


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_a_signal_while_a_model_loads_ends_the_command_as_that_signal(
    number: int, code: int, opens: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    opens(Loading(number))
    assert run(["serve", "--port", "0"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == ""


@pytest.mark.parametrize(("error", "code"), [(ModelError("broken"), 2), (DeviceError("broken"), 1)])
def test_an_engine_that_does_not_open_is_one_line(
    error: Exception, code: int, opens: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def block() -> AsyncIterator[Engine]:
        await trio.lowlevel.checkpoint()
        raise error
        yield

    opens(block())
    assert run(["serve", "--port", "0"]) == code
    assert capsys.readouterr().err.splitlines()[-1] == "trioserve: broken"


# ---- what the flags set


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ServeOptions, EngineOptions]]:
    """The options that a command line of ``trioserve serve`` gives."""

    def read(*arguments: object) -> tuple[ServeOptions, EngineOptions]:
        found: list[Any] = []

        async def look(
            open_block: Callable[[], object],
            listeners: Listeners,
            options: ServeOptions,
            loaded: object,
            tracing: object,
        ) -> None:
            open_block()
            found.insert(0, options)
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr("trioserve.cli.serve.resolve", lambda *_, **__: None)
        monkeypatch.setattr("trioserve.cli.serve.open_engine", lambda _, options: found.append(options))
        monkeypatch.setattr("trioserve.cli.serve.run_server", look)
        assert run(["serve", "--port", "0", *map(str, arguments)]) == 0
        return found[0], found[1]

    return read


Settings = Callable[..., tuple[ServeOptions, EngineOptions]]


def test_flags_reach_the_options_that_they_name(settings: Settings, own_cache: Path) -> None:
    http, engine = settings(
        *("--host", "localhost", "--max-connections", 7, "--max-body-size", 999, "--keep-alive-timeout", 5.5),
        *("--slow-reader-timeout", 3, "--graceful-timeout", 0, "--threads", 2, "--context-length", 100),
        *("--kv-tokens", 4096, "--max-batch-tokens", 64, "--max-running", 9, "--no-prefix-cache"),
        *("--max-overtaken", 0.5, "--kv-type", "float32"),
        *("--max-n", 3, "--max-choices", 5, "--greedy-n", "replicate", "--max-queued", 6, "--device", "reference"),
        *("--prompt-lookup", "--lookup-tokens", 2, "--lookup-rows", 6),
    )
    expected = ServeOptions(
        host="localhost",
        port=0,
        max_connections=7,
        max_body_size=999,
        keep_alive_timeout=5.5,
        send_stall_timeout=3.0,
        graceful_timeout=0.0,
    )
    assert http == expected
    assert (engine.threads, engine.context_length, engine.kv_tokens) == (2, 100, 4096)
    assert engine.kv_type == "float32"
    assert (engine.max_batch_tokens, engine.max_running, engine.max_queued) == (64, 9, 6)
    assert (engine.limits.max_n, engine.limits.max_choices, engine.limits.greedy_n) == (3, 5, "replicate")
    assert (engine.prefix_cache, engine.device, engine.cache_dir) == (False, "reference", own_cache)
    info = DeviceInfo(name="fake", vocab_size=10, context_length=100, page_size=4, page_count=25)
    assert engine.max_overtaken_s == engine.scheduler_options(info).max_overtaken_s == 0.5
    assert (engine.prompt_lookup, engine.lookup_tokens, engine.lookup_rows) == (True, 2, 6)


def test_flags_for_whoever_runs_it_reach_their_options(settings: Settings, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("second\n")
    http, _ = settings(
        *("--unix-socket", tmp_path / "socket", "--unix-socket-mode", "640", "--root-path", "/llm/"),
        *("--api-key", "first", "--api-key-file", keys, "--request-timeout", 9),
        *("--cors-origin", "http://a", "--cors-origin", "http://b"),
    )
    assert http == ServeOptions(
        port=0,
        unix_socket=tmp_path / "socket",
        unix_socket_mode=0o640,
        root_path="/llm",
        api_keys=ApiKeys.of(["first", "second"]),
        request_timeout=9.0,
        cors_origins=("http://a", "http://b"),
    )


def test_certificates_reach_their_options(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioserve.web.listeners.make_context", lambda *files: None)
    http, _ = settings("--tls-cert", tmp_path / "a", "--tls-key", tmp_path / "b", "--tls-client-ca", tmp_path / "c")
    assert (http.tls_cert, http.tls_key, http.tls_client_ca) == (tmp_path / "a", tmp_path / "b", tmp_path / "c")


def test_variables_are_flags(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:  # FAN-2
    monkeypatch.setenv("TRIOSERVE_MAX_N", "5")
    monkeypatch.setenv("TRIOSERVE_SLOW_READER_TIMEOUT", "4")
    monkeypatch.setenv("TRIOSERVE_PREFIX_CACHE", "false")
    monkeypatch.setenv("TRIOSERVE_MAX_OVERTAKEN", "7.5")
    http, engine = settings()
    assert engine.limits.max_n == 5
    assert http.send_stall_timeout == 4
    assert not engine.prefix_cache
    assert engine.max_overtaken_s == 7.5
    assert engine.prompt_lookup is None
    assert settings("--no-prompt-lookup")[1].prompt_lookup is False
    assert settings("--max-n", 6, "--prefix-cache")[1].limits.max_n == 6


def test_an_empty_variable_is_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSERVE_MAX_N", "")
    assert settings()[1].limits.max_n == 128


def test_a_high_max_n_lifts_the_bounds_that_were_left_alone(settings: Settings) -> None:
    limits_and_queue = [
        (engine.limits.max_choices, engine.max_queued)
        for _, engine in (
            settings(),
            settings("--max-n", 16384),
            settings("--max-n", 4096, "--max-choices", 512),
            settings("--max-choices", 5000),
        )
    ]
    assert limits_and_queue == [(1024, 2048), (16384, 16384), (512, 2048), (5000, 5000)]
