"""How the masks of a step are filled while the CPU device computes it, and what happens if they are not."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection

import attrs
import pytest
from trioserve_kernels.cpu.library import library_path

from trioserve.device.cpu import CpuDevice
from trioserve.device.masks import MaskFiller, MaskJob, _work, distinct, new_masks
from trioserve.errors import DeviceError
from trioserve.model.spec import DecoderSpec
from trioserve.step import StepPlan
from trioserve.testing.driver import Row, SetMatcher, Span, make_plan

pytestmark = pytest.mark.skipif(library_path() is None, reason="there are no native kernels")

OpenCpuDevice = Callable[..., CpuDevice]
TIMEOUT_S = 60


@attrs.define(eq=False)
class SlowMatcher(SetMatcher):
    """One that fills its mask when it is let."""

    asked_now: threading.Event = attrs.field(factory=threading.Event, init=False)
    let: threading.Event = attrs.field(factory=threading.Event, init=False)
    thread: int = attrs.field(default=0, init=False)

    def fill_mask(self, mask: memoryview) -> None:
        self.thread = threading.get_ident()
        self.asked_now.set()
        assert self.let.wait(TIMEOUT_S)
        super().fill_mask(mask)


@attrs.define(eq=False)
class BrokenMatcher(SetMatcher):
    error: BaseException = attrs.field(kw_only=True)

    def fill_mask(self, mask: memoryview) -> None:
        raise self.error


def plan_with(*rows: Row, number: int = 0) -> StepPlan:
    return make_plan([Span(tokens=[1, 2, 3], pages=[0], rows=rows)], number=number)


@attrs.define(eq=False)
class Run:
    """A step in a thread."""

    device: CpuDevice
    plan: StepPlan
    outcome: list[object] = attrs.field(factory=list, init=False)
    thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome.append(list(self.device.run(self.plan).token_ids))
        except DeviceError as error:
            self.outcome.append(str(error))

    def result(self) -> object:
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()
        return self.outcome[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_waits_for_its_masks_which_another_thread_fills(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, threads: int
) -> None:
    device = open_cpu_device(tiny_native, threads=threads)
    matcher, quick = SlowMatcher({42}), SetMatcher({7})
    run = Run(device, plan_with(Row(matcher=quick), Row(), Row(matcher=matcher), Row(matcher=matcher)))
    assert matcher.asked_now.wait(TIMEOUT_S)
    run.thread.join(0.01)
    assert run.thread.is_alive()
    assert matcher.thread not in (run.thread.ident, threading.get_ident())
    matcher.let.set()
    tokens = run.result()
    assert isinstance(tokens, list)
    assert [tokens[0], *tokens[2:]] == [7, 42, 42]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_ends_a_step_that_waits_for_its_masks(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, threads: int
) -> None:
    device = open_cpu_device(tiny_native, threads=threads)
    matcher, next_matcher = SlowMatcher({42}), SetMatcher({7})
    run = Run(device, plan_with(Row(matcher=matcher), Row(matcher=next_matcher)))
    assert matcher.asked_now.wait(TIMEOUT_S)
    device.interrupt()
    # although the matcher is still at it
    assert run.result() == "Step 0 failed: it was interrupted."
    device.close()
    matcher.let.set()
    filler = next(thread for thread in threading.enumerate() if thread.ident == matcher.thread)
    filler.join(TIMEOUT_S)
    assert not filler.is_alive()
    assert next_matcher.asked == 0


@pytest.mark.parametrize("error", [RuntimeError("lost"), SystemExit()], ids=repr)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_matcher_that_fails_fails_the_step_and_no_later_one(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, error: BaseException, threads: int
) -> None:
    device = open_cpu_device(tiny_native, threads=threads)
    broken = plan_with(Row(matcher=SetMatcher({1})), Row(matcher=BrokenMatcher({2}, error=error)), number=5)
    for _ in range(3):
        with pytest.raises(DeviceError, match="Step 5 failed: a matcher gave no mask") as caught:
            device.run(broken)
        assert caught.value.__cause__ is error
        assert list(device.run(plan_with(Row(matcher=SetMatcher({3})))).token_ids) == [3]


def test_a_matcher_of_a_step_that_is_refused_is_not_waited_for(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice
) -> None:
    device = open_cpu_device(tiny_native)
    matcher = SlowMatcher({42})
    with pytest.raises(DeviceError, match="out of range"):
        device.run(plan_with(Row(matcher=matcher, bias={97: 1.0})))
    matcher.let.set()
    # nor are its masks taken for the next step's
    for token in range(10):
        assert list(device.run(plan_with(Row(matcher=SetMatcher({token})))).token_ids) == [token]


def test_more_rows_than_are_drawn_at_a_time_have_their_masks(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice
) -> None:
    device = open_cpu_device(tiny_native, page_count=150, threads=2)
    spans = [Span(tokens=[5], pages=[i], rows=[Row(matcher=SetMatcher({i % 97}))]) for i in range(150)]
    assert list(device.run(make_plan(spans)).token_ids) == [i % 97 for i in range(150)]


def test_only_a_step_with_matchers_starts_the_thread(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    def fillers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "trioserve masks"}

    device = open_cpu_device(tiny_native)
    before = fillers()
    device.run(plan_with(Row(bias={1: 2.0}, generated=[4], presence_penalty=1.0)))
    assert fillers() <= before
    for _ in range(2):
        device.run(plan_with(Row(matcher=SetMatcher({1}))))
        (own,) = fillers() - before
    device.close()
    own.join(TIMEOUT_S)
    assert not own.is_alive()


def test_matchers_are_told_apart_by_what_they_are_and_not_by_what_they_equal() -> None:
    @attrs.define
    class Equal(SetMatcher):
        allowed: Collection[int] = ()

    a, b = Equal(), Equal()
    assert a == b
    found, indices = distinct([None, a, b, a, None])
    assert [id(matcher) for matcher in found] == [id(a), id(b)]
    assert list(indices) == [-1, 0, 1, 0, -1]


def test_jobs_are_done_one_after_another_and_abandoned_ones_let_matchers_alone() -> None:
    told: list[MaskJob] = []
    both = threading.Barrier(2, timeout=TIMEOUT_S)

    def tell(job: MaskJob) -> None:
        told.append(job)
        if job is second:
            both.wait()

    first, second = (MaskJob([SetMatcher({1, 33})], new_masks(1, 40), tell) for _ in range(2))
    first.abandoned = True
    first.masks[:] = 9
    filler = MaskFiller()
    filler.submit(first)
    filler.submit(second)
    both.wait()
    filler.close()
    filler.close()
    assert told == [first, second]
    assert first.masks.tolist() == [[9, 9]]
    assert second.masks.tolist() == [[2, 2]]


def test_the_thread_of_a_filler_that_nobody_closes_ends_with_it() -> None:
    told = threading.Event()
    threads: list[threading.Thread] = []

    def tell(job: MaskJob) -> None:
        threads.append(threading.current_thread())
        told.set()

    filler = MaskFiller()
    filler.submit(MaskJob([], new_masks(0, 40), tell))
    assert told.wait(TIMEOUT_S)
    del filler
    threads[0].join(TIMEOUT_S)
    assert not threads[0].is_alive()


def test_a_job_that_is_done_is_not_kept_until_there_is_another() -> None:
    # FAN-27: it has the matchers of choices that may be over
    jobs = [MaskJob([SetMatcher([9])], new_masks(1, 40), lambda job: None)]
    done = weakref.ref(jobs[0])

    class Jobs:
        def get(self) -> MaskJob | None:
            if jobs:
                return jobs.pop()
            assert done() is None
            return None

    _work(Jobs())  # type: ignore[arg-type]  # as much of a queue as it needs
