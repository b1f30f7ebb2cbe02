"""From the structure of a request to the matcher that its choices begin with.

Owns: the compiled structures of one engine, and the time that compiling may take. Must not know: what a grammar is.

Compiling happens in a thread, and that thread can't be stopped. So when it takes too long, or nobody waits for it any
more, it is left alone; the limits of the grammar end it, and until then it keeps others from compiling if there are too
many of its kind.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial
from typing import Final

import trio

from trioserve.abc import Tokenizer
from trioserve.engine.deep import call_deep
from trioserve.errors import ParamError
from trioserve.step import Matcher
from trioserve.structure import Structure
from trioserve.text.grammar import GrammarMatcher, GrammarTokens, compile_structure

MAX_CACHED_CHARACTERS: Final = 1_000_000
"""Of the texts of the structures that are kept compiled, all together."""
MAX_CACHED: Final = 24
"""Structures that are kept. One of them may have up to 100 MB of states; most have less than one."""
MAX_COMPILING: Final = 2
"""Structures that are compiled at once."""


class Structures:
    """Compiles structures, and keeps those that were asked for last: agents ask for the same again and again."""

    def __init__(self, tokenizer: Tokenizer, width: int, seconds: float | None) -> None:
        """``width`` is that of the logits; ``seconds`` as EngineOptions.compile_seconds."""
        self._tokenizer = tokenizer
        self._width = width
        self._seconds = seconds
        self._tokens: GrammarTokens | None = None
        self._making_tokens = trio.Lock()
        self._compiling = trio.CapacityLimiter(MAX_COMPILING)
        self._cached: OrderedDict[tuple[str, str], GrammarMatcher] = OrderedDict()
        self._characters = 0

    def __repr__(self) -> str:
        return f"<Structures: {len(self._cached)} kept, {self._characters} characters>"

    async def compile(self, structure: Structure) -> Matcher:
        """A matcher at its start, for one request.

        Raises:
            ParamError: the structure can't be enforced, or takes too long to compile or to follow.
        """
        key = (structure.kind, structure.text)
        cached = self._cached.get(key)
        if cached is not None and cached.is_slow:
            await trio.lowlevel.checkpoint()
            raise ParamError(
                f"{structure.param} can't be enforced: to tell what may come next took too long in an earlier request.",
                structure.param,
            )
        if cached is None or cached.is_spent:
            try:
                tokens = await self._get_tokens()
                cached = await self._compile(structure, tokens)
            except ParamError as error:
                # that of a model which can't have structures at all
                raise error if error.param is not None else ParamError(str(error), structure.param) from None
            self._keep(key, cached)
        else:
            self._cached.move_to_end(key)
            await trio.lowlevel.checkpoint()
        # the one that is kept stays at the start
        return cached.copy()

    async def _get_tokens(self) -> GrammarTokens:
        async with self._making_tokens:
            if self._tokens is None:
                if self._seconds is None:
                    self._tokens = GrammarTokens(self._tokenizer, self._width)
                else:
                    self._tokens = await trio.to_thread.run_sync(GrammarTokens, self._tokenizer, self._width)
        return self._tokens

    async def _compile(self, structure: Structure, tokens: GrammarTokens) -> GrammarMatcher:
        seconds = self._seconds
        if seconds is None:
            await trio.lowlevel.checkpoint()
            return call_deep(partial(compile_structure, structure, tokens, time.thread_time))
        scope = trio.CancelScope()

        def start_clock() -> None:
            scope.deadline = trio.current_time() + seconds

        def work() -> GrammarMatcher:
            # here, and not before: the wait for a thread is not the fault of this structure
            trio.from_thread.run_sync(start_clock)
            return call_deep(partial(compile_structure, structure, tokens, time.thread_time))

        matcher: GrammarMatcher | None = None
        with scope:
            matcher = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._compiling)
        if matcher is None:
            raise ParamError(f"{structure.param} takes more than {seconds:g} s to compile.", structure.param)
        return matcher

    def _keep(self, key: tuple[str, str], matcher: GrammarMatcher) -> None:
        # there may be one: another request compiled it meanwhile, or it is spent
        if self._cached.pop(key, None) is not None:
            self._characters -= len(key[1])
        self._cached[key] = matcher
        self._characters += len(key[1])
        while len(self._cached) > MAX_CACHED or self._characters > MAX_CACHED_CHARACTERS:
            (_, text), _ = self._cached.popitem(last=False)
            self._characters -= len(text)
