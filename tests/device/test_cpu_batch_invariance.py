"""FAN-15 on the CPU device, with all the ways in which it cuts its work.

Attention goes over stretches of 128 tokens and parts of 64, a step through the layers in pieces of 256 tokens; columns
are multiplied in tiles of up to 12, spans with shared pages are put into blocks, and threads share all of it out. Every
logit is compared with one that a device with one thread computed from the sequence alone, in one span.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trioserve_kernels.cpu.library import levels, library_path

from trioserve.abc import KvType
from trioserve.device.cpu import CpuDevice
from trioserve.model.spec import DecoderSpec, Rope
from trioserve.step import StepPlan
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.weights import random_model

pytestmark = pytest.mark.skipif(library_path() is None, reason="there are no native kernels")

Logits = npt.NDArray[np.float32]
PAGE = 16
PAGE_COUNT = 400
PREFIX_TOKENS = 700
SPECS = {
    "nine heads on three": DecoderSpec(
        architecture="plain",
        vocab_size=97,
        context_length=1024,
        layers=2,
        heads=9,
        kv_heads=3,
        head_dim=16,
        embedding_dim=64,
        feed_forward_dim=96,
        rope=Rope(dim=16, interleaved=True),
        norm_eps=1e-5,
    ),
    "window and caps": DecoderSpec(
        architecture="rich",
        vocab_size=97,
        context_length=1024,
        layers=2,
        heads=5,
        kv_heads=1,
        head_dim=48,
        embedding_dim=33,
        feed_forward_dim=51,
        rope=Rope(dim=24),
        norm_eps=1e-5,
        activation="gelu_tanh",
        attention_bias=True,
        qk_norm=True,
        sliding_window=150,
        sliding_layers=frozenset({1}),
        attention_soft_cap=3.0,
    ),
}
CASES: list[tuple[str, KvType]] = [
    ("nine heads on three", "float16"),
    ("nine heads on three", "float32"),
    ("nine heads on three", "int8"),
    ("window and caps", "float16"),
    ("window and caps", "int8"),
]
LEVELS = levels() if library_path() else [""]
VARIANTS = [(level, threads) for level in LEVELS for threads in (1, 2, 3)]
# the others were compared with these for one sequence
SOME_VARIANTS = [variant for variant in VARIANTS if variant[0] == LEVELS[0] or variant[1] == 2]
PREFIX = [(13 * t + 5) % 97 for t in range(PREFIX_TOKENS)]


def sequence(branch: int, length: int, own: int) -> list[int]:
    """``length`` tokens that begin as the prefix does, the last ``own`` of them a branch's own."""
    return PREFIX[: length - own] + [(29 * branch + 7 * t + 1) % 97 for t in range(own)]


def want_all(plan: StepPlan, first: int, last: int) -> StepPlan:
    """The plan, with a row for each of its tokens ``first`` to ``last`` in place of its own."""
    rows = make_plan([Span(tokens=[0], pages=[0], rows=[Row()] * (last + 1 - first))]).rows
    rows.tokens[:] = array("i", range(first, last + 1))
    return attrs.evolve(plan, rows=rows)


