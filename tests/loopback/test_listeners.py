"""Binding, and what is left behind."""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio

from trioserve.errors import ParamError
from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.server import serve_app


def test_a_taken_port_is_found_out_at_once() -> None:
    with bind(ServeOptions(port=0)) as first, pytest.raises(OSError, match="in use") as raised:
        bind(ServeOptions(port=first.port))
    assert raised.value.errno == errno.EADDRINUSE


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign") as raised:
        bind(ServeOptions(host="192.0.2.1", port=0))
    assert raised.value.errno == errno.EADDRNOTAVAIL


def test_a_port_of_zero_is_chosen() -> None:
    with bind(ServeOptions(port=0)) as listeners:
        assert listeners.port > 0
        assert listeners.addresses == (f"http://127.0.0.1:{listeners.port}",)


def test_all_addresses_of_a_name_get_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = socket.SOCK_STREAM
    found = [
        (socket.AF_INET, stream, 6, "", ("127.0.0.2", 0)),
        # not of this machine, as ::1 is not on a machine without IPv6
        (socket.AF_INET, stream, 6, "", ("192.0.2.1", 0)),
        (socket.AF_INET, stream, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with bind(ServeOptions(host="two", port=0)) as listeners:
        port = listeners.port
        assert listeners.addresses == (f"http://127.0.0.2:{port}", f"http://127.0.0.1:{port}")


def test_a_port_that_is_taken_for_one_address_frees_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = socket.SOCK_STREAM
    with bind(ServeOptions(port=0)) as taken:
        found = [(socket.AF_INET, stream, 6, "", (host, taken.port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
        with pytest.raises(OSError, match="in use"):
            bind(ServeOptions(host="two", port=taken.port))
        with socket.create_server(("127.0.0.2", taken.port)):
            pass


def test_ipv6_addresses_are_written_in_brackets() -> None:
    try:
        listeners = bind(ServeOptions(host="::1", port=0))
    except OSError:
        pytest.skip("no IPv6 here")
    with listeners:
        assert listeners.addresses == (f"http://[::1]:{listeners.port}",)


@pytest.mark.parametrize(("stall", "milliseconds"), [(30.0, 30_000), (0.5, 500), (1e9, 2**31 - 1), (math.inf, 0)])
def test_the_kernel_helps_to_find_dead_peers(stall: float, milliseconds: int) -> None:
    with bind(ServeOptions(port=0, send_stall_timeout=stall)) as listeners:
        (listener,) = listeners.sockets
        with socket.create_connection(("127.0.0.1", listeners.port)):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds


@pytest.mark.usefixtures("time_limit")
async def test_a_unix_socket_is_served_and_removed(app: QuartTrio, nursery: trio.Nursery, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    shutdown, ended = trio.Event(), trio.Event()

    async def run(*, task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
        options = ServeOptions(unix_socket=path)
        await serve_app(app, options, shutdown=shutdown, task_status=task_status)
        ended.set()

    addresses = await nursery.start(run)
    assert addresses == (f"unix:{path}",)
    with await RawClient.connect(path) as client:
        await client.send(request_bytes("GET", "/health", headers={"Connection": "close"}))
        assert (await client.receive_all()).endswith(b"ok")
    shutdown.set()
    await ended.wait()
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    with bind(ServeOptions(unix_socket=path)) as first:
        assert first.port == 0
        with pytest.raises(OSError, match="in use"):
            bind(ServeOptions(unix_socket=path))
    assert not path.exists()


def test_a_file_in_the_way_of_a_unix_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match="in use"):
        bind(ServeOptions(unix_socket=path))
    assert path.read_text() == "data"


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o600), (0o077, 0o660), (0o777, 0o222)])
def test_a_unix_socket_has_the_permissions_that_were_asked_for(umask: int, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    before = os.umask(umask)
    try:
        with bind(ServeOptions(unix_socket=path, unix_socket_mode=mode)):
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_unix_socket_is_never_open_to_more_than_it_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "http.sock"
    before = os.umask(0)
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    try:
        with bind(ServeOptions(unix_socket=path, unix_socket_mode=0o640)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_without_a_mode_the_umask_decides(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    before = os.umask(0o027)
    try:
        with bind(ServeOptions(unix_socket=path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o750
    finally:
        os.umask(before)


def test_a_server_removes_its_own_unix_socket_only(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    first = bind(ServeOptions(unix_socket=path))
    path.unlink()
    with bind(ServeOptions(unix_socket=path)):
        first.close()
        assert path.is_socket()
    assert not path.exists()


@pytest.mark.parametrize("mode", [-1, 0o1000])
def test_a_mode_is_nine_bits(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match="unix_socket_mode"):
        ServeOptions(unix_socket=tmp_path / "x", unix_socket_mode=mode)


def test_a_mode_without_a_unix_socket_is_a_mistake() -> None:
    with pytest.raises(ParamError, match="without a unix socket"):
        ServeOptions(unix_socket_mode=0o600)


async def test_hooks_that_would_not_run_are_refused(app: QuartTrio) -> None:
    @app.before_serving
    async def hook() -> None: ...

    with pytest.raises(ValueError, match="hooks"):
        await serve_app(app, ServeOptions(port=0))


async def test_a_server_without_file_descriptors_recovers(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = await start()
    connecting = trio.socket.socket()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    with RawClient(connecting) as client:
        # the client has its socket already, and there is none left for the server's end of the connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            await connecting.connect(("127.0.0.1", served.port))
            await trio.sleep(0.02)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await client.send(request_bytes("GET", "/health"))
        assert (await client.response()).body == b"ok"
    assert 1 <= caplog.text.count("can't accept connections") <= 3


async def test_the_limit_on_open_files_is_raised(start: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        await start(max_connections=300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(364, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
