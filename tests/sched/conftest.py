"""A device without a model, and a simulation that compares every choice with what it would be alone."""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import pytest

from trioserve.events import TokenLogprob
from trioserve.sched.commit import Admitted, Delivery
from trioserve.sched.group import ChoiceSpec, Group, Uid
from trioserve.sched.state import SchedulerOptions, SchedulerState
from trioserve.step import ChangeArrays, StepPlan, StepResult

VOCABULARY = 7
STOP_ID = 6
GENESIS = 1


def extend(content: int, token: int) -> int:
    """What a page slot holds besides the token: a digest of all tokens up to it, as real keys and values are."""
    return zlib.crc32(token.to_bytes(4, "little"), content)


def content_of(tokens: Sequence[int]) -> int:
    """The digest of tokens."""
    content = GENESIS
    for token in tokens:
        content = extend(content, token)
    return content


def draw(seed: int, position: int, content: int) -> int:
    """The token at ``position``, given the tokens before it and the seed."""
    return zlib.crc32(seed.to_bytes(8, "little") + position.to_bytes(8, "little"), content) % VOCABULARY


def score(seed: int, position: int, token: int) -> float:
    """The log-probability of ``token``, drawn at ``position``."""
    return -zlib.crc32(token.to_bytes(4, "little") + position.to_bytes(8, "little"), seed) / 2**32


