"""A call with a stack of its own.

Owns: how large the stack is. Must not know: what is called.

Compilers of grammars work by recursion, as deep as the grammar is, and where the stack ends the whole process does. How
large a thread's stack is depends on the system (8 MiB on most, 128 KiB on some) and not on who needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

STACK_SIZE: Final = 512 * 2**20
"""Bytes of address space; memory is taken as far as the stack is used."""

# the size is a setting of the process, for the next thread that starts
_STARTING: Final = threading.Lock()


def call_deep(function: Callable[[], T]) -> T:
    """``function()``, in a thread that starts and ends with it. Blocks."""
    future = Future[T]()

    def work() -> None:
        try:
            result = function()
        # whatever it is, it goes to the caller; this is no task, so there are no Cancelled
        except BaseException as error:  # noqa: ASYNC103
            future.set_exception(error)
        else:
            future.set_result(result)

    # a daemon: a call that takes long must not keep the process from ending
    thread = threading.Thread(target=work, name="trioserve deep", daemon=True)
    with _STARTING:
        usual = threading.stack_size(STACK_SIZE)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return future.result()
