"""Compiling structures in threads, on the real clock: a thread counts as blocked in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from trioserve.engine import structures
from trioserve.engine.structures import MAX_COMPILING, Structures
from trioserve.errors import ParamError
from trioserve.structure import Structure
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.text.grammar import Clock, GrammarTokens, compile_structure

SLOW = Structure(kind="regex", text="slow", param="structured_outputs.regex")
QUICK = Structure(kind="regex", text="quick")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set, it lets go of the compiling of SLOW."""
    go = threading.Event()

    def compile_when_let_go(structure: Structure, tokens: GrammarTokens, clock: Clock) -> object:
        if structure == SLOW:
            go.wait(60)
        return compile_structure(structure, tokens, clock)

    monkeypatch.setattr(structures, "compile_structure", compile_when_let_go)
    yield go
    go.set()


async def test_the_event_loop_and_other_structures_go_on_meanwhile(held: threading.Event) -> None:
    compiler = Structures(ByteTokenizer(), 259, seconds=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compiler.compile, SLOW)
        await compiler.compile(QUICK)
        held.set()


async def test_a_structure_that_takes_too_long_is_refused(held: threading.Event) -> None:
    compiler = Structures(ByteTokenizer(), 259, seconds=0.02)
    with pytest.raises(ParamError, match="takes more than") as caught:
        await compiler.compile(SLOW)
    assert caught.value.param == "structured_outputs.regex"
    await compiler.compile(QUICK)


async def test_who_leaves_does_not_wait_for_it(held: threading.Event) -> None:
    compiler = Structures(ByteTokenizer(), 259, seconds=60)
    await compiler.compile(QUICK)
    with trio.fail_after(10), trio.move_on_after(0.02) as scope:
        await compiler.compile(SLOW)
    assert scope.cancelled_caught


async def test_the_wait_for_a_thread_is_not_counted(held: threading.Event) -> None:
    compiler = Structures(ByteTokenizer(), 259, seconds=60)
    with trio.move_on_after(0.02):
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_COMPILING):
                nursery.start_soon(compiler.compile, SLOW)
    # all threads are taken by what nobody waits for any more
    compiler._seconds = 0.5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compiler.compile, QUICK)
        await trio.sleep(0.7)
        held.set()
