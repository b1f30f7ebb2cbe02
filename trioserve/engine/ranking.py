"""The best of each prompt's candidates (FAN-32).

Owns: the events of candidates until all of their prompt have finished, who is better, and which choice tells what of
the prompt's usage. Must not know: how candidates run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from trioserve.engine.deltas import join_deltas
from trioserve.events import ChoiceFinished, Delta, Event, FinishReason

_TIERS: Final[Mapping[FinishReason, int]] = {"stop": 0, "length": 0, "tool_calls": 0, "cancelled": 1, "error": 2}


def standing(ending: ChoiceFinished) -> tuple[int, float, int]:
    """A sort key, the lowest of which is that of the best candidate.

    First those that ended by themselves, then those that were cancelled, then those that failed. Among these the higher
    mean log-probability per token is better, and no token at all the worst; of equals, the lower index is better.
    """
    mean = -math.inf if ending.mean_logprob is None else ending.mean_logprob
    return _TIERS[ending.reason], -mean, ending.index


class Ranking:
    """Holds the events of all candidates of a request back, and lets through those of the best.

    Events come in with candidates' indices, p * candidates + c. When the last candidate of prompt p has finished, the n
    best go out, whole and with the indices of choices: p * n is the best one.
    """

    def __init__(self, n: int, candidates: int, prompts: int) -> None:
        self._n = n
        self._candidates = candidates
        self._said: dict[int, list[Delta]] = {index: [] for index in range(prompts * candidates)}
        self._endings: list[list[ChoiceFinished]] = [[] for _ in range(prompts)]

    def __repr__(self) -> str:
        finished = [len(endings) for endings in self._endings]
        return f"<Ranking: best {self._n} of {self._candidates}, finished: {finished}>"

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """Take events of candidates; the events of choices that follow from them."""
        best: list[Event] = []
        for event in events:
            if isinstance(event, Delta):
                self._said[event.index].append(event)
            elif isinstance(event, ChoiceFinished):
                prompt = event.index // self._candidates
                self._endings[prompt].append(event)
                if len(self._endings[prompt]) == self._candidates:
                    best += self._best(prompt)
            else:
                best.append(event)  # of a prompt, and so of no candidate
        return best

    def _best(self, prompt: int) -> Iterable[Event]:
        ranked = sorted(self._endings[prompt], key=standing)
        # of candidate 0 and of its siblings: what the prompt had in the cache, and how long it is
        cached_tokens = sum(ending.usage.cached_tokens for ending in ranked)
        prompt_tokens = max(ending.usage.shared_tokens for ending in ranked)
        discarded_tokens = sum(ending.usage.completion_tokens for ending in ranked[self._n :])
        all_said = [self._said.pop(ending.index) for ending in ranked]
        for j, (ending, said) in enumerate(zip(ranked[: self._n], all_said, strict=False)):
            index = prompt * self._n + j
            usage = attrs.evolve(
                ending.usage,
                cached_tokens=0 if j else cached_tokens,
                shared_tokens=prompt_tokens if j else 0,
                discarded_tokens=0 if j else discarded_tokens,
            )
            for delta in join_deltas(said):
                yield attrs.evolve(delta, index=index)
            yield attrs.evolve(ending, index=index, usage=usage)
