"""The device task: one thread for the engine's life, which alone touches the device.

Owns: the thread, and the way plans go in and results come out. Must not know: what a plan means.

The thread takes plans from a queue and posts results through the trio token. It is never abandoned: a
cancelled engine interrupts the running step and waits for the thread, so no tensor outlives the engine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from trioserve.abc import AsyncDevice, Device
from trioserve.engine.ticket import Mailbox
from trioserve.errors import DeviceError
from trioserve.step import StepPlan, StepResult

Dispatch = Callable[[StepPlan], None]
Post = Callable[[StepResult], None]


def _failed(plan: StepPlan, error: Exception) -> DeviceError:
    failure = DeviceError(f"The device failed in step {plan.number}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _device_main(
    device: Device,
    plans: queue.SimpleQueue[StepPlan | None],
    stopping: threading.Event,
    post: Post,
    token: trio.lowlevel.TrioToken,
) -> None:
    while (plan := plans.get()) is not None:
        try:
            result = device.run(plan)
        except Exception as error:
            if stopping.is_set():
                return  # it was interrupted on purpose
            raise _failed(plan, error) from error
        token.run_sync_soon(post, result)
        # or what is in them, such as the matchers of choices, would stay until there is another step (FAN-27)
        del plan, result


async def run_device(
    device: Device, mailbox: Mailbox, *, task_status: trio.TaskStatus[Dispatch] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the plans given to the started value, in order, in one thread, until cancelled; post results to ``mailbox``.

    Raises:
        DeviceError: a step failed; its cause is what the device raised.
    """
    plans = queue.SimpleQueue[StepPlan | None]()
    stopping = threading.Event()

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stopping.set()
            device.interrupt()
            plans.put(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        task_status.started(plans.put)
        token = trio.lowlevel.current_trio_token()
        own_thread = trio.CapacityLimiter(1)
        with _remembering(mailbox):
            await trio.to_thread.run_sync(
                _device_main, device, plans, stopping, mailbox.post, token, limiter=own_thread
            )


async def run_async_device(
    device: AsyncDevice, mailbox: Mailbox, *, task_status: trio.TaskStatus[Dispatch] = trio.TASK_STATUS_IGNORED
) -> None:
    """The same for a device that lives in the event loop."""
    # one plan is in flight at most, so there is always room
    send, receive = trio.open_memory_channel[StepPlan](1)
    with send, receive, _remembering(mailbox):
        task_status.started(send.send_nowait)
        async for plan in receive:
            try:
                result = await device.run_async(plan)
            except Exception as error:
                raise _failed(plan, error) from error
            mailbox.post(result)
            # as in _device_main
            del plan, result


@contextmanager
def _remembering(mailbox: Mailbox) -> Iterator[None]:
    """Tell the mailbox what ended the engine, so that it can tell those who still wait for an answer."""
    try:
        yield
    except DeviceError as error:
        mailbox.fail(error)
        raise
