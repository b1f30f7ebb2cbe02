"""The whole scheduler under anything that can happen to it, against each choice run alone.

The simulation (conftest.py) checks every plan against simulated pages, every delivery against the oracle, and the
books after every call. What is left to show here: nothing is stuck, nothing is lost, nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trioserve.errors import ParamError, QueueFullError

SETTINGS = settings(max_examples=120, stateful_step_count=50, deadline=None, derandomize=True, database=None)
FULL_CHOICES = 16
CHANGES = [
    {},
    {"min_tokens": 3},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -1.0, "biases": ((2, 1.5),)},
    {"repetition_penalty": 1.2, "min_tokens": 2},
    {"biases": ((0, -3.0), (6, 2.0)), "min_tokens": 5},
    {"structured": 4},
    {"structured": 2, "presence_penalty": 2.0},
]
"""More fields of the choices; "structured" stands for a matcher that is complete after so many tokens."""


class Machine(RuleBasedStateMachine):
    """Groups come, steps begin and land, and between any two of these choices are aborted, paused and drained."""

    uids = Bundle("uids")

    def __init__(self, simulate: Callable, stop_id: int) -> None:
        super().__init__()
        self.simulate, self.stop_id = simulate, stop_id
        self.prompt_tokens = 0
        self.aborted = False

    @initialize(
        page_size=st.integers(1, 4),
        page_count=st.integers(2, 14),
        max_running=st.integers(1, 6),
        max_batch_tokens=st.sampled_from([1, 2, 3, 5, 8, 32]),
        prefix_cache=st.booleans(),
        max_overtaken_s=st.sampled_from([0, 1, 3, 20]),
        lookup_rows=st.sampled_from([0, 4, 8]),
        lookup_tokens=st.integers(1, 4),
    )
    def start(self, **options: int) -> None:
        self.sim = self.simulate(**options, max_queued=FULL_CHOICES)

    @rule(
        target=uids,
        # few different tokens, so that prompts begin the same
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=16),
        limits=st.lists(st.one_of(st.integers(1, 16), st.integers(0, 3)), min_size=1, max_size=5),
        seed=st.integers(0, 3),
        stops=st.booleans(),
        prompt_lookup=st.booleans(),
        predicts=st.sampled_from([None, 0, 1, 3]),
        prompt_logprobs=st.sampled_from([0, 0, 0, 1, 3]),
        priority=st.sampled_from([0, 0, 0, 5, -1]),
        cache_salt=st.sampled_from([b"", b"", b"salt", b"other"]),
        change=st.sampled_from(CHANGES),
    )
    def submit(
        self,
        prompt: list[int],
        limits: list[int],
        seed: int,
        stops: bool,
        prompt_lookup: bool,
        predicts: int | None,
        **others: object,
    ) -> object:
        before = self.sim.state.statistics()
        stop_ids = frozenset({self.stop_id} if stops else ())
        change = others.pop("change")
        assert isinstance(change, dict)
        try:
            uids = self.sim.submit(
                prompt,
                len(limits),
                max_tokens=limits,
                seed=seed,
                stop_ids=stop_ids,
                prompt_lookup=prompt_lookup,
                # the first choice gives the answer that is predicted, or nearly
                prediction=None if predicts is None else self.sim.almost(prompt, seed, wrong=predicts),
                **others,
                **change,
            )
        except ParamError:
            assert len(prompt) >= self.sim.capacity
        except QueueFullError:
            pass
        else:
            self.prompt_tokens += len(prompt)
            return multiple(*uids)
        assert self.sim.state.statistics() == before
        return multiple()

    @precondition(lambda self: self.sim.in_flight is None)
    @rule()
    def begin(self) -> None:
        if self.sim.begin() is None:
            assert set(self.sim.live) <= self.sim.paused, "somebody could run, and does not"

    @precondition(lambda self: self.sim.in_flight is not None)
    @rule()
    def land(self) -> None:
        self.sim.now += 1.0
        self.sim.land()

    @rule(uid=uids)
    def abort(self, uid: str) -> None:
        was_live = uid in self.sim.live
        assert self.sim.abort(uid) == was_live
        self.aborted |= was_live

    @rule(uid=uids)
    def pause(self, uid: str) -> None:
        self.sim.pause(uid)

    @rule(uid=uids)
    def drain(self, uid: str) -> None:
        self.sim.drained(uid)

    @rule()
    def flush(self) -> None:
        self.sim.state.flush_cache()
        self.sim.state.check()

    @invariant()
    def every_live_choice_is_counted_once(self) -> None:
        if not hasattr(self, "sim"):
            return
        statistics = self.sim.state.statistics()
        states = (statistics.running, statistics.prefilling, statistics.paused, statistics.waiting)
        assert sum(states) == len(self.sim.live)
        pages = statistics.pages_free + statistics.pages_cached + statistics.pages_held
        assert pages == self.sim.options.page_count

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        sim = self.sim
        if sim.in_flight is not None:
            sim.land()
        for uid in sorted(sim.paused):
            sim.drained(uid)
        # alone and one after the other, with a token a step, they would take this long
        tokens = sum(len(sim[uid].prompt) + sim[uid].spec.max_tokens for uid in sim.live)
        sim.finish(bound=4 * tokens + 1)
        assert not sim.live
        assert sim.state.idle
        statistics = sim.state.statistics()
        assert statistics.pages_held == 0
        if not self.aborted:  # FAN-8
            assert statistics.prompt_tokens_computed + statistics.prompt_tokens_cached == self.prompt_tokens
        if statistics.preemptions == 0:
            assert statistics.tokens_recomputed == 0


def test_nothing_is_stuck_lost_or_left_over_whatever_happens(simulate: Callable, stop_id: int) -> None:
    # FAN-15, FAN-27; cases radix-accounting, preempt-same-output, pool-exhaustion
    run_state_machine_as_test(partial(Machine, simulate, stop_id), settings=SETTINGS)
