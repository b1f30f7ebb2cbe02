"""Opening an engine: find the model, load it, start the actor and the device.

Owns: the engine's nursery, and the order in which things start and end.
Must not know: HTTP, flags. It alone imports devices, and only when one is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType

import trio

from trioserve.abc import AsyncDevice, Device
from trioserve.device.machine import default_threads
from trioserve.engine.device_task import run_async_device, run_device
from trioserve.engine.engine import Engine, ModelInfo
from trioserve.engine.groupless import ChoiceEngine, GrouplessScheduler
from trioserve.engine.groups import collapse, raise_alone
from trioserve.engine.options import EngineOptions
from trioserve.engine.scheduler import Scheduler
from trioserve.engine.ticket import Mailbox
from trioserve.errors import ParamError
from trioserve.model.cache import default_cache_dir
from trioserve.model.load import load_model
from trioserve.model.loaded import LoadedModel
from trioserve.model.sources import resolve
from trioserve.sched.state import SchedulerState

AnyDevice = Device | AsyncDevice | ChoiceEngine
Loaded = tuple[ModelInfo, AnyDevice]


def open_engine(
    model: str | Path, options: EngineOptions = EngineOptions(), *, device: AnyDevice | None = None
) -> AbstractAsyncContextManager[Engine]:
    """A block that holds a running engine.

    ::

        async with trioserve.open_engine("smollm2") as engine:
            answer = await engine.complete("Name a colour.", SamplingParams(n=4))

    Leaving the block aborts what still runs and frees the model.

    Args:
        model: an alias, a .gguf file, a folder, or a Hugging Face repo id; fetched if it is not in the cache.
        options: how to set it up.
        device: a loaded device to use instead of the one that ``options`` name; or an engine that takes single choices,
            which then is all of the engine below the requests (see groupless.py).

    Raises (on entering):
        ModelError: the model is unknown, can't be fetched, or is broken.
        ParamError: an option does not fit the model.
    Raises (on leaving):
        DeviceError: a step failed on the device.
        Exception: the block's own exception comes out unchanged. Never an exception group.
    """

    def load() -> Loaded:
        found = resolve(model, cache=options.cache_dir or default_cache_dir(), progress=options.progress)
        loaded = load_model(found, progress=options.progress)
        warnings = loaded.warnings
        try:
            is_cpu_wanted = device is None and options.device != "reference"
            obstacle = _cpu_obstacle(loaded, options) if is_cpu_wanted else None
            if obstacle is not None and options.device == "auto":
                warnings += (f"The model runs on the slow reference device: {obstacle}.",)
            used = device if device is not None else _load_device(loaded, options, obstacle)
        finally:
            loaded.weights.close()
        info = ModelInfo(
            id=loaded.name,
            tokenizer=loaded.tokenizer,
            template=loaded.template,
            default_temperature=loaded.default_temperature,
            pooling=loaded.pooling,
            warnings=warnings,
        )
        return info, used

    async def load_in_thread() -> Loaded:
        # abandoned on cancel: fetching a model can take minutes, and leaves nothing half done behind
        return await trio.to_thread.run_sync(load, abandon_on_cancel=True)

    return EngineBlock(load_in_thread, options)


def _load_device(loaded: LoadedModel, options: EngineOptions, obstacle: str | None) -> Device:
    context_length = loaded.spec.context_length if options.context_length is None else options.context_length
    page_count = options.pages_for(context_length)
    threads = options.threads or default_threads()
    if options.device == "cpu" and obstacle is not None:
        raise ParamError(f"The device cpu can't run this model: {obstacle}.", "device")
    if options.device == "reference" or obstacle is not None:
        if options.kv_type not in (None, "float32"):
            raise ParamError(f"kv_type must be float32 on the reference device, got {options.kv_type}.", "kv_type")
        from trioserve.device.reference import ReferenceDevice

        return ReferenceDevice.load(
            loaded,
            page_size=options.page_size,
            page_count=page_count,
            context_length=context_length,
            threads=threads,
            progress=options.progress,
        )
    from trioserve.device.cpu import CpuDevice

    return CpuDevice.load(
        loaded,
        page_count=page_count,
        context_length=context_length,
        kv_type=options.kv_type or "float16",
        threads=threads,
        progress=options.progress,
    )


def _cpu_obstacle(loaded: LoadedModel, options: EngineOptions) -> str | None:
    """Why the CPU device can't be used, as a sentence without its full stop; None if it can."""
    from trioserve_kernels.cpu.library import PAGE_TOKENS

    from trioserve.device.cpu import unsupported

    if options.page_size != PAGE_TOKENS:
        return f"the CPU device has pages of {PAGE_TOKENS} tokens, not {options.page_size}"
    return unsupported(loaded)


class EngineBlock(AbstractAsyncContextManager[Engine]):
    """What ``open_engine`` returns: the engine's nursery around whatever ``load`` gives."""

    def __init__(self, load: Callable[[], Awaitable[Loaded]], options: EngineOptions) -> None:
        self._load = load
        self._options = options
        self._nursery_manager = trio.open_nursery()
        self._cancel_scope: trio.CancelScope | None = None
        self._device: AnyDevice | None = None

    async def __aenter__(self) -> Engine:
        model, self._device = await self._load()
        info = self._device.info
        mailbox = Mailbox()
        nursery = await self._nursery_manager.__aenter__()
        self._cancel_scope = nursery.cancel_scope
        try:
            scheduler = await self._start(self._device, mailbox, nursery)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)  # noqa: ASYNC102  # as there
            raise
        return Engine(model, info, self._options, mailbox, scheduler)

    async def _start(
        self, device: AnyDevice, mailbox: Mailbox, nursery: trio.Nursery
    ) -> Scheduler | GrouplessScheduler:
        """Start what serves the mailbox."""
        options = self._options
        scheduler: Scheduler | GrouplessScheduler
        if isinstance(device, ChoiceEngine):
            scheduler = GrouplessScheduler(device, mailbox, options.max_running + options.max_queued)
        else:
            if isinstance(device, AsyncDevice):
                dispatch = await nursery.start(run_async_device, device, mailbox)
            else:
                dispatch = await nursery.start(run_device, device, mailbox)
            scheduler = Scheduler(SchedulerState(options.scheduler_options(device.info)), mailbox, dispatch)
        await nursery.start(scheduler.run)
        return scheduler

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._cancel_scope is not None
        self._cancel_scope.cancel()
        try:
            # not shielded: the nursery's tasks are cancelled already, and none of them waits in a finally
            return await self._nursery_manager.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102
        except BaseExceptionGroup as group:
            error = collapse(group, exc)
            if error is exc:
                return False
            raise_alone(error)
        finally:
            if isinstance(self._device, Device):
                self._device.close()
