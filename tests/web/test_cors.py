"""What pages of other origins may do, on every kind of answer."""

from __future__ import annotations

import json

import attrs
import pytest
import trio

from trioserve.errors import ParamError
from trioserve.testing.engine import say
from trioserve.testing.server import CHAT, SERVE_OPTIONS, TEXT, serving
from trioserve.web.auth import ApiKeys
from trioserve.web.cors import Cors
from trioserve.web.exchange import exchange
from trioserve.web.options import ServeOptions

PAGE = "https://app.example.org"
LISTED = attrs.evolve(SERVE_OPTIONS, cors_origins=(PAGE, "http://localhost:3000"))
ANYONE = attrs.evolve(SERVE_OPTIONS, cors_origins=("*",))
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(
    "origin",
    ["example.org", "https://example.org/", "https://a b", "https://", "", "null", "*.example.org", "https://é"],
)
def test_what_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ParamError, match="origin") as refused:
        ServeOptions(cors_origins=(origin,))
    assert refused.value.param == "cors_origins"


def test_hosts_are_the_same_in_any_case() -> None:
    cors = Cors.of(["HTTPS://App.Example.Org"])
    assert cors.answer_headers([(b"origin", PAGE.encode())])[0] == (b"access-control-allow-origin", PAGE.encode())


async def test_without_the_option_no_answer_speaks_of_origins() -> None:
    async with serving(say("ok")) as server:
        answer = await server.client.request("GET", "/v1/models", headers={"Origin": PAGE})
        preflight = await server.client.request("OPTIONS", CHAT, headers=PREFLIGHT)
    for response in (answer, preflight):
        assert not [name for name in response.headers if name.startswith("access-control") or name == "vary"]


async def test_a_listed_page_may_read_answers_and_their_id() -> None:
    async with serving(say("ok"), serve_options=LISTED) as server:
        response = await server.client.request("GET", "/v1/models", headers={"Origin": PAGE})
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("origin", [None, "https://evil.example", "https://app.example.org.evil.example", "null"])
async def test_another_page_may_not_and_caches_are_told_that_it_depends(origin: str | None) -> None:
    async with serving(say("ok"), serve_options=LISTED) as server:
        headers = {} if origin is None else {"Origin": origin}
        response = await server.client.request("GET", "/v1/models", headers=headers)
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["vary"] == "Origin"


async def test_a_star_is_every_page() -> None:
    async with serving(say("ok"), serve_options=ANYONE) as server:
        response = await server.client.request("GET", "/health", headers={"Origin": "null"})
    assert response.headers["access-control-allow-origin"] == "*"
    assert "vary" not in response.headers


@pytest.mark.parametrize("options", [LISTED, ANYONE], ids=["listed", "anyone"])
async def test_a_preflight_is_answered_without_a_key_and_without_the_app(options: ServeOptions) -> None:
    guarded = attrs.evolve(options, api_keys=ApiKeys.of(["k"]))
    async with serving(say("ok"), serve_options=guarded) as server:
        response = await server.client.request("OPTIONS", CHAT, headers=PREFLIGHT)
    assert (response.status, response.body) == (204, b"")
    assert response.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "POST" in response.headers["access-control-allow-methods"]
    # by name, since a star would not cover the key
    assert response.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert int(response.headers["access-control-max-age"]) > 0


async def test_a_preflight_of_another_page_is_refused() -> None:
    async with serving(say("ok"), serve_options=LISTED) as server:
        response = await server.client.request("OPTIONS", CHAT, headers={**PREFLIGHT, "Origin": "https://evil.example"})
    assert response.status == 403
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert "origin" in json.loads(response.body)["error"]["message"]


async def test_errors_and_streams_may_be_read_too() -> None:
    options = attrs.evolve(LISTED, api_keys=ApiKeys.of(["k"]))
    key = {"Origin": PAGE, "Authorization": "Bearer k"}
    stream = json.dumps({"model": "tiny-chat", "prompt": "x", "n": 2, "stream": True}).encode()
    async with serving(say("ok"), serve_options=options) as server:
        for status, method, path, headers, body in (
            (401, "POST", TEXT, {"Origin": PAGE}, stream),
            (404, "GET", "/nope", key, b""),
            (405, "PUT", TEXT, key, b""),
            (400, "POST", TEXT, key, b"{"),
            (400, "POST", TEXT, {**key, "X-Request-Timeout": "soon"}, stream),
            (413, "POST", TEXT, key, bytes(100_001)),
            (200, "POST", TEXT, key, stream),
        ):
            response = await server.client.request(method, path, headers=headers, body=body)
            assert (response.status, response.headers.get("access-control-allow-origin")) == (status, PAGE)


async def test_a_bug_of_ours_may_be_read_too() -> None:
    async with serving(say("ok"), serve_options=LISTED) as server:

        async def broken() -> None:
            async def child(*, task_status: trio.TaskStatus[None]) -> None:
                task_status.started()
                raise KeyError("a bug")

            await exchange().nursery.start(child)
            await trio.sleep_forever()

        server.client._app.add_url_rule("/broken", "broken", broken)  # type: ignore[attr-defined]
        response = await server.client.request("GET", "/broken", headers={"Origin": PAGE})
    assert (response.status, response.headers["access-control-allow-origin"]) == (500, PAGE)
