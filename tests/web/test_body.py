"""The body of a request, without an exchange around it."""

from __future__ import annotations

import pytest
import trio
from werkzeug.exceptions import RequestEntityTooLarge

from trioserve.web.body import RequestBody


async def test_a_body_is_what_arrived_until_its_end() -> None:
    body = RequestBody(None, 10)
    body.feed(b"abc")
    body.feed(b"de")
    with trio.move_on_after(5) as waiting:
        await body
    assert waiting.cancelled_caught
    body.end()
    assert await body == b"abcde"
    assert await body == b"abcde"


async def test_clearing_frees_the_data() -> None:
    body = RequestBody(None, None)
    body.feed(b"abc")
    body.end()
    body.clear()
    assert await body == b""


@pytest.mark.parametrize("announced", [11, None])
async def test_a_body_beyond_the_limit_is_refused_before_its_end(announced: int | None) -> None:
    body = RequestBody(announced, 10)
    body.feed(bytes(11))
    with pytest.raises(RequestEntityTooLarge):
        await body


async def test_an_announcement_is_believed() -> None:
    with pytest.raises(RequestEntityTooLarge):
        await RequestBody(11, 10)


@pytest.mark.parametrize("limit", [10, None])
async def test_a_body_of_the_limit_or_without_one_is_taken(limit: int | None) -> None:
    body = RequestBody(10, limit)
    body.feed(bytes(10))
    body.end()
    assert await body == bytes(10)


async def test_iterating_gives_everything_at_once() -> None:
    body = RequestBody(None, None)
    body.feed(b"abc")
    body.feed(b"de")
    body.end()
    assert [data async for data in body] == [b"abcde"]
