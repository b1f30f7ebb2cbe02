"""Structures on real devices: a tiny model with random weights, whose answers are noise, writes what it must."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

import attrs
import pytest
from jsonschema import Draft202012Validator

from trioserve.params import SamplingParams
from trioserve.structure import Structure

Say = Callable[..., Awaitable[list]]

SCHEMA = {
    "type": "object",
    "properties": {
        "when": {"type": "string", "format": "date"},
        "size": {"enum": ["small", "grösser", None]},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "note": {"type": "string", "maxLength": 6},
    },
    "required": ["when", "size"],
    "additionalProperties": False,
}
# the likeliest tokens and the unlikeliest ones
PARAMS = SamplingParams(
    n=24, seed=1, temperature=2.0, max_tokens=200, structure=Structure(kind="json_schema", text=json.dumps(SCHEMA))
)


@pytest.mark.parametrize("device", ["reference", "cpu"])
async def test_every_choice_that_stops_is_valid(tiny_engine: Callable, say_whole: Say, device: str) -> None:
    # case schema-semantics
    validator = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
    async with tiny_engine(device=device) as engine:
        whole = await say_whole(engine, "name a day", PARAMS)
        cut = await say_whole(engine, "name a day", attrs.evolve(PARAMS, max_tokens=9))
    stopped = [choice for choice in whole if choice.reason == "stop"]
    assert len(stopped) > 12
    for choice in stopped:
        validator.validate(json.loads(choice.text))
    # what is cut off is the beginning of the same
    for short, long in zip(cut, whole, strict=True):
        assert short.reason == "length"
        assert long.text.startswith(short.text.rstrip("\ufffd"))


@pytest.mark.parametrize("condition", ["alone", "preempted", "chunked"])
async def test_a_structured_choice_does_not_depend_on_its_company(
    tiny_engine: Callable, say_whole: Say, condition: str
) -> None:  # FAN-15; case preempt-same-output
    params = attrs.evolve(PARAMS, n=6, max_tokens=60)
    async with tiny_engine(page_size=4) as engine:
        expected = await say_whole(engine, "name a day", params)
    options = {"preempted": {"kv_tokens": 256, "page_size": 4}, "chunked": {"max_batch_tokens": 8}}.get(condition, {})
    async with tiny_engine(**options) as engine:
        if condition == "alone":
            found = [
                choice
                for j in range(6)
                for choice in await say_whole(engine, "name a day", attrs.evolve(params, n=1, seed=1 + j))
            ]
        else:
            found = await say_whole(engine, "name a day", params)
            assert engine.statistics().scheduler.preemptions > 0 or condition != "preempted"
    assert found == expected


async def test_greedy_choices_are_what_they_must_be_too(tiny_engine: Callable, say_whole: Say) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=50, structure=Structure(kind="regex", text="[a-z]{3,5}[0-9]!"))
    async with tiny_engine() as engine:
        (choice,) = await say_whole(engine, "a", params)
    assert choice.reason == "stop"
    assert re.fullmatch("[a-z]{3,5}[0-9]!", choice.text)
