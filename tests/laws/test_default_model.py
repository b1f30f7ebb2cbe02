"""FAN-15 with a model that people use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio
from trioserve_kernels.cpu.library import library_path

from trioserve.engine.answers import ChoiceAnswer
from trioserve.engine.engine import Engine
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.params import SamplingParams

PROMPT = "The three things I like most about the sea are"
PARAMS = SamplingParams(n=4, seed=1234, temperature=1.0, top_p=0.98, max_tokens=24)


def said(choice: ChoiceAnswer) -> tuple[object, ...]:
    return choice.text, choice.token_ids, choice.reason, choice.usage.completion_tokens


@pytest.mark.model
@pytest.mark.parametrize("device", ["cpu", "reference"])
async def test_four_choices_are_the_four_answers_to_their_seeds(
    default_model_path: Path, device: Literal["cpu", "reference"]
) -> None:
    if device == "cpu" and library_path() is None:
        pytest.skip("there are no native kernels")
    options = EngineOptions(device=device, context_length=256, kv_tokens=2048, prefix_cache=False, threads=1)
    singles: dict[int, ChoiceAnswer] = {}

    async def ask(engine: Engine, j: int) -> None:
        answer = await engine.complete(PROMPT, attrs.evolve(PARAMS, n=1, seed=1234 + j))
        (singles[j],) = answer.choices

    async with open_engine(default_model_path, options) as engine:
        group = await engine.complete(PROMPT, PARAMS)
        # each for itself, among strangers
        async with trio.open_nursery() as everybody:
            for number in range(3):
                strangers = SamplingParams(n=4, temperature=0.3 + number / 2, max_tokens=20)
                everybody.start_soon(engine.complete, "Once upon a time" * number + " I", strangers)
            for j in range(4):
                everybody.start_soon(ask, engine, j)
        among_strangers = [singles[j] for j in range(4)]
        # and one all alone
        await ask(engine, 2)
    assert [said(choice) for choice in group.choices] == [said(choice) for choice in among_strangers]
    assert said(group.choices[2]) == said(singles[2])
    assert len({choice.text for choice in group.choices}) == 4


KNOWN = Path(__file__).parents[1] / "device" / "data" / "expected_smollm2.json"
FIRST_TOKENS = 12
"""Of each answer; tests/device compares all 48, computed without an engine."""


@pytest.mark.model
async def test_eight_answers_are_those_of_transformers_under_any_schedule(default_model_path: Path) -> None:
    # case real-model-parity: in a batch of 8 and in chunks, from a warm cache, after preemptions
    known = sorted(json.loads(KNOWN.read_text())["prompts"], key=lambda case: len(case["prompt"]))[-8:]
    params = SamplingParams(temperature=0.0, max_tokens=FIRST_TOKENS, ignore_eos=True)
    longest = len(known[-1]["prompt"]) + FIRST_TOKENS
    answers: list[ChoiceAnswer | None] = [None] * 8
    cached: list[int] = [0] * 8

    async def ask(engine: Engine, number: int) -> None:
        answer = await engine.complete(known[number]["prompt"], params)
        (answers[number],) = answer.choices
        cached[number] = answer.cached_tokens

    async def check(engine: Engine) -> None:
        async with trio.open_nursery() as everybody:
            for number in range(8):
                everybody.start_soon(ask, engine, number)
        for case, answer in zip(known, answers, strict=True):
            assert answer is not None
            assert list(answer.token_ids) == case["answer"][: len(answer.token_ids)]
            assert len(answer.token_ids) == min(FIRST_TOKENS, len(case["answer"]))

    options = EngineOptions(context_length=256, page_size=4, kv_tokens=2048, max_batch_tokens=24, threads=1)
    async with open_engine(default_model_path, options) as engine:
        await check(engine)
        await check(engine)
        assert min(cached) > 0
    async with open_engine(default_model_path, attrs.evolve(options, kv_tokens=longest + 40)) as engine:
        await check(engine)
        assert engine.statistics().scheduler.preemptions > 0
