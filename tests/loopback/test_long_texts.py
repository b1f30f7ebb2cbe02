"""Long texts are tokenized, and made of tokens, in threads: on the real clock, since virtual time doesn't wait for one."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from trioserve.engine.options import EngineOptions
from trioserve.testing.server import SERVE_OPTIONS, serving
from trioserve.testing.tokenizer import ByteTokenizer

LARGE = attrs.evolve(SERVE_OPTIONS, max_body_size=10**6)


class Noting(ByteTokenizer):
    """Notes who decodes: the event loop, or a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.in_loop: list[bool] = []

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        self.in_loop.append(trio.lowlevel.in_trio_run())
        return super().decode(ids, skip_special=skip_special)


async def test_a_long_text_comes_back_as_it_was_and_the_event_loop_goes_on() -> None:
    text, tokenizer = "wörd " * 4000, Noting()
    async with serving(tokenizer=tokenizer, options=EngineOptions(), serve_options=LARGE) as server:
        told = await server.whole("/tokenize", prompt=text, add_special_tokens=False)
        assert told["count"] == len(text.encode())
        assert await server.whole("/detokenize", tokens=told["tokens"]) == {"prompt": text}
        assert await server.whole("/detokenize", tokens=[97]) == {"prompt": "a"}
    assert tokenizer.in_loop == [False, True]