@attrs.define(eq=False)
class Alone:
    """The logits after the last tokens of a sequence, computed with nothing beside it, in one span."""

    device: CpuDevice
    _known: dict[tuple[int, ...], Logits] = attrs.field(factory=dict)

    def __call__(self, tokens: Sequence[int], count: int = 1) -> Logits:
        """[count, V]"""
        key = (count, *tokens)
        if key not in self._known:
            plan = make_plan([Span(tokens=tokens, pages=range(-(-len(tokens) // PAGE)))])
            wanted = want_all(plan, len(tokens) - count, len(tokens) - 1)
            self._known[key] = np.array(list(self.device.logits(wanted).values()))
        return self._known[key]


@pytest.fixture(scope="module", params=CASES, ids=str)
def devices(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, int], CpuDevice]]:
    """Devices of one model, by level and threads."""
    name, kv_type = request.param
    model = random_model(SPECS[name])
    opened = {
        (level, threads): CpuDevice.load(model, page_count=PAGE_COUNT, kv_type=kv_type, threads=threads, level=level)
        for level, threads in VARIANTS
    }
    yield opened
    for device in opened.values():
        device.close()


@pytest.fixture(scope="module")
def alone(devices: dict[tuple[str, int], CpuDevice]) -> Alone:
    return Alone(devices[LEVELS[0], 1])


def compute_prefix(device: CpuDevice, length: int, *, chunk: int = 512) -> None:
    """Put the first tokens of the prefix into pages 0, 1, ..."""
    for start in range(0, length, chunk):
        stop = min(length, start + chunk)
        device.run(make_plan([Span(tokens=PREFIX[start:stop], start=start, pages=range(-(-stop // PAGE)))]))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 511, 513, 600])
def test_levels_and_threads_change_nothing(
    devices: dict[tuple[str, int], CpuDevice], alone: Alone, length: int, variant: tuple[str, int]
) -> None:
    assert np.array_equal(Alone(devices[variant])(PREFIX[:length]), alone(PREFIX[:length]))


@pytest.mark.parametrize("chunk", [1, 2, 13, 16, 64, 100, 256, 257])
def test_chunks_change_nothing(devices: dict[tuple[str, int], CpuDevice], alone: Alone, chunk: int) -> None:
    device = devices[LEVELS[0], 2]
    compute_prefix(device, 299, chunk=chunk)
    (found,) = device.logits(make_plan([Span(tokens=[PREFIX[299]], start=299, pages=range(19), rows=[Row()])])).values()
    assert np.array_equal(found, alone(PREFIX[:300])[0])


@attrs.frozen
class Branch:
    """A sequence of a group in one step."""

    own: int
    """Tokens after the shared ones, those of this step included."""
    now: int
    """Tokens of this step: more than one for a draft, or the rest of a prompt."""


def run_group(
    device: CpuDevice, shared_pages: int, branches: Sequence[Branch], *, tell: bool, strangers: int = 0
) -> list[tuple[list[int], Logits]]:
    """The sequences of a group after a step, and the logits [now, V] of their tokens of this step.

    ``tell``: that pages are shared.
    """
    start = shared_pages * PAGE
    compute_prefix(device, start)
    spans: list[Span] = []
    before: list[Span] = []
    sequences: list[list[int]] = []
    page = shared_pages
    for number, branch in enumerate(branches):
        tokens = sequence(number, start + branch.own, branch.own)
        own_pages = -(-branch.own // PAGE)
        table = [*range(shared_pages), *range(page, page + own_pages)]
        page += own_pages
        done = len(tokens) - branch.now
        if done > start:
            before.append(Span(tokens=tokens[start:done], start=start, pages=table))
        spans.append(Span(tokens=tokens[done:], start=done, pages=table))
        sequences.append(tokens)
    device.run(make_plan(before))
    mates = [
        Span(tokens=PREFIX[i : i + 1 + i % 40], pages=range(page + 3 * i, page + 3 * i + 3)) for i in range(strangers)
    ]
    plan = make_plan([*mates, *spans], shared=[(len(mates), len(spans), shared_pages)] if tell else [])
    first = sum(len(mate.tokens) for mate in mates)
    logits = iter(device.logits(want_all(plan, first, len(plan.spans.tokens) - 1)).values())
    return [
        (tokens, np.array([next(logits) for _ in range(branch.now)]))
        for tokens, branch in zip(sequences, branches, strict=True)
    ]


@pytest.mark.parametrize("variant", SOME_VARIANTS, ids=str)
@pytest.mark.parametrize("shared_pages", [0, 1, 3, 4, 5, 8, 17])
def test_a_shared_group_changes_nothing(
    devices: dict[tuple[str, int], CpuDevice], alone: Alone, shared_pages: int, variant: tuple[str, int]
) -> None:
    # FAN-30: the group's keys are read once, whether there is one block of its spans or several
    branches = [Branch(1, 1), Branch(5, 1), Branch(4, 4), Branch(40, 2), *[Branch(3, 1)] * 6, Branch(50, 30)]
    told = run_group(devices[variant], shared_pages, branches, tell=True, strangers=4)
    untold = run_group(devices[variant], shared_pages, branches, tell=False)
    for (tokens, found), (_, other) in zip(told, untold, strict=True):
        assert np.array_equal(found, other)
        assert np.array_equal(found, alone(tokens, len(found)))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    variant=st.sampled_from(VARIANTS),
    shared_pages=st.sampled_from([0, 1, 2, 4, 7, 8, 12]),
    branches=st.lists(
        st.builds(
            lambda own, now: Branch(own, min(own, now)), st.integers(1, 40), st.sampled_from([1, 1, 1, 2, 4, 20])
        ),
        min_size=1,
        max_size=20,
    ),
    tell=st.booleans(),
    strangers=st.integers(0, 8),
)
def test_no_company_changes_anything(
    devices: dict[tuple[str, int], CpuDevice],
    alone: Alone,
    variant: tuple[str, int],
    shared_pages: int,
    branches: list[Branch],
    tell: bool,
    strangers: int,
) -> None:
    for tokens, found in run_group(devices[variant], shared_pages, branches, tell=tell, strangers=strangers):
        assert np.array_equal(found, alone(tokens, len(found)))


def test_several_groups_in_a_step_change_nothing(devices: dict[tuple[str, int], CpuDevice], alone: Alone) -> None:
    for device in devices.values():
        compute_prefix(device, 192)
        spans, ends, shared = [], [], []
        for group, shared_pages in enumerate([12, 5, 0, 9]):
            shared.append((len(spans), 8, shared_pages))
            for member in range(8):
                number = 8 * group + member
                tokens = sequence(number, shared_pages * PAGE + 3, 3)
                table = [*range(shared_pages), 12 + number]
                spans.append(Span(tokens=tokens[-3:], start=len(tokens) - 3, pages=table, rows=[Row()]))
                ends.append(tokens)
        logits = device.logits(make_plan(spans, shared=shared)).values()
        assert all(np.array_equal(found, alone(tokens)[0]) for tokens, found in zip(ends, logits, strict=True))


def test_the_rows_that_are_wanted_change_nothing(devices: dict[tuple[str, int], CpuDevice], alone: Alone) -> None:
    # logits are computed 64 tokens at a time
    for device in devices.values():
        spans = [
            Span(tokens=sequence(number, 3, 3), pages=[number], rows=[Row(), Row()] if number % 3 else [])
            for number in range(210)
        ]
        plan = make_plan(spans)
        logits = device.logits(plan)
        for token in plan.rows.tokens:
            assert np.array_equal(logits[token], alone(sequence(token // 3, 3, 3))[0])
        assert list(device.run(plan).token_ids) == [int(logits[token].argmax()) for token in plan.rows.tokens]
