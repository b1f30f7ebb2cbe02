"""The scheduler: which tokens of which sequences are computed when, in which pages.

Owns: SchedulerState, the one object the engine talks to, and the step in flight. Must not know: clocks, tasks,
devices, text. Times, uids and seeds are arguments.

    submit() ─> Waiting ──start──> residents ──────> ended ─> pages free, or in the prefix cache
                   ▲                   │   plan() ─> Flight ─> commit()
                   └─────preempt───────┘

One step is in flight at a time. What two would take: a plan that names a token not known yet by its row in the
plan before; ``Sequence.in_flight`` as a count; sequences that can't be preempted until both have landed; and
``commit`` for the older of two flights. Pages released meanwhile would be safe on a device that runs steps in order.
"""

from __future__ import annotations

import math

import attrs

from trioserve.errors import InvariantError, ParamError, QueueFullError
from trioserve.params import is_finite
from trioserve.sched.commit import Delivery, commit
from trioserve.sched.flight import Flight
from trioserve.sched.group import Group, Uid
from trioserve.sched.memory import Memory
from trioserve.sched.planner import Planner
from trioserve.sched.roster import Roster
from trioserve.step import StepPlan, StepResult

# Nobody plans further ahead than this; a client that comes back too early is only refused again.
LONGEST_RETRY_S = 60


