"""TLS: real handshakes, and that everything else is as without it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import h11
import pytest
import trio
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from quart import request
from quart_trio import QuartTrio

from trioserve.errors import ParamError
from trioserve.testing.http import HttpResponse, RawClient, request_bytes
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions

CA = trustme.CA()
CERTIFICATE = CA.issue_cert("localhost", "127.0.0.1")


@attrs.frozen
class Files:
    """What a server is given."""

    cert: Path
    key: Path
    both: Path
    ca: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    files = Files(folder / "cert.pem", folder / "key.pem", folder / "both.pem", folder / "ca.pem")
    CERTIFICATE.cert_chain_pems[0].write_to_path(files.cert)
    CERTIFICATE.private_key_pem.write_to_path(files.key)
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(files.both)
    CA.cert_pem.write_to_path(files.ca)
    return files


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class TlsClient:
    """A connection on which a handshake is made with the first bytes."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream

    async def response(self) -> HttpResponse:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("host", "test")]))
        parser.send(h11.EndOfMessage())
        head, body = None, b""
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert head is not None
        return HttpResponse(head.status_code, {name.decode(): value.decode() for name, value in head.headers}, body)


@asynccontextmanager
async def connected(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[TlsClient]:
    tcp = await trio.open_tcp_stream("127.0.0.1", port)
    stream = trio.SSLStream(tcp, context or client_context(), server_hostname="localhost")
    try:
        yield TlsClient(stream)
    finally:
        await trio.aclose_forcefully(stream)


@pytest.mark.usefixtures("no_errors")
async def test_requests_and_streams_are_answered_over_tls(start: Any, files: Files, app: QuartTrio) -> None:
    @app.get("/scheme")
    async def scheme() -> str:
        return request.scheme

    served = await start(tls_cert=files.cert, tls_key=files.key)
    async with connected(served.port) as client:
        for method, target, body, expected in (
            ("GET", "/scheme", b"", b"https"),
            ("POST", "/size", bytes(300_000), b"300000"),
            ("GET", "/stream?chunks=30", b"", None),
            ("GET", "/blob?size=2000000", b"", bytes(2_000_000)),
            ("GET", "/health", b"", b"ok"),
        ):
            await client.stream.send_all(request_bytes(method, target, body=body))
            response = await client.response()
            assert response.status == 200
            assert response.body == expected if expected is not None else response.body.count(b"data:") == 30
        assert client.stream.version() == "TLSv1.3"
        assert client.stream.selected_alpn_protocol() == "http/1.1"


@pytest.mark.usefixtures("no_errors")
async def test_an_older_client_gets_tls_1_2(start: Any, files: Files) -> None:
    served = await start(tls_cert=files.both)
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with connected(served.port, context) as client:
        await client.stream.send_all(request_bytes("GET", "/health"))
        assert (await client.response()).body == b"ok"
        assert client.stream.version() == "TLSv1.2"


@pytest.mark.usefixtures("no_errors")
async def test_the_end_of_a_connection_is_told_so_that_no_answer_can_be_cut_short_by_others(
    start: Any, files: Files
) -> None:
    served = await start(tls_cert=files.both)
    async with connected(served.port) as client:
        # an HTTP/1.0 client knows the end of a stream by nothing else
        await client.stream.send_all(request_bytes("GET", "/stream?chunks=3", http_version="1.0"))
        received = b""
        # an end that nobody told raises BrokenResourceError
        while more := await client.stream.receive_some():
            received += more
        assert received.count(b"data:") == 3


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("politely", [False, True])
async def test_a_client_that_leaves_in_mid_stream_ends_its_request(
    start: Any, files: Files, jobs: Any, politely: bool
) -> None:  # FAN-25
    served = await start(tls_cert=files.both)
    async with connected(served.port) as client:
        await client.stream.send_all(request_bytes("GET", "/stream?pause=0.001"))
        await client.stream.receive_some()
        await jobs.wait_until_running(1)
        if politely:
            # says that it is done, but closes nothing
            with pytest.raises(trio.BrokenResourceError):
                await client.stream.unwrap()
            await jobs.wait_until_running(0)
    await jobs.wait_until_running(0)
    assert await served.statuses(1) == [499]


@pytest.mark.usefixtures("no_errors")
async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(start: Any, files: Files) -> None:
    served = await start(tls_cert=files.both, keep_alive_timeout=1.0)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with await RawClient.connect(served.port) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.send(outgoing.read())
                incoming.write(await client.receive())
        tls.write(request_bytes("GET", "/health"))
        await client.send(outgoing.read())
        answer = b""
        while b"ok" not in answer:
            incoming.write(await client.receive())
            try:
                answer += tls.read()
            except ssl.SSLWantReadError:
                continue
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("no_errors")
@pytest.mark.parametrize("first", [request_bytes("GET", "/health"), bytes(range(256)), b"\x16\x03\x01\x02\x00\x01"])
async def test_what_is_no_handshake_ends_the_connection_and_no_other(start: Any, files: Files, first: bytes) -> None:
    served = await start(tls_cert=files.both, header_timeout=0.05)
    async with connected(served.port) as other:
        await other.stream.do_handshake()
        with await RawClient.connect(served.port) as client:
            await client.send(first)
            assert b"HTTP" not in await client.receive_all()
        await other.stream.send_all(request_bytes("GET", "/health"))
        assert (await other.response()).body == b"ok"


@pytest.mark.usefixtures("no_errors")
async def test_a_client_that_says_nothing_is_not_waited_for(start: Any, files: Files) -> None:
    served = await start(tls_cert=files.both, header_timeout=0.05)
    with await RawClient.connect(served.port) as client:
        began = trio.current_time()
        assert await client.receive_all() == b""
        assert trio.current_time() - began < 1


@pytest.mark.usefixtures("no_errors")
async def test_noise_in_the_middle_ends_the_connection(start: Any, files: Files, jobs: Any) -> None:
    served = await start(tls_cert=files.both)
    async with connected(served.port) as client:
        await client.stream.send_all(request_bytes("GET", "/stream?pause=0.001"))
        await client.stream.receive_some()
        await jobs.wait_until_running(1)
        await client.stream.transport_stream.send_all(b"noise" * 10)
        await jobs.wait_until_running(0)


@pytest.mark.usefixtures("no_errors")
async def test_a_client_that_reads_nothing_is_cut_off_over_tls_too(start: Any, files: Files, jobs: Any) -> None:
    # FAN-29
    served = await start(tls_cert=files.both, send_stall_timeout=0.1)
    async with connected(served.port) as client:
        await client.stream.send_all(request_bytes("GET", "/stream"))
        await jobs.wait_until_running(1)
        await jobs.wait_until_running(0)


@pytest.mark.usefixtures("no_errors")
async def test_a_server_that_shuts_down_closes_idle_connections_and_unfinished_handshakes(
    start: Any, files: Files
) -> None:
    served = await start(tls_cert=files.both, graceful_timeout=5)
    async with connected(served.port) as idle:
        await idle.stream.send_all(request_bytes("GET", "/health"))
        await idle.response()
        with await RawClient.connect(served.port) as silent:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                client_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
            await silent.send(outgoing.read())
            await silent.receive()
            served.shutdown.set()
            assert await idle.stream.receive_some() == b""
            assert await silent.receive_all() == b""
            began = trio.current_time()
            await served.ended.wait()
            assert trio.current_time() - began < 1


@pytest.mark.usefixtures("no_errors")
async def test_clients_must_show_a_certificate_if_they_are_asked_for_one(start: Any, files: Files) -> None:
    served = await start(tls_cert=files.both, tls_client_ca=files.ca)
    async with connected(served.port) as client:
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send_all(request_bytes("GET", "/health"))
            await client.stream.receive_some()
    context = client_context()
    CA.issue_cert("me@example.org").configure_cert(context)
    async with connected(served.port, context) as client:
        await client.stream.send_all(request_bytes("GET", "/health"))
        assert (await client.response()).body == b"ok"


def test_the_addresses_say_that_it_is_https(files: Files) -> None:
    with bind(ServeOptions(port=0, tls_cert=files.both)) as listeners:
        assert listeners.addresses == (f"https://127.0.0.1:{listeners.port}",)


# ---- files


def encrypted(files: Files, folder: Path) -> dict[str, Path]:
    key = load_pem_private_key(files.key.read_bytes(), None)
    path = folder / "encrypted.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    return {"tls_cert": files.cert, "tls_key": path}


def foreign(files: Files, folder: Path) -> dict[str, Path]:
    path = folder / "foreign.pem"
    CA.issue_cert("localhost").private_key_pem.write_to_path(path)
    return {"tls_cert": files.cert, "tls_key": path}


@pytest.mark.parametrize(
    ("choose", "param", "said"),
    [
        (lambda files, folder: {"tls_cert": folder / "none.pem"}, "tls_cert", "No such file"),
        (lambda files, folder: {"tls_cert": folder}, "tls_cert", "directory"),
        (lambda files, folder: {"tls_cert": files.cert}, "tls_cert", "no certificate with its key"),
        (lambda files, folder: {"tls_cert": files.key}, "tls_cert", "no certificate with its key"),
        (lambda files, folder: {"tls_cert": files.cert, "tls_key": folder / "none"}, "tls_key", "No such file"),
        (lambda files, folder: {"tls_cert": files.both, "tls_client_ca": files.key}, "tls_client_ca", "no certificate"),
        (lambda files, folder: {"tls_cert": files.both, "tls_client_ca": folder / "x"}, "tls_client_ca", "No such"),
        (encrypted, "tls_key", "must not be encrypted"),
        (foreign, "tls_cert", "no certificate with its key"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_found_out_at_once(
    choose: Callable[[Files, Path], dict[str, Path]], param: str, said: str, files: Files, tmp_path: Path
) -> None:
    options = ServeOptions(port=0, **choose(files, tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ParamError, match=said) as refused:
        bind(options)
    assert refused.value.param == param


@pytest.mark.parametrize("name", ["tls_key", "tls_client_ca"])
def test_a_key_without_a_certificate_is_a_mistake(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match="without a certificate") as refused:
        ServeOptions(**{name: tmp_path})
    assert refused.value.param == name
