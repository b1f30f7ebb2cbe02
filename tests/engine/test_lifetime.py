"""Nothing of a request outlives it, whatever ends it; and what its caller sees then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from trioserve.engine.engine import Engine
from trioserve.errors import (
    ChoiceFailedError,
    DeviceError,
    EngineClosedError,
    EngineFailedError,
    EngineStoppingError,
    QueueFullError,
)
from trioserve.events import ChoiceFinished, TextDelta
from trioserve.params import SamplingParams
from trioserve.sched.state import SchedulerState
from trioserve.testing.device import Draw, Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.tokenizer import BrokenTokenizer


async def assert_nothing_left(engine: Engine) -> None:  # FAN-27
    """Within one step of now, no request, choice or page in use is left."""
    await trio.sleep(0.011)
    statistics = engine.statistics()
    assert statistics.requests == 0
    assert statistics.scheduler.running == 0
    assert statistics.scheduler.waiting == 0
    assert statistics.scheduler.pages_held == 0
    engine.check()


@asynccontextmanager
async def engine_left_clean(script: Script = count_for_ever, **settings: object) -> AsyncIterator[Engine]:
    block, _ = open_fake_engine(script, **settings)  # type: ignore[arg-type]
    async with block as engine:
        yield engine
        await assert_nothing_left(engine)


async def test_leaving_early_aborts_every_choice() -> None:
    async with engine_left_clean() as engine, engine.generate("go", SamplingParams(n=3)) as generation:
        await generation.receive()


async def test_a_generation_never_iterated_leaks_nothing() -> None:  # FAN-26
    async with engine_left_clean() as engine:
        async with engine.generate("go", SamplingParams(n=3)):
            pass


async def test_a_block_never_entered_leaks_nothing() -> None:  # FAN-26
    async with engine_left_clean() as engine:
        engine.generate("go", SamplingParams(n=3))


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.015, 0.02, 0.5])
async def test_cancelling_a_request_at_any_moment_aborts_every_choice(seconds: float) -> None:  # FAN-25
    async with engine_left_clean() as engine:
        with trio.move_on_after(seconds) as scope:
            await engine.complete("g" * 600, SamplingParams(n=8))
        assert scope.cancelled_caught


async def test_a_request_cancelled_between_two_turns_of_the_loop_harms_nobody() -> None:  # FAN-25
    async def ask(engine: Engine, scope: trio.CancelScope) -> None:
        with scope:
            await engine.complete([1, 2, 3], SamplingParams(n=2))

    async with engine_left_clean() as engine:
        for turns in list(range(8)) * 10:  # trio chooses the order of tasks at random
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, engine, scope)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert (await engine.complete("go", SamplingParams(max_tokens=1))).choices[0].reason == "length"


async def test_a_request_cancelled_while_its_prompt_is_tokenized_ends_at_once() -> None:  # FAN-34
    reasons: list[str] = []

    async def ask(engine: Engine) -> None:
        answer = await engine.complete(["x"] * 20, SamplingParams(n=2, max_tokens=50), request_id="r")
        reasons.extend(choice.reason for choice in answer.choices)

    async with engine_left_clean() as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, engine)
            await trio.lowlevel.checkpoint()
            while engine.statistics().scheduler.groups == 0 and not engine.abort("r"):  # noqa: ASYNC110  # it is the turns that count
                await trio.lowlevel.checkpoint()
        assert reasons == ["cancelled"] * 40


async def test_a_request_cancelled_while_queued_is_never_computed() -> (
    None
):  # FAN-25, case disconnect-before-first-chunk
    options = attrs.evolve(FAKE_OPTIONS, max_running=1)
    block, device = open_fake_engine(count_for_ever, options=options)
    async with block as engine:
        async with engine.generate("first", SamplingParams()) as first:
            await first.receive()
            with trio.move_on_after(0.05):
                await engine.complete("Q" * 40, SamplingParams(n=2))
            await trio.sleep(0.05)
        assert not any(ord("Q") in plan.spans.tokens for plan in device.plans)
        await assert_nothing_left(engine)


async def test_the_blocks_own_error_comes_out_unchanged() -> None:
    async with engine_left_clean() as engine:
        error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError) as caught:
            async with engine.generate("go", SamplingParams(n=3)) as generation:
                await generation.receive()
                raise error
        assert caught.value is error
        assert error.__context__ is None


@pytest.mark.parametrize("texts", [["aaaa", "aaxa", "aaaa", "ok"], ["xa", "xa", "xa", "ok"]])
async def test_a_choice_that_fails_fails_the_request_with_its_own_message(texts: list[str]) -> None:  # FAN-23
    async with engine_left_clean(say(texts), tokenizer=BrokenTokenizer()) as engine:
        with pytest.raises(ChoiceFailedError, match="ValueError: no x please") as caught:
            await engine.complete("go", SamplingParams(n=3))
        assert isinstance(caught.value.__cause__, ValueError)
        assert (await engine.complete("go", SamplingParams(seed=3))).choices[0].text == "ok"


async def test_a_failure_of_the_last_choice_never_looks_like_the_end_of_the_answer() -> None:  # FAN-28
    async with engine_left_clean(say(["aa", "aaaax"]), tokenizer=BrokenTokenizer()) as engine:
        for _ in range(20):  # trio chooses the order of tasks at random
            ended = False
            with pytest.raises(ChoiceFailedError):
                async with engine.generate("go", SamplingParams(n=2)) as generation:
                    async for _ in generation:
                        pass
                    ended = True
            assert not ended


async def test_when_block_and_choice_both_fail_the_block_wins() -> None:
    async with engine_left_clean(say("ax"), tokenizer=BrokenTokenizer()) as engine:
        with pytest.raises(KeyError):
            async with engine.generate("go") as generation:
                try:
                    async for _ in generation:
                        pass
                finally:
                    raise KeyError


def fails_at_the_third_token(draw: Draw) -> int:
    if len(draw.generated) == 2:
        raise RuntimeError("out of order")
    return ord("a")


async def test_a_device_that_fails_ends_the_engine_with_one_error() -> None:
    block, _ = open_fake_engine(fails_at_the_third_token)
    with pytest.raises(DeviceError, match="RuntimeError: out of order") as caught:
        async with block as engine:
            await engine.complete("go", SamplingParams(n=2))
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_request_outside_the_engines_block_learns_why_the_engine_ended() -> None:
    async def ask(engine: Engine) -> None:
        with pytest.raises(
            EngineFailedError, match="The device failed in step 2: RuntimeError: out of order"
        ) as caught:
            await engine.complete("go", SamplingParams(n=2))
        assert isinstance(caught.value.__cause__, DeviceError)

    block, _ = open_fake_engine(fails_at_the_third_token)
    async with trio.open_nursery() as nursery:
        with pytest.raises(DeviceError):
            async with block as engine:
                nursery.start_soon(ask, engine)  # noqa: ASYNC111  # to outlive the engine is the point
                await trio.sleep_forever()
    with pytest.raises(EngineFailedError, match="RuntimeError: out of order"):
        await engine.complete("too late")


async def test_a_bug_in_the_scheduler_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:  # FAN-23
    def fail(*_: object) -> None:
        raise KeyError("lost")

    async def ask(engine: Engine) -> None:
        with pytest.raises(EngineFailedError, match="The engine failed: KeyError: 'lost'"):
            await engine.complete("go", SamplingParams(n=2))

    block, _ = open_fake_engine(count_for_ever)
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError, match="lost"):
            async with block as engine:
                monkeypatch.setattr(SchedulerState, "commit", fail)
                nursery.start_soon(ask, engine)  # noqa: ASYNC111  # to outlive the engine is the point
                await trio.sleep_forever()


async def test_leaving_the_engine_ends_requests_that_still_run() -> None:
    async def ask(engine: Engine) -> None:
        with pytest.raises(EngineClosedError):
            await engine.complete("go", SamplingParams(n=2))

    block, _ = open_fake_engine(count_for_ever)
    async with trio.open_nursery() as nursery:
        async with block as engine:
            nursery.start_soon(ask, engine)  # noqa: ASYNC111
            await trio.sleep(0.1)


async def test_cancelling_around_an_engine_ends_it_without_an_error() -> None:
    with trio.move_on_after(1) as scope:
        block, _ = open_fake_engine(count_for_ever)
        async with block as engine:
            await engine.complete("go", SamplingParams(n=2))
    assert scope.cancelled_caught


async def test_a_request_is_queued_whole_or_refused_whole() -> None:  # FAN-10, case huge-n
    options = attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=3)
    async with engine_left_clean(options=options) as engine:
        async with engine.generate("go") as running:
            await running.receive()
            with pytest.raises(QueueFullError) as caught:
                await engine.complete("go", SamplingParams(n=4))
            assert caught.value.retry_after >= 1
            with pytest.raises(QueueFullError):
                await engine.complete(["a", "b"], SamplingParams(n=2))
            assert engine.statistics().scheduler.waiting == 0
            async with engine.generate("go", SamplingParams(n=3)):
                assert engine.statistics().scheduler.waiting == 3


async def test_a_slow_reader_loses_nothing_and_delays_nobody() -> None:  # FAN-29
    options = attrs.evolve(FAKE_OPTIONS, max_backlog=8)
    text = "".join(chr(ord("a") + i % 26) for i in range(200))

    async def slow(engine: Engine) -> None:
        got = ""
        async with engine.generate("go", SamplingParams(seed=0)) as generation:
            async for event in generation:
                await trio.sleep(1)
                if isinstance(event, TextDelta):
                    got += event.text
        assert got == text

    async def fast(engine: Engine) -> None:
        begin = trio.current_time()
        await engine.complete("go", SamplingParams(seed=1))
        assert trio.current_time() - begin < 200 * 0.011

    async with engine_left_clean(say([text, text]), options=options) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow, engine)
            nursery.start_soon(fast, engine)


async def test_a_reader_that_stops_pauses_its_choices_and_bounds_what_is_kept_for_them() -> None:  # FAN-29
    options = attrs.evolve(FAKE_OPTIONS, max_backlog=8)
    block, device = open_fake_engine(count_for_ever, options=options)
    async with block as engine:
        async with engine.generate("go", SamplingParams(n=2)):
            await trio.sleep(10)
            steps = len(device.plans)
            assert steps < 100
            await trio.sleep(10)
            assert len(device.plans) == steps
        await assert_nothing_left(engine)


async def test_cancelling_one_choice_leaves_its_siblings_alone() -> None:  # FAN-34
    async with engine_left_clean() as engine:
        reasons: dict[int, str] = {}
        async with engine.generate("go", SamplingParams(n=3, max_tokens=20)) as generation:
            async for event in generation:
                if isinstance(event, ChoiceFinished):
                    reasons[event.index] = event.reason
                elif event.index == 1:
                    generation.cancel_choice(1)
        assert reasons == {0: "length", 1: "cancelled", 2: "length"}


async def test_aborting_a_request_by_id_ends_all_its_choices() -> None:  # FAN-34
    async with engine_left_clean() as engine:
        async with engine.generate("go", SamplingParams(n=3), request_id="r") as generation:
            await generation.receive()
            assert engine.abort("r")
            finished = [event async for event in generation if isinstance(event, ChoiceFinished)]
        assert [event.reason for event in finished] == ["cancelled"] * 3
        assert not engine.abort("r")


async def test_draining_refuses_new_requests_and_lets_the_running_end() -> None:  # FAN-10
    async with engine_left_clean() as engine:
        async with engine.generate("go", SamplingParams(max_tokens=10)) as generation:
            engine.begin_drain()
            with pytest.raises(EngineStoppingError):
                await engine.complete("go")
            finished = [event async for event in generation if isinstance(event, ChoiceFinished)]
        assert [event.reason for event in finished] == ["length"]
        await engine.wait_drained()
