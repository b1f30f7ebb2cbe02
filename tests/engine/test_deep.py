"""Calls with a stack of their own."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from trioserve.engine.deep import call_deep
from trioserve.engine.structures import Structures
from trioserve.errors import ParamError
from trioserve.structure import Structure
from trioserve.testing.tokenizer import ByteTokenizer


def test_a_deep_call_is_a_call() -> None:
    usual = threading.stack_size()
    assert call_deep(lambda: 7) == 7
    with pytest.raises(KeyError):
        call_deep({}.popitem)
    assert threading.stack_size() == usual


@pytest.mark.parametrize("link", ['"b" r{}', "(((((r{})?)*)+)?)*", "r{}? r{}?"])
async def test_rules_may_lead_to_rules_as_far_as_a_grammar_is_long(link: str) -> None:
    # this ended the process: the usual stack has room for some 3000 rules, or 400 in brackets
    rules = [f"r{i}: {link.replace('{}', str(i + 1))}" for i in range(3500 if "(" not in link else 1500)]
    text = "\n".join(["start: r0", *rules, f'r{len(rules)}: "a"'])
    structures = Structures(ByteTokenizer(), 259, seconds=None)
    # one of llguidance's limits is all that may be over
    with suppress(ParamError):
        await structures.compile(Structure(kind="lark", text=text, param="structured_outputs.grammar"))