@attrs.frozen(kw_only=True)
class SchedulerOptions:
    """Bounds of a scheduler.

    Raises:
        ParamError: a number is out of range.
    """

    page_size: int
    """Tokens per page."""
    page_count: int
    """Pages of the device; ids are 0 to page_count - 1."""
    max_running: int
    """Choices that decode at once."""
    max_queued: int
    """Choices that may wait for those to end; a group that would make more is refused."""
    max_batch_tokens: int
    """Tokens computed in one step."""
    prefix_cache: bool = True
    """Keep the pages of what was computed for prompts that begin the same."""
    # finite, or a group might never start
    max_overtaken_s: float = attrs.field(default=2.0, validator=is_finite)
    """Seconds from when a waiting group is first overtaken, after which it never is again (see waiting.py). 0: first
    in, first out."""
    lookup_rows: int = 0
    """Rows that decodes and drafts may have in one step together; 0: no drafts at all."""
    lookup_tokens: int = 4
    """Tokens of a draft at most."""

    def __attrs_post_init__(self) -> None:
        for name, value in (
            ("page_size", self.page_size),
            ("page_count", self.page_count),
            ("max_running", self.max_running),
            ("max_queued", self.max_queued),
            ("max_batch_tokens", self.max_batch_tokens),
            ("lookup_tokens", self.lookup_tokens),
        ):
            if value < 1:
                raise ParamError(f"{name} must be at least 1, got {value}.", name)
        if self.lookup_rows < 0:
            raise ParamError(f"lookup_rows must be at least 0, got {self.lookup_rows}.", "lookup_rows")

    @property
    def slots(self) -> int:
        """Choices that can decode in one step, each with one token.

        A quarter of a step is never theirs, so that prompts are computed at that rate at least, however many decode.
        """
        return min(self.max_running, self._decode_tokens)

    @property
    def draft_rows(self) -> int:
        """``lookup_rows``, as far as drafts leave prompts that quarter too."""
        return min(self.lookup_rows, self._decode_tokens)

    @property
    def _decode_tokens(self) -> int:
        return max(1, self.max_batch_tokens * 3 // 4)


@attrs.frozen(kw_only=True)
class SchedulerStatistics:
    """A snapshot, and counts since the start. Every live choice is counted in one of the first four."""

    running: int
    """Choices that decode."""
    prefilling: int
    """Choices whose prompt is computed, or computed again after a preemption."""
    paused: int
    """Choices that keep their pages while nobody takes their tokens."""
    waiting: int
    """Choices that hold no pages of their own."""
    pages_free: int
    pages_cached: int
    """Pages that the prefix cache keeps and nobody uses."""
    pages_held: int
    """Pages in use. With the two above: all pages."""
    groups: int
    """Groups submitted. This and the following only grow."""
    steps: int
    """Results committed."""
    preemptions: int
    """Times that a sequence had to give up its pages."""
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    """Prompt tokens found in the cache. With those computed: the length of every prompt, whatever n is (FAN-8)."""
    tokens_recomputed: int
    """Tokens computed again after a preemption; in no other count."""
    tokens_generated: int
    """Tokens drawn and delivered."""
    drafts: int
    """Drafts that were tried."""
    draft_tokens: int
    """Tokens of those."""
    draft_tokens_accepted: int
    """Those of them that were right, each of which has saved a step."""


class SchedulerState:
    """The scheduler's state and every operation on it. Nothing waits, and nothing is done behind the scenes.

    The engine repeats ``plan`` - run on the device - ``commit``, and calls anything else whenever it likes, while a
    step is in flight too.
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        memory = Memory(options.page_size, options.page_count, prefix_cache=options.prefix_cache)
        self._roster = Roster(memory, options.max_overtaken_s)
        self._planner = Planner(
            self._roster,
            slots=options.slots,
            max_batch_tokens=options.max_batch_tokens,
            lookup_rows=options.draft_rows,
            lookup_tokens=options.lookup_tokens,
        )
        self._flight: Flight | None = None
        self._plan: StepPlan | None = None
        self._plans = 0

    def __repr__(self) -> str:
        return f"<SchedulerState {self._roster}, {self._flight or 'no flight'}>"

    @property
    def idle(self) -> bool:
        """No choice is live and no step is in flight."""
        return not self._roster.choices and self._flight is None

    def submit(self, group: Group, now: float) -> None:
        """Queue a group, whole or not at all (FAN-10). ``now`` is in seconds, of any clock.

        The pool is a context too: a choice whose tokens fill all pages ends with "length" there.

        Raises:
            ParamError: the prompt and one token more don't fit the pages, so it could never run.
            QueueFullError: more choices would run or wait than there are slots and places in the queue.
            InvariantError: a choice with one of the uids is live.
        """
        capacity = self.options.page_size * self.options.page_count
        prompt_tokens, n = len(group.prompt), len(group.choices)
        if prompt_tokens >= capacity:
            raise ParamError(
                f"The prompt has {prompt_tokens} tokens. With the answer, at most {capacity} fit in memory here.",
                "prompt",
                "context_length_exceeded",
            )
        live = [choice.uid for choice in group.choices if choice.uid in self._roster.choices]
        if live:
            raise InvariantError(f"{live[0]} is live already")
        # paused ones take no slot, and might rest for long
        present = len(self._roster.choices) - self._roster.paused_choices
        bound = self.options.slots + self.options.max_queued
        if present + n > bound:
            raise QueueFullError(
                f"{present} choices run or wait; with {n} more it would be over {bound}.", self._retry_after(now)
            )
        self._roster.add(group, capacity, now)

    def abort(self, uid: Uid) -> bool:
        """Forget a choice, whatever it does at the moment. False: it is unknown, or has ended.

        Its pages are released now, or with the commit of the step in flight if that uses them.
        """
        choice = self._roster.choices.get(uid)
        if choice is None:
            return False
        self._roster.end(choice)
        return True

    def pause(self, uid: Uid) -> None:
        """Compute nothing for a choice until ``drained``: nobody takes its tokens (FAN-29).

        It keeps its pages as long as no other sequence needs them. A first token, drawn together with those of
        its siblings, may still come.
        """
        self._set_paused(uid, True)

    def drained(self, uid: Uid) -> None:
        """Go on with a choice that was paused."""
        self._set_paused(uid, False)

    def plan(self, now: float) -> StepPlan | None:
        """Choose the next step; None if nothing can run: no choice is live, or all are paused.

        Raises:
            InvariantError: a step is in flight.
        """
        if self._flight is not None:
            raise InvariantError(f"{self._flight} is in flight")
        self._flight = self._planner.plan(self._plans, now)
        if self._flight is None:
            return None
        self._plans += 1
        self._plan = self._flight.build()
        return self._plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[Delivery]:
        """Apply the result of the step in flight; what it means for the choices, in row order.

        Raises:
            InvariantError: that is not the step in flight, or not its result. Nothing was changed.
        """
        flight = self._flight
        if flight is None or plan is not self._plan or result.number != plan.number:
            raise InvariantError(f"the result of step {result.number} came for plan {plan.number} during {flight}")
        if len(result.token_ids) != len(plan.rows.tokens):
            raise InvariantError(f"{flight} got {len(result.token_ids)} tokens")
        if len(result.logprobs) != len(plan.rows.tokens) and (result.logprobs or any(plan.rows.logprobs)):
            raise InvariantError(f"{flight} got {len(result.logprobs)} log-probabilities")
        likeliest = sum(wanted - 1 for wanted in plan.rows.logprobs if wanted > 1) if result.logprobs else 0
        if not len(result.top_ids) == len(result.top_logprobs) == likeliest:
            raise InvariantError(f"{flight} got {len(result.top_ids)} tokens of {likeliest} that are likeliest")
        self._flight = self._plan = None
        return commit(self._roster, flight, result)

    def flush_cache(self) -> None:
        """Forget what was computed: nothing of it is found again. Live choices keep their pages."""
        self._roster.memory.flush(self._roster.residents)

    def statistics(self) -> SchedulerStatistics:
        """What there is now, and the counts since the start."""
        roster, pool = self._roster, self._roster.memory.pool
        running = prefilling = paused = 0
        for sequence in roster.residents:
            if sequence.behind == 0:
                pass  # a pinned prompt; its choices wait
            elif sequence.paused:
                paused += len(sequence.choices)
            elif sequence.is_prompt or sequence.behind > 1:
                prefilling += len(sequence.choices)
            else:
                running += len(sequence.choices)
        return SchedulerStatistics(
            running=running,
            prefilling=prefilling,
            paused=paused,
            waiting=roster.waiting.choices,
            pages_free=pool.free,
            pages_cached=pool.cached,
            pages_held=pool.held,
            **attrs.asdict(roster.totals),
        )

    def check(self) -> None:
        """Compare all books with each other.

        Raises:
            InvariantError: a page is neither free, cached nor held, a reference count is not the number of users,
                the prefix tree is broken, or a sequence or choice is lost.
        """
        self._roster.check()
        in_flight = {id(sequence) for sequence in self._roster.residents if sequence.in_flight}
        expected: set[int] = set()
        if self._flight is not None:
            expected = {id(sequence) for sequence, _ in self._flight.spans}
            expected |= {id(prompt) for prompt in self._flight.sources if prompt.pages}
        if in_flight != expected:
            raise InvariantError("the sequences in flight are not those of the step in flight")

    def _set_paused(self, uid: Uid, paused: bool) -> None:
        choice = self._roster.choices.get(uid)
        if choice is not None:
            self._roster.pause(choice, paused)

    def _retry_after(self, now: float) -> int:
        """Whole seconds: as long as the oldest in the queue has waited, a newcomer will have to wait about as well."""
        oldest = next(iter(self._roster.waiting), None)
        return 1 if oldest is None else min(LONGEST_RETRY_S, max(1, math.ceil(now - oldest.group.submitted)))
