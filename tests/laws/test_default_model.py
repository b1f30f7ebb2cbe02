"""FAN-15 with a model that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio
from trioserve_kernels.cpu.library import library_path

from trioserve.engine.engine import ChoiceAnswer, Engine
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
