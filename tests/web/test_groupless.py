"""Over HTTP an engine without groups looks like any other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from trioserve.errors import QueueFullError
from trioserve.testing.engine import FAKE_MODEL
from trioserve.testing.groupless import FakeChoiceEngine, open_groupless_engine
from trioserve.testing.http import AsgiClient, HttpResponse
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.options import ServeOptions
from trioserve.web.state import STATE_KEY, Access, ServerState

TEXT = "/v1/completions"


def body(**fields: object) -> bytes:
    return json.dumps({"model": FAKE_MODEL, "prompt": "hello", "n": 3, "seed": 0, **fields}).encode()


@asynccontextmanager
async def serving(foreign: FakeChoiceEngine) -> AsyncIterator[tuple[AsgiClient, list[Access]]]:
    options = ServeOptions()
    accesses: list[Access] = []
    async with open_groupless_engine(foreign) as engine:
        app = create_app(engine, options)
        prepare_app(app, options)
        yield AsgiClient(app, state={STATE_KEY: ServerState(accesses.append)}), accesses


async def ask(client: AsgiClient, **fields: object) -> HttpResponse:
    return await client.request("POST", TEXT, body=body(**fields))


@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices_are_answered_and_their_prompt_counted_once(stream: bool) -> None:  # FAN-13, FAN-21
    foreign = FakeChoiceEngine()
    async with serving(foreign) as (client, _):
        response = await ask(client, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert response.status == 200
    texts, usage = dict.fromkeys(range(3), ""), {}
    answers = response.body.decode().split("\n\n")[:-2] if stream else [response.body.decode()]
    for answer in answers:
        chunk = json.loads(answer.removeprefix("data: "))
        usage = chunk["usage"]
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "123456789", 1: "234567890", 2: "345678901"}
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 30)
    assert [each.cached_tokens for each in foreign.submitted] == [0, 5, 5]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_first_choice_has_its_status_before_any_header(stream: bool) -> None:  # FAN-10
    foreign = FakeChoiceEngine(refuse=lambda _: QueueFullError("full", 7))
    async with serving(foreign) as (client, _):
        response = await ask(client, stream=stream)
    assert (response.status, response.headers["retry-after"]) == (429, "7")
    assert len(foreign.uids) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("seconds", "submitted"), [(0.05, 1), (0.5, 1), (1.15, 3), (1.25, 3)])
async def test_a_disconnect_ends_what_was_submitted_and_submits_nothing_more(
    stream: bool, seconds: float, submitted: int
) -> None:  # FAN-25
    foreign = FakeChoiceEngine()
    async with serving(foreign) as (client, accesses):
        async with client.open("POST", TEXT, body=body(stream=stream, max_tokens=9)) as exchange:
            await trio.sleep(seconds)
            exchange.disconnect()
            await trio.sleep(0.01)
            assert (foreign.live, foreign.admitting) == (set(), 0)
        await trio.sleep(10)
        assert len(foreign.uids) == submitted
        assert [access.status for access in accesses] == [499]
