"""What a model answers to a choice that is all alone: the oracle for all that may happen to choices in company.

Owns: Lone, LoneGenerator. Must not know: schedulers.

There is no scheduler here: one sequence, its prompt in one piece, then one token a step; and a prompt that is scored
comes token by token, which no scheduler would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs
from trioserve_kernels.cpu.library import PAGE_TOKENS

from trioserve.events import FinishReason, TokenLogprob
from trioserve.model.loaded import LoadedModel
from trioserve.params import SamplingParams
from trioserve.step import Matcher, StepResult
from trioserve.structure import Structure
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.witness import Witnessed, open_witness
from trioserve.text.grammar import GrammarMatcher, GrammarTokens, compile_structure

TOP = 4
"""How many of the likeliest tokens are known in place of each token: what is compared can't have more."""


@attrs.frozen
class Lone:
    """A choice, generated alone."""

    tokens: tuple[int, ...]
    finish: FinishReason
    witnessed: tuple[Witnessed, ...]
    logprobs: tuple[TokenLogprob, ...]
    """Of each token, with the TOP likeliest ones."""

    @property
    def mean_logprob(self) -> float:
        """Of the tokens, added up one after another."""
        total = 0.0
        for score in self.logprobs:
            total += score.logprob
        return total / len(self.logprobs)


@attrs.frozen
class LoneScores:
    """The log-probabilities of a prompt, computed alone."""

    logprobs: tuple[TokenLogprob | None, ...]
    witnessed: tuple[Witnessed, ...]


class LoneGenerator:
    """Generates one choice at a time, and nothing beside it. What it was asked once it knows."""

    def __init__(self, model: LoadedModel, device: Literal["reference", "cpu"]) -> None:
        length = model.spec.context_length
        size = PAGE_TOKENS if device == "cpu" else length
        self._pages = range(length // size)
        self._device = open_witness(model, device, page_size=size, page_count=len(self._pages))
        self._tokens = GrammarTokens(model.tokenizer, model.spec.vocab_size)
        self._matchers: dict[Structure, GrammarMatcher] = {}
        self._answers: dict[tuple[object, ...], Lone] = {}
        self._scores: dict[tuple[int, ...], LoneScores] = {}
        self.context_length = length

    def close(self) -> None:
        self._device.close()

    def matcher(self, structure: Structure | None) -> Matcher | None:
        """One at its start, which is nobody else's."""
        if structure is None:
            return None
        if structure not in self._matchers:
            self._matchers[structure] = compile_structure(structure, self._tokens)
        return self._matchers[structure].copy()

    def answer(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        j: int = 0,
        *,
        stop_ids: frozenset[int] = frozenset(),
        capacity: int | None = None,
        passes_stops: bool = False,
    ) -> Lone:
        """What choice j has to be, whatever ``params`` say of events and company.

        Args:
            prompt: token ids.
            params: with a seed, a temperature and a number of tokens.
            j: counts from 0.
            stop_ids: they end it, from ``min_tokens`` on.
            capacity: tokens of a sequence at most, those of the prompt included; None: the model's.
            passes_stops: what it would say if a stop id did not end it.
        """
        assert params.seed is not None
        assert params.temperature is not None
        assert params.max_tokens is not None
        # of what is drawn with, all that may make a difference
        drawn_with = attrs.evolve(
            params,
            n=1,
            best_of=None,
            seed=(params.seed + j + 2**63) % 2**64 - 2**63,
            max_tokens=min(params.max_tokens, (capacity or self.context_length) - len(prompt)),
            min_tokens=min(params.min_tokens, params.max_tokens, (capacity or self.context_length) - len(prompt)),
            logprobs=None,
            prompt_logprobs=None,
            priority=0,
            cache_salt=None,
        )
        key = (tuple(prompt), drawn_with, params.min_tokens, stop_ids, passes_stops)
        if key not in self._answers:
            self._answers[key] = self._generate(prompt, drawn_with, params.min_tokens, stop_ids, passes_stops)
        return self._answers[key]

    def scores(self, prompt: Sequence[int]) -> LoneScores:
        """The log-probabilities of a prompt, with the TOP likeliest ones in place of each token."""
        key = tuple(prompt)
        if key not in self._scores:
            self._device.witnessed.clear()
            logprobs: list[TokenLogprob | None] = [None]
            for position, token in enumerate(prompt[:-1]):
                row = Row(target=prompt[position + 1], logprobs=1 + TOP)
                span = Span(tokens=[token], start=position, pages=self._pages, rows=[row])
                logprobs.append(_score(self._device.run(make_plan([span]))))
            self._scores[key] = LoneScores(tuple(logprobs), tuple(self._device.witnessed))
        return self._scores[key]

    def _generate(
        self, prompt: Sequence[int], params: SamplingParams, min_tokens: int, stop_ids: frozenset[int], passes: bool
    ) -> Lone:
        self._device.witnessed.clear()
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        matcher = self.matcher(params.structure)
        fed, start = list(prompt), 0
        while True:
            row = _row(params, prompt, tokens, stop_ids if len(tokens) < min_tokens else frozenset(), matcher)
            span = Span(tokens=fed, start=start, pages=self._pages, rows=[row])
            result = self._device.run(make_plan([span]))
            token = result.token_ids[0]
            finish: FinishReason | None = None
            if token < 0:
                finish = "error"
            else:
                tokens.append(token)
                logprobs.append(_score(result))
                if (matcher is not None and matcher.advance(token)) or (token in stop_ids and not passes):
                    finish = "stop"
                elif len(tokens) == params.max_tokens:
                    finish = "length"
            if finish is not None:
                return Lone(tuple(tokens), finish, tuple(self._device.witnessed), tuple(logprobs))
            start += len(fed)
            fed = [token]


def _row(
    params: SamplingParams,
    prompt: Sequence[int],
    tokens: Sequence[int],
    forbidden: frozenset[int],
    matcher: Matcher | None,
) -> Row:
    """How the next token is drawn after ``tokens``, of which none is to be ``forbidden``."""
    assert params.seed is not None
    assert params.temperature is not None
    return Row(
        seed=params.seed % 2**64,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        logprobs=1 + TOP,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        generated=tuple(tokens),
        prompt=tuple(prompt),
        bias={**dict(params.logit_bias), **dict.fromkeys(forbidden, -math.inf)},
        matcher=matcher,
    )


def _score(result: StepResult) -> TokenLogprob:
    """That of the one row of a step."""
    top = zip(result.top_ids, result.top_logprobs, strict=True)
    return TokenLogprob(result.token_ids[0], result.logprobs[0], tuple(top))
