"""What the task of a device keeps between steps: nothing (FAN-27)."""

from __future__ import annotations

import threading
import weakref

import trio
import trio.testing

from trioserve.engine.device_task import _device_main, run_async_device
from trioserve.engine.ticket import Mailbox
from trioserve.step import StepPlan, StepResult
from trioserve.testing.driver import make_plan


class Recorder:
    """Runs plans, and knows which of them are still there."""

    def __init__(self) -> None:
        self.plans: list[weakref.ref[StepPlan]] = []
        self.results: list[weakref.ref[StepResult]] = []

    def run(self, plan: StepPlan) -> StepResult:
        result = StepResult(plan.number, plan.copies)
        self.plans.append(weakref.ref(plan))
        self.results.append(weakref.ref(result))
        return result

    async def run_async(self, plan: StepPlan) -> StepResult:
        await trio.lowlevel.checkpoint()
        return self.run(plan)

    def check_all_gone(self) -> None:
        assert self.plans
        assert [kept() for kept in (*self.plans, *self.results)] == [None] * 2 * len(self.plans)


def test_the_thread_of_a_device_keeps_nothing_of_its_last_step() -> None:
    device = Recorder()

    class Plans:
        left = 2

        def get(self) -> StepPlan | None:
            if device.plans:
                device.check_all_gone()
            self.left -= 1
            return make_plan([]) if self.left >= 0 else None

    class Token:
        def run_sync_soon(self, post: object, result: StepResult) -> None:
            pass

    _device_main(device, Plans(), threading.Event(), lambda result: None, Token())  # type: ignore[arg-type]
    assert len(device.plans) == 2


async def test_nor_does_a_device_in_the_event_loop() -> None:
    device, mailbox = Recorder(), Mailbox()
    async with trio.open_nursery() as nursery:
        dispatch = await nursery.start(run_async_device, device, mailbox)
        dispatch(make_plan([]))
        await mailbox.receive()
        await trio.testing.wait_all_tasks_blocked()
        device.check_all_gone()
        nursery.cancel_scope.cancel()
