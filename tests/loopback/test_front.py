"""What is checked before a body is read, on real connections, and what the server says of itself below the app."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.testing.http import RawClient, request_bytes
from trioserve.web.auth import ApiKeys

PAGE = "https://app.example.org"
KEYS = ApiKeys.of(["secret", "clé"])


def head(*lines: bytes) -> bytes:
    return b"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n" + b"".join(line + b"\r\n" for line in lines)


@pytest.mark.usefixtures("no_errors")
async def test_keys_are_compared_as_bytes_and_nothing_that_comes_is_an_error_of_ours(start: Any) -> None:
    # case: api-key-compare
    served = await start(api_keys=KEYS)
    for status, lines in (
        (200, [b"Authorization: Bearer secret"]),
        (200, [b"authorization: bearer secret"]),
        (200, [b"Authorization: Bearer  secret"]),
        (200, [b"Authorization: Bearer secret "]),
        (200, ["Authorization: Bearer clé".encode()]),
        (200, [b"X-API-Key: secret"]),
        (401, []),
        (401, [b"Authorization: Bearer \xff\xe9"]),
        (401, ["Authorization: Bearer clé".encode("latin-1")]),
        (401, [b"Authorization: Basic secret"]),
        (401, [b"Authorization:"]),
        (401, [b"Authorization: Bearer secret", b"Authorization: Bearer secret"]),
    ):
        with await RawClient.connect(served.port) as client:
            await client.send(head(*lines) + b"\r\nx")
            response = await client.response()
            assert response.status == status, lines
            assert (response.headers.get("www-authenticate") == "Bearer") == (status == 401)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/health"))
        assert (await client.response()).status == 200


@pytest.mark.usefixtures("no_errors")
async def test_a_client_without_a_key_is_not_asked_for_its_body(start: Any) -> None:  # case: api-key-compare
    served = await start(api_keys=KEYS)
    waiting = {"Content-Length": "1", "Expect": "100-continue"}
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers=waiting))
        # the first that comes is the answer itself
        assert (await client.receive_until(b"\r\n")).startswith(b"HTTP/1.1 401")
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("POST", "/size", headers={**waiting, "Authorization": "Bearer secret"}))
        assert (await client.receive_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await client.send(b"x")
        assert (await client.response()).body == b"1"


async def test_the_connection_goes_on_after_a_preflight_and_after_a_request_without_a_key(start: Any) -> None:
    served = await start(api_keys=KEYS, cors_origins=(PAGE,))
    with await RawClient.connect(served.port) as client:
        await client.send(
            request_bytes("OPTIONS", "/size", headers={"Origin": PAGE, "Access-Control-Request-Method": "POST"})
        )
        preflight = await client.response("OPTIONS")
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, PAGE)
        await client.send(request_bytes("POST", "/size", body=b"abc"))
        assert (await client.response()).status == 401
        await client.send(request_bytes("POST", "/size", body=b"abc", headers={"Authorization": "Bearer secret"}))
        assert (await client.response()).body == b"3"


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (431, request_bytes("GET", "/health", headers={"Origin": PAGE, "X-Request-Id": "mine", "X": "x" * 2000})),
        (501, request_bytes("CONNECT", "a:1", headers={"Origin": PAGE, "X-Request-Id": "mine"})),
    ],
)
async def test_what_is_refused_below_the_app_has_an_id_and_may_be_read_by_pages(
    start: Any, status: int, request_: bytes
) -> None:
    served = await start(cors_origins=(PAGE,), max_head_size=1024)
    with await RawClient.connect(served.port) as client:
        await client.send(request_)
        response = await client.response()
    assert response.status == status
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["x-request-id"] == "mine"
    assert [access.request_id for access in await served.finished(1)] == ["mine"]


async def test_what_is_no_http_gets_an_id_too(start: Any) -> None:
    served = await start(cors_origins=("*",))
    with await RawClient.connect(served.port) as client:
        await client.send(b"nonsense\r\n\r\n")
        response = await client.response()
    assert response.status == 400
    assert response.headers["access-control-allow-origin"] == "*"
    (access,) = await served.finished(1)
    assert access.request_id == response.headers["x-request-id"]


async def test_a_deadline_ends_a_request_that_would_never_end(start: Any) -> None:
    served = await start(request_timeout=0.05)
    with await RawClient.connect(served.port) as client:
        await client.send(request_bytes("GET", "/wait"))
        response = await client.response()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (504, "deadline_exceeded")
        # nothing of it is left, and the connection can be used again
        await client.send(request_bytes("GET", "/health"))
        assert (await client.response()).body == b"ok"
