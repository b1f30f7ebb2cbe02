"""Keys: which are taken, where they may stand, and that nothing tells them."""

from __future__ import annotations

import json
import traceback

import attrs
import pytest

from trioserve.errors import ParamError
from trioserve.testing.engine import say
from trioserve.testing.http import HttpResponse
from trioserve.testing.server import CHAT, SERVE_OPTIONS, FakeServer, serving
from trioserve.web.auth import ApiKeys
from trioserve.web.front import OPEN_PATHS

KEYS = ApiKeys.of(["secret", "zweiter", "schlüssel"])
GUARDED = attrs.evolve(SERVE_OPTIONS, api_keys=KEYS)


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", value)]


@pytest.mark.parametrize(
    "value",
    # a key that is not ASCII comes as the bytes of its UTF-8
    [
        b"Bearer secret",
        b"bearer secret",
        b"BEARER  secret",
        b"Bearer secret ",
        b"Bearer zweiter",
        b"Bearer schl\xc3\xbcssel",
    ],
)
def test_every_key_is_taken_and_the_scheme_may_be_written_in_any_case(value: bytes) -> None:  # case: api-key-compare
    assert KEYS.admit(bearer(value))


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer \xff\xe9",
        b"Basic secret",
        b"secret",
        b"Bearer",
        b"Bearer ",
        b"",
        b"Bearer secre",
        b"Bearer secrets",
        b"Bearer SECRET",
        b"Bearer secret,secret",
        b"Bearer sec ret",
        b"Bearer schl\xfcssel",
        b"Bearersecret",
        b"\nBearer secret",
    ],
)
def test_anything_else_is_no_key(value: bytes) -> None:  # case: api-key-compare
    assert not KEYS.admit(bearer(value))


def test_every_character_of_a_long_key_counts() -> None:  # case: api-key-compare
    key = b"k" * 100
    keys = ApiKeys.of([key.decode()])
    assert keys.admit(bearer(b"Bearer " + key))
    others = [key[:place] + b"x" + key[place + 1 :] for place in range(100)]
    assert not any(keys.admit(bearer(b"Bearer " + other)) for other in (*others, key[:-1], key + b"k"))


def test_a_key_may_stand_in_the_header_of_anthropics_clients() -> None:
    assert KEYS.admit([(b"x-api-key", b"secret")])
    assert not KEYS.admit([(b"x-api-key", b"Bearer secret")])
    assert not KEYS.admit([(b"x-api-key", b"other")])
    # clients that always send something as Authorization
    assert KEYS.admit([(b"x-api-key", b"secret"), *bearer(b"Bearer none")])


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_a_header_that_comes_twice_is_no_key(name: bytes) -> None:  # case: api-key-compare
    value = b"Bearer secret" if name == b"authorization" else b"secret"
    assert KEYS.admit([(name, value)])
    assert not KEYS.admit([(name, value)] * 2)


def test_without_a_header_there_is_no_key() -> None:
    assert not KEYS.admit([(b"host", b"secret")])
    assert not ApiKeys.of([]).admit(bearer(b"Bearer "))


@pytest.mark.parametrize("key", ["", "a b", "secret\n", "\tsecret", "sec\x00ret", "sec\x7fret"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(ParamError) as refused:
        ApiKeys.of(["good", key])
    assert refused.value.param == "api_key"
    assert "sec" not in "".join(traceback.format_exception(refused.value))


def test_bytes_of_the_command_line_that_are_not_utf_8_are_the_key_as_they_are() -> None:
    keys = ApiKeys.of([b"caf\xe9".decode(errors="surrogateescape")])
    assert keys.admit(bearer(b"Bearer caf\xe9"))


def test_nothing_that_is_printed_tells_a_key() -> None:
    assert repr(KEYS) == "<3 API keys>"
    for shown in (repr(GUARDED), str(attrs.asdict(GUARDED)), repr(KEYS._digests)):
        assert "secret" not in shown


def assert_refused(response: HttpResponse) -> None:
    assert response.status == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.body)["error"] == {
        "message": "This server wants an API key, as Authorization: Bearer KEY.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }


async def ask(server: FakeServer, path: str, key: str | None, method: str = "GET") -> HttpResponse:
    body = json.dumps({"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return await server.client.request(method, path, headers=headers, body=body if method == "POST" else b"")


async def test_all_but_health_and_version_want_a_key() -> None:  # case: api-key-compare
    async with serving(say("ok"), serve_options=GUARDED) as server:
        for method, path in (
            ("POST", CHAT),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/v1/engine"),
            ("DELETE", "/v1/requests/x"),
            ("GET", "/nope"),
            ("GET", "//health"),
            ("GET", "/health/"),
            ("OPTIONS", CHAT),
        ):
            for key in (None, "wrong"):
                assert_refused(await ask(server, path, key, method))
            assert (await ask(server, path, "secret", method)).status != 401
        for path in sorted(OPEN_PATHS):
            assert (await ask(server, path, None)).status == 200
        assert {"/health", "/version"} == OPEN_PATHS
        assert [access.status for access in server.accesses[:2]] == [401, 401]


async def test_a_request_without_a_key_is_answered_before_its_body_has_come() -> None:
    async with serving(say("ok"), serve_options=GUARDED) as server:
        async with server.client.open("POST", CHAT, body=None) as exchange:
            assert_refused(await exchange.response())


async def test_a_server_without_keys_looks_at_none() -> None:
    async with serving(say("ok")) as server:
        assert (await ask(server, CHAT, "anything", "POST")).status == 200
