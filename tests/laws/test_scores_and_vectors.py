"""Scored prompts and vectors of a real model on a real device, against a plain forward pass of the whole text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import trio

from trioserve.engine.engine import Engine
from trioserve.events import PromptScored, TextDelta, TokenLogprob
from trioserve.model.loaded import LoadedModel
from trioserve.params import Pooling, SamplingParams
from trioserve.testing.dense import dense_logits

PAGE = 16
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 1]


def prompt_of(length: int) -> list[int]:
    return [(7 * i * i + 3 * i) % 900 + 30 for i in range(length)]


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


async def scores(engine: Engine, prompt: list[int], params: SamplingParams) -> list[TokenLogprob | None]:
    """Of the prompt, and of what was drawn after it."""
    told: list[TokenLogprob | None] = []
    async with engine.generate([prompt], params) as generation:
        async for event in generation:
            if isinstance(event, PromptScored):
                assert list(event.token_ids) == prompt
                told = [*event.logprobs, *told]
            elif isinstance(event, TextDelta):
                told += event.logprobs
    return told


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_text_is_scored_as_in_a_plain_forward_pass(
    tiny_engine: Callable, tiny_model: LoadedModel, length: int
) -> None:
    # cases echo-logprobs, prompt-logprobs-vs-prefix-cache
    prompt = prompt_of(length)
    scored = SamplingParams(logprobs=2, prompt_logprobs=2, max_tokens=1, temperature=0.0)
    plain = SamplingParams(max_tokens=8, temperature=0.0)
    async with tiny_engine(page_size=PAGE, max_batch_tokens=20) as engine:
        cold = await scores(engine, prompt, scored)
        results: list[list[TokenLogprob | None]] = []

        async def again() -> None:
            results.append(await scores(engine, prompt, scored))

        async with trio.open_nursery() as nursery:
            # in one batch with a request that has none
            nursery.start_soon(engine.complete, [prompt], plain)
            nursery.start_soon(again)
        nothing_drawn = await scores(engine, prompt, SamplingParams(prompt_logprobs=2, max_tokens=0))
    assert results == [cold]
    assert nothing_drawn == cold[:length]
    assert cold[0] is None
    assert len(cold) == length + 1
    tokens = [*prompt, *(score.token_id for score in cold[length:] if score is not None)]
    expected = log_softmax(dense_logits(tiny_model.spec, tiny_model.weights, tokens))
    for position, score in enumerate(cold[1:], start=1):
        assert score is not None
        row = expected[position - 1]
        assert score.token_id == tokens[position]
        assert score.logprob == pytest.approx(row[tokens[position]], abs=1e-4)
        assert [logprob for _, logprob in score.top] == pytest.approx(sorted(row)[-1:-3:-1], abs=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_a_vector_is_what_the_head_makes_the_logits_of(
    tiny_engine: Callable, tiny_model: LoadedModel, pooling: Pooling
) -> None:
    """The head is linear: what it makes of the vector points where the logits, or their mean, do."""
    prompts = [prompt_of(length) for length in LENGTHS]
    spec, weights = tiny_model.spec, tiny_model.weights
    head = weights.float32("embedding" if spec.tied_head else "head").astype(np.float64)
    async with tiny_engine(page_size=PAGE, max_batch_tokens=20, pooling=pooling) as engine:
        together = await engine.embed(prompts)
        alone = [(await engine.embed([prompt])).vectors[0] for prompt in prompts]
    # bit for bit
    assert list(together.vectors) == alone
    assert together.prompt_tokens == sum(LENGTHS)
    for prompt, vector in zip(prompts, together.vectors, strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)
        logits = dense_logits(spec, weights, prompt)
        wanted = logits.mean(axis=0) if pooling == "mean" else logits[-1]
        found = head @ np.asarray(vector, dtype=np.float64)
        assert found / np.linalg.norm(found) == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-4)
