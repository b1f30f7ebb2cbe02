"""TLS on one connection, without the connection: bytes of the client to bytes of the protocol, and back.

Owns: the certificate and what is agreed on with clients, the state of OpenSSL.
Must not know: sockets, time, HTTP.

It is a filter between the socket and the protocol, so that a connection reads, writes and gives up in the same way
with and without it.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from trioserve.errors import ParamError

_READ_SIZE: Final = 64 * 2**10


def make_context(certificate: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    """What a server speaks: TLS 1.2 and 1.3, and HTTP/1.1 in it.

    Args:
        certificate: PEM, with the certificates between it and the root, its own first.
        key: PEM, not encrypted; None: it is in the certificate's file.
        client_ca: PEM; a client must show a certificate that one of these has signed. None: no client is asked.

    Raises:
        ParamError: a file can't be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # a client that renegotiates makes work for nothing, and asks for bytes in the middle of a response
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])

    def refuse_password() -> NoReturn:
        # else OpenSSL would ask for it on the terminal
        raise ParamError("tls_key must not be encrypted.", "tls_key")

    with _Reading("tls_cert", certificate, "no certificate with its key"):
        # which of the two files it is can't be told from OpenSSL's errors
        certificate.read_bytes()
        if key is not None:
            with _Reading("tls_key", key, "no key"):
                key.read_bytes()
        context.load_cert_chain(certificate, key, refuse_password)
    if client_ca is not None:
        with _Reading("tls_client_ca", client_ca, "no certificate"):
            context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Reading:
    """Makes ParamErrors of what may go wrong with a file."""

    def __init__(self, param: str, path: Path, is_no: str) -> None:
        self._param = param
        self._path = path
        self._is_no = is_no

    def __enter__(self) -> None: ...

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, ssl.SSLError):
            raise ParamError(f"{self._path} has {self._is_no} in it.", self._param) from error
        if isinstance(error, OSError):
            raise ParamError(f"{self._path}: {error.strerror}", self._param) from error


class TlsFilter:
    """One connection's TLS, from the server's side.

    What it gives to be sent must be sent in the order in which it was given. While the client is being answered,
    only ``encrypt`` is asked: it gives what the receiving side has to say too, which may wait until then.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def feed(self, data: bytes) -> None:
        """Take bytes of the client, to be looked at by the next two."""
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is over.

        Raises:
            ssl.SSLError: it has failed: what came is not TLS, or there is nothing that both sides can do.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decrypt(self) -> bytes | None:
        """What the client has said to the protocol, b"" if nothing is whole yet; None if it will say nothing more.

        Raises:
            ssl.SSLError: what came is not what was agreed on.
        """
        plain = bytearray()
        try:
            while piece := self._object.read(_READ_SIZE):
                plain += piece
        except ssl.SSLWantReadError:
            return bytes(plain)
        # what came before the end counts; the end is found again
        return bytes(plain) or None

    def encrypt(self, data: bytes) -> bytes:
        """What to send for ``data``, with all that had to be said before. Only after the handshake."""
        self._object.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """What to send for the handshake or an error, if anything."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """What to send to tell the client that nothing more comes: so it knows that the last answer is whole."""
        # it complains that the client's own end has not come, which is not waited for
        with suppress(ssl.SSLError):
            self._object.unwrap()
        return self._outgoing.read()