def likeliest(content: int, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens after a content, and how likely they are."""
    return [((content + place) % VOCABULARY, -float(place)) for place in range(count)]


@attrs.define(eq=False)
class Ladder:
    """A Matcher: after s tokens those with (token + s) % 3 == 0 are forbidden, and after ``rungs`` all is complete."""

    rungs: int
    climbed: int = 0

    def fill_mask(self, mask: memoryview) -> None:
        mask[0] = sum(1 << token for token in range(VOCABULARY) if (token + self.climbed) % 3)

    def advance(self, token_id: int) -> bool:
        assert (token_id + self.climbed) % 3, "a token was drawn that the mask forbids"
        self.climbed += 1
        return self.climbed == self.rungs

    def copy(self) -> Ladder:
        return Ladder(self.rungs, self.climbed)


@attrs.frozen
class Change:
    """What changes the logits of one row, in a form that can be compared."""

    penalties: tuple[float, float, float] = (0.0, 0.0, 1.0)
    generated: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    biases: tuple[tuple[int, float], ...] = ()
    mask: int = -1

    @classmethod
    def of(cls, changes: ChangeArrays, c: int) -> Change:
        matcher, mask = changes.matchers[c], array("I", [0])
        if matcher is not None:
            matcher.fill_mask(memoryview(mask))

        def own(values: array, starts: array) -> tuple:
            return tuple(values[starts[c] : starts[c + 1]])

        biases = zip(own(changes.bias_ids, changes.bias_starts), own(changes.biases, changes.bias_starts), strict=True)
        return cls(
            (changes.presence_penalties[c], changes.frequency_penalties[c], changes.repetition_penalties[c]),
            own(changes.generated, changes.generated_starts),
            own(changes.prompts, changes.prompt_starts),
            tuple(sorted(biases)),
            -1 if matcher is None else mask[0],
        )

    @classmethod
    def expected(cls, spec: ChoiceSpec, prompt: Sequence[int], tokens: Sequence[int], matcher: Ladder | None) -> Change:
        """What the next token of a choice is drawn with, from its spec: the oracle."""
        penalties = (spec.presence_penalty, spec.frequency_penalty, spec.repetition_penalty)
        biases = dict(spec.biases)
        if len(tokens) < spec.min_tokens:
            biases |= dict.fromkeys(spec.stop_ids, -math.inf)
        mask = array("I", [0])
        if matcher is not None:
            matcher.fill_mask(memoryview(mask))
        return cls(
            penalties,
            tuple(tokens) if penalties != (0.0, 0.0, 1.0) else (),
            tuple(prompt) if spec.repetition_penalty != 1.0 else (),
            tuple(sorted(biases.items())),
            -1 if matcher is None else mask[0],
        )

    def draw(self, seed: int, position: int, content: int) -> int:
        """The token that is drawn with the change: another one with any other change."""
        banned = {token for token, bias in self.biases if bias == -math.inf}
        allowed = [t for t in range(VOCABULARY) if t not in banned and self.mask >> t & 1]
        if self == Change():
            return draw(seed, position, content)
        digest = zlib.crc32(repr((self.penalties, self.generated, self.prompt, self.biases)).encode())
        return allowed[draw(seed, position, content ^ digest) % len(allowed)] if allowed else -1


def alone(prompt: Sequence[int], spec: ChoiceSpec, capacity: int) -> tuple[tuple[int, ...], str]:
    """The tokens of a choice that nothing disturbs, and why it ends: the oracle."""
    content = content_of(prompt)
    tokens: list[int] = []
    matcher = spec.matcher.copy() if isinstance(spec.matcher, Ladder) else None
    if spec.max_tokens == 0:
        return (), "length"
    while True:
        change = Change.expected(spec, prompt, tokens, matcher)
        token = change.draw(spec.seed, len(prompt) + len(tokens), content)
        content = extend(content, token)
        tokens.append(token)
        if token in spec.stop_ids or (matcher is not None and matcher.advance(token)):
            return tuple(tokens), "stop"
        if len(tokens) == min(spec.max_tokens, capacity - len(prompt)):
            return tuple(tokens), "length"


class PagedDevice:
    """Runs plans over simulated pages, and fails on a plan that a real device could not run.

    Each slot holds (token, digest of the sequence up to it), so a wrong page, a page written by two sequences, or
    a page that was given away too early shows in the span that reads it.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.memory: dict[int, list[tuple[int, int] | None]] = {}
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._copy(plan.copies)
        tables = self._tables(plan)
        contents = [content for s, table in enumerate(tables) for content in self._compute(plan, s, table)]
        self._check_shared(plan, tables)
        rows = plan.rows
        per_row = (rows.seeds, rows.counters, rows.temperatures, rows.top_ps, rows.top_ks, rows.min_ps, rows.logprobs)
        assert {len(each) for each in per_row} <= {len(rows.tokens)}
        assert len(rows.targets) in {0, len(rows.tokens)}
        assert list(rows.changes.rows) == sorted(set(rows.changes.rows))
        changes = {row: Change.of(rows.changes, c) for c, row in enumerate(rows.changes.rows)}
        drawn = [
            changes.get(r, Change()).draw(seed, counter, contents[token])
            for r, (token, seed, counter) in enumerate(zip(rows.tokens, rows.seeds, rows.counters, strict=True))
        ]
        for r, target in enumerate(rows.targets):
            if target >= 0:
                assert r not in changes
                drawn[r] = target
        for token, counter in zip(rows.tokens, rows.counters, strict=True):
            assert counter == plan.spans.positions[token] + 1
        if not any(rows.logprobs):
            return StepResult(plan.number, array("i", drawn))
        logprobs = [
            score(seed, counter, token) if wanted else math.nan
            for seed, counter, token, wanted in zip(rows.seeds, rows.counters, drawn, rows.logprobs, strict=True)
        ]
        top = [
            pair
            for token, wanted in zip(rows.tokens, rows.logprobs, strict=True)
            for pair in likeliest(contents[token], wanted - 1)
        ]
        return StepResult(
            plan.number,
            array("i", drawn),
            array("d", logprobs),
            array("i", [token for token, _ in top]),
            array("d", [logprob for _, logprob in top]),
        )

    def page(self, page: int) -> list[tuple[int, int] | None]:
        return self.memory.setdefault(page, [None] * self.page_size)

    def _copy(self, copies: array[int]) -> None:
        sources, targets = copies[::2], copies[1::2]
        # so that they may be done in any order
        assert not set(sources) & set(targets)
        assert len(set(targets)) == len(targets)
        for source, target in zip(sources, targets, strict=True):
            self.memory[target] = list(self.page(source))

    def _tables(self, plan: StepPlan) -> list[array[int]]:
        spans = plan.spans
        tables = [spans.pages[a:b] for a, b in zip(spans.page_starts, spans.page_starts[1:], strict=False)]
        readers: dict[int, int] = {}
        for table in tables:
            assert len(set(table)) == len(table)
            for page in table:
                readers[page] = readers.get(page, 0) + 1
        for s, table in enumerate(tables):
            first, last = spans.positions[spans.starts[s]], spans.positions[spans.starts[s + 1] - 1]
            assert len(table) == last // self.page_size + 1
            for page in table[first // self.page_size :]:
                assert readers[page] == 1, f"page {page} is written while another span reads it"
        return tables

    def _compute(self, plan: StepPlan, s: int, table: array[int]) -> list[int]:
        """Write the span's slots, having read all slots before them; the digest after each of its tokens."""
        spans, size = plan.spans, self.page_size
        positions = spans.positions[spans.starts[s] : spans.starts[s + 1]]
        assert list(positions) == list(range(positions[0], positions[-1] + 1))
        content = GENESIS
        for position in range(positions[0]):
            slot = self.page(table[position // size])[position % size]
            assert slot is not None
            content = extend(content, slot[0])
            assert slot[1] == content, f"slot {position} of span {s} belongs to another sequence"
        contents: list[int] = []
        for position, token in zip(positions, spans.tokens[spans.starts[s] : spans.starts[s + 1]], strict=True):
            content = extend(content, token)
            self.page(table[position // size])[position % size] = (token, content)
            contents.append(content)
        return contents

    @staticmethod
    def _check_shared(plan: StepPlan, tables: list[array[int]]) -> None:
        taken: set[int] = set()
        for first, count, pages in zip(plan.shared[::3], plan.shared[1::3], plan.shared[2::3], strict=True):
            assert count > 1
            assert pages > 0
            members = set(range(first, first + count))
            assert not members & taken
            taken |= members
            assert len({tuple(tables[s][:pages]) for s in members}) == 1
            assert all(plan.spans.starts[s + 1] - plan.spans.starts[s] == 1 for s in members)


@attrs.define(eq=False)
class Told:
    """What one choice was told."""

    prompt: tuple[int, ...]
    spec: ChoiceSpec
    admitted: Admitted | None = None
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprob] = attrs.field(factory=list)
    prompt_wanted: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    accepted: int = 0
    rejected: int = 0
    finish: str | None = None
    aborted: bool = False


@attrs.define(eq=False)
class Arrival:
    """A group as it came: what has to be known to see that nothing starves."""

    uids: list[Uid]
    priority: int = 0
    overtaken: float | None = None
    """When a later one was first admitted before it."""


class Simulation:
    """A SchedulerState with its device. Every delivery is checked when it comes, and the books after every call."""

    def __init__(
        self,
        *,
        page_size: int = 4,
        page_count: int = 64,
        max_running: int = 64,
        max_queued: int = 1000,
        max_batch_tokens: int = 64,
        prefix_cache: bool = True,
        max_overtaken_s: float = 10.0,
        lookup_rows: int = 0,
        lookup_tokens: int = 4,
    ) -> None:
        self.options = SchedulerOptions(
            page_size=page_size,
            page_count=page_count,
            max_running=max_running,
            max_queued=max_queued,
            max_batch_tokens=max_batch_tokens,
            prefix_cache=prefix_cache,
            max_overtaken_s=max_overtaken_s,
            lookup_rows=lookup_rows,
            lookup_tokens=lookup_tokens,
        )
        self.state = SchedulerState(self.options)
        self.device = PagedDevice(page_size)
        self.capacity = page_size * page_count
        self.told: dict[Uid, Told] = {}
        self.paused: set[Uid] = set()
        self.resting: set[Uid] = set()  # those that were paused when the step in flight was planned
        self.in_flight: tuple[StepPlan, StepResult] | None = None
        self.now = 0.0
        self.planned = 0.0  # when the step in flight was
        self.queue: list[Arrival] = []
        self._groups = 0

    def __getitem__(self, uid: str) -> Told:
        return self.told[Uid(uid)]

    def almost(self, prompt: Sequence[int], seed: int, *, wrong: int, max_tokens: int = 16) -> list[int]:
        """What a choice will say; every ``wrong``-th token is another, or none if that is 0."""
        spec = ChoiceSpec(
            uid=Uid(""),
            seed=seed,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            max_tokens=max_tokens,
            stop_ids=frozenset(),
        )
        tokens, _ = alone(prompt, spec, 10**9)
        return [(token + 1) % VOCABULARY if wrong and t % wrong == 0 else token for t, token in enumerate(tokens)]

    @property
    def live(self) -> list[Uid]:
        return [uid for uid, told in self.told.items() if told.finish is None and not told.aborted]

    def submit(
        self,
        prompt: Sequence[int],
        n: int = 1,
        *,
        max_tokens: int | Sequence[int] = 4,
        seed: int = 0,
        stop_ids: frozenset[int] = frozenset(),
        name: str | None = None,
        prompt_lookup: bool = True,
        prediction: Sequence[int] | None = None,
        prompt_logprobs: int = 0,
        priority: int = 0,
        cache_salt: bytes = b"",
        **values: object,
    ) -> list[Uid]:
        """Choices ``name.0`` to ``name.n-1``; names are g0, g1, ... by default. Every other asks for log-probabilities.

        ``values`` are more fields of every ChoiceSpec; ``structured`` gives it a Ladder with so many rungs.
        """
        name = f"g{self._groups}" if name is None else name
        self._groups += 1
        structured = values.pop("structured", None)
        if structured is not None:
            assert isinstance(structured, int)
            values["matcher"] = Ladder(structured)  # one for all, as an engine has it
        limits = [max_tokens] * n if isinstance(max_tokens, int) else list(max_tokens)
        specs = tuple(
            ChoiceSpec(
                uid=Uid(f"{name}.{j}"),
                seed=seed + j,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                max_tokens=limits[j],
                stop_ids=stop_ids,
                logprobs=(seed + j) % 2 * (seed % 3 + 1),
                **values,  # type: ignore[arg-type]
            )
            for j in range(n)
        )
        group = Group(
            id=name,
            prompt=array("i", prompt),
            choices=specs,
            prompt_lookup=prompt_lookup,
            prediction=None if prediction is None else array("i", prediction),
            prompt_logprobs=prompt_logprobs,
            priority=priority,
            cache_salt=cache_salt,
        )
        self.state.submit(group, self.now)
        self.told.update((spec.uid, Told(tuple(prompt), spec, prompt_wanted=prompt_logprobs)) for spec in specs)
        self.state.check()
        uids = [spec.uid for spec in specs]
        insort(self.queue, Arrival(uids, priority), key=lambda arrival: arrival.priority)
        return uids

    def abort(self, uid: str) -> bool:
        known = self.state.abort(Uid(uid))
        if known:
            self[uid].aborted = True
        self.state.check()
        return known

    def pause(self, uid: str) -> None:
        self.state.pause(Uid(uid))
        self.paused.add(Uid(uid))
        self.state.check()

    def drained(self, uid: str) -> None:
        self.state.drained(Uid(uid))
        self.paused.discard(Uid(uid))
        self.state.check()

    def begin(self) -> StepPlan | None:
        """Plan a step and run it on the device; its result is still to be committed."""
        self.resting = set(self.paused)
        self.planned = self.now
        plan = self.state.plan(self.now)
        self.state.check()
        if plan is not None:
            assert 0 < len(plan.spans.tokens) <= self.options.max_batch_tokens
            self._check_drafts(plan)
            self.in_flight = plan, self.device.run(plan)
        return plan

    def land(self) -> list[Delivery]:
        """Commit the step in flight."""
        assert self.in_flight is not None
        (plan, result), self.in_flight = self.in_flight, None
        deliveries = self.state.commit(plan, result)
        self.state.check()
        for delivery in deliveries:
            self._receive(delivery)
        self._check_order({delivery.uid for delivery in deliveries if delivery.admitted is not None})
        return deliveries

    def step(self) -> list[Delivery] | None:
        """One whole step; None if nothing can run."""
        self.now += 1.0
        return None if self.begin() is None else self.land()

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.step() is not None

    def finish(self, bound: int = 10_000) -> int:
        """Run until nothing can run any more; the steps that took."""
        for steps in range(bound):
            if self.step() is None:
                return steps
        raise AssertionError(f"still running after {bound} steps: {self.state}")

    def _check_drafts(self, plan: StepPlan) -> None:
        """Spans that draw after each of several tokens stay within the rows that there are for them."""
        starts = plan.spans.starts
        targets = plan.rows.targets or [-1] * len(plan.rows.tokens)
        drawn_from = {token for token, target in zip(plan.rows.tokens, targets, strict=True) if target < 0}
        rows_of = Counter(bisect_right(starts, token) - 1 for token in drawn_from)
        drafting = [rows for span, rows in rows_of.items() if rows > 1]
        assert all(rows == starts[span + 1] - starts[span] for span, rows in rows_of.items() if rows > 1)
        assert sum(drafting) <= self.options.draft_rows
        assert max(drafting, default=0) <= 1 + self.options.lookup_tokens

    def _check_order(self, admitted: set[Uid]) -> None:
        """Nobody was overtaken for longer than may be."""
        if not admitted:
            return
        youngest = max(i for i, arrival in enumerate(self.queue) if not admitted.isdisjoint(arrival.uids))
        overtaken = [arrival for arrival in self.queue[:youngest] if admitted.isdisjoint(arrival.uids)]
        for arrival in overtaken:
            waiting = [uid for uid in arrival.uids if not self.told[uid].aborted]
            if not self.resting.issuperset(waiting):
                assert self.options.max_overtaken_s > 0
                assert arrival.overtaken is None or self.planned - arrival.overtaken < self.options.max_overtaken_s
            arrival.overtaken = self.planned if arrival.overtaken is None else arrival.overtaken
        later = self.queue[youngest + 1 :]
        self.queue = [
            arrival for arrival in overtaken if not all(self.told[uid].aborted for uid in arrival.uids)
        ] + later

    def _receive(self, delivery: Delivery) -> None:
        told = self.told[delivery.uid]
        assert not told.aborted
        assert told.finish is None
        if delivery.admitted is not None:
            assert told.admitted is None
            assert delivery.admitted.cached_tokens % self.options.page_size == 0
            assert delivery.admitted.cached_tokens < len(told.prompt)
            told.admitted = delivery.admitted
        assert told.admitted is not None
        # first tokens are drawn all at once
        assert not (delivery.token_ids and told.tokens and delivery.uid in self.resting)
        told.tokens += delivery.token_ids
        told.logprobs += delivery.logprobs
        if delivery.drafted is not None:
            assert delivery.drafted.accepted == len(delivery.token_ids) - 1
            told.accepted += delivery.drafted.accepted
            told.rejected += delivery.drafted.rejected
        else:
            assert len(delivery.token_ids) <= 1
        told.finish = delivery.finish
        is_stop = delivery.finish == "stop" and told.tokens[-1] in told.spec.stop_ids
        assert delivery.stop_id == (told.tokens[-1] if is_stop else None)
        self._check_prompt_logprobs(told, delivery)
        tokens, reason = alone(told.prompt, told.spec, self.capacity)
        assert tuple(told.tokens) == tokens[: len(told.tokens)]  # FAN-15
        asked = told.tokens if told.spec.logprobs else []
        first = len(told.prompt)
        assert (
            told.logprobs
            == [  # FAN-32
                TokenLogprob(
                    token,
                    score(told.spec.seed, first + at, token),
                    tuple(likeliest(content_of([*told.prompt, *asked[:at]]), told.spec.logprobs - 1)),
                )
                for at, token in enumerate(asked)
            ]
        )
        if tokens:
            assert (delivery.finish is not None) == (len(told.tokens) == len(tokens))
        assert delivery.finish in (None, reason)

    @staticmethod
    def _check_prompt_logprobs(told: Told, delivery: Delivery) -> None:
        """They come once, with the first token or, if there will be none, the end."""
        is_first = bool(delivery.token_ids) and len(told.tokens) == len(delivery.token_ids)
        is_due = told.prompt_wanted > 0 and (is_first or told.spec.max_tokens == 0 == len(told.tokens))
        if delivery.prompt_logprobs is None:
            assert not (is_due and (is_first or delivery.finish is not None))
            return
        assert is_due
        assert told.admitted is not None
        assert told.admitted.cached_tokens == 0  # case prompt-logprobs-vs-prefix-cache
        assert delivery.prompt_logprobs == (
            None,
            *(
                TokenLogprob(
                    token,
                    score(0, position, token),
                    tuple(likeliest(content_of(told.prompt[:position]), told.prompt_wanted - 1)),
                )
                for position, token in enumerate(told.prompt)
                if position
            ),
        )


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Simulation]:
    """Makes a simulation; the arguments are those of SchedulerOptions, with small pages by default."""
    return Simulation


@pytest.fixture(scope="session")
def stop_id() -> int:
    """A token id that the simulated device draws now and then."""
    return STOP_ID


@pytest.fixture(scope="session")
def spec() -> Callable[..., ChoiceSpec]:
    """Makes a ChoiceSpec from what matters to a test."""

    def make(**values: object) -> ChoiceSpec:
        defaults: dict[str, object] = {
            "uid": "a",
            "seed": 0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "max_tokens": 4,
            "stop_ids": frozenset(),
        }
        return ChoiceSpec(**(defaults | values))  # type: ignore[arg-type]

    return make
