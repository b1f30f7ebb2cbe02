"""What an engine tells its observers, on virtual time: a step takes 0.01 seconds, and nothing else takes any."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from trioserve.engine.engine import Engine
from trioserve.engine.generation import Generation
from trioserve.engine.observer import AbortCause, ChoiceReport, Observer, RequestReport
from trioserve.errors import (
    ChoiceFailedError,
    DeviceError,
    EngineClosedError,
    EngineStoppingError,
    ParamError,
    QueueFullError,
    TrioserveError,
)
from trioserve.params import Limits, SamplingParams, StopWhen
from trioserve.testing.device import Draw, Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.tokenizer import BrokenTokenizer, ByteTokenizer

ONE_AT_A_TIME = attrs.evolve(FAKE_OPTIONS, max_running=1)


@attrs.define(eq=False)
class Recorder(Observer):
    """Remembers every call."""

    refused: list[TrioserveError] = attrs.field(factory=list)
    waited: list[float] = attrs.field(factory=list)
    first: list[float] = attrs.field(factory=list)
    then: list[tuple[int, float]] = attrs.field(factory=list)
    choices: list[ChoiceReport] = attrs.field(factory=list)
    requests: list[RequestReport] = attrs.field(factory=list)

    def request_refused(self, error: TrioserveError) -> None:
        self.refused.append(error)

    def choice_admitted(self, waited_s: float) -> None:
        self.waited.append(waited_s)

    def first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def next_tokens(self, count: int, seconds: float) -> None:
        self.then.append((count, seconds))

    def choice_finished(self, report: ChoiceReport) -> None:
        self.choices.append(report)

    def request_ended(self, report: RequestReport) -> None:
        self.requests.append(report)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(report.reason for report in self.choices)

    def assert_one_request(self, *, n: int, best_of: int, longest_tokens: int) -> None:
        """One request came to its end."""
        (report,) = self.requests
        assert (report.n, report.best_of, report.longest_tokens) == (n, best_of, longest_tokens)
        assert (report.aborted_choices, report.abort_cause, report.error) == (0, None, None)

    def assert_aborted(self, choices: int, cause: AbortCause) -> None:
        (report,) = self.requests
        assert (report.aborted_choices, report.abort_cause) == (choices, cause)
        assert self.refused == []


@asynccontextmanager
async def observed(script: Script = count_for_ever, **settings: object) -> AsyncIterator[tuple[Engine, Recorder]]:
    block, _ = open_fake_engine(script, **settings)  # type: ignore[arg-type]
    async with block as engine:
        recorder = Recorder()
        engine.add_observer(recorder)
        yield engine, recorder


def approx(*values: float) -> object:
    return pytest.approx(list(values))


async def test_each_choice_is_timed_by_itself_and_the_request_once() -> None:  # FAN-35
    async with observed(say(["a", "bb", "cccc"])) as (engine, told):
        await engine.complete("go", SamplingParams(n=3, max_tokens=9))
    assert told.waited == [0.0] * 3
    assert told.first == approx(0.01, 0.01, 0.01)
    assert [count for count, _ in told.then] == [1] * (1 + 2 + 4)
    assert [seconds for _, seconds in told.then] == approx(*[0.01] * 7)
    assert [report.completion_tokens for report in told.choices] == [2, 3, 5]
    assert [report.latency_s for report in told.choices] == approx(0.02, 0.03, 0.05)
    assert [report.token_interval_s for report in told.choices] == approx(0.01, 0.01, 0.01)
    assert {(report.reason, report.prompt_tokens, report.max_tokens) for report in told.choices} == {("stop", 3, 9)}
    told.assert_one_request(n=3, best_of=3, longest_tokens=5)


async def test_the_wait_for_a_place_is_in_the_time_to_the_first_token() -> None:
    async with observed(say("aaaa"), options=ONE_AT_A_TIME) as (engine, told):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.complete, "first")
            await trio.sleep(0.005)
            nursery.start_soon(engine.complete, "second")
    assert told.waited[0] == 0.0
    assert told.waited[1] > 0.0
    assert told.first[1] == pytest.approx(told.waited[1] + 0.01)


async def test_tokens_that_come_together_are_told_together() -> None:
    async with observed(say("a" * 40)) as (engine, told):
        async with engine.generate("go") as generation:
            await trio.sleep(0.2)
            async for _ in generation:
                pass
    assert max(count for count, _ in told.then) > 1
    assert len(told.first) + sum(count for count, _ in told.then) == 41
    # first to last, however the tokens were put together
    elapsed = told.first[0] + sum(seconds for _, seconds in told.then)
    assert elapsed == pytest.approx(told.choices[0].latency_s)
    assert told.choices[0].token_interval_s == pytest.approx((elapsed - told.first[0]) / 40)


async def test_a_single_token_has_no_interval() -> None:
    async with observed(say("")) as (engine, told):
        await engine.complete("go")
    assert (told.then, told.choices[0].token_interval_s) == ([], None)


async def test_a_choice_that_a_stop_string_ends_reports_what_it_keeps() -> None:
    async with observed(say("alpha<end>tail")) as (engine, told):
        await engine.complete("go", SamplingParams(stop="<end>"))
    assert (told.choices[0].reason, told.choices[0].completion_tokens) == ("stop", len("alpha<end>"))


async def test_copies_are_told_one_by_one() -> None:  # FAN-6
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))
    async with observed(say("ab"), options=options) as (engine, told):
        await engine.complete(["p", "q"], SamplingParams(n=3, temperature=0))
    assert (len(told.waited), len(told.first), len(told.then)) == (6, 6, 12)
    assert [report.completion_tokens for report in told.choices] == [3] * 6
    told.assert_one_request(n=3, best_of=3, longest_tokens=3)


async def test_a_request_is_told_whole() -> None:
    params = SamplingParams(n=3, seed=0, max_tokens=9)
    async with observed(say(["a", "bb", "cccc"])) as (engine, told):
        for _ in range(2):
            async with engine.generate(["go" * 20, "on"], params, request_id="r") as generation:
                async for _event in generation:
                    pass
    first, second = told.requests
    assert (first.request_id, first.params.seed, first.params.n) == ("r", 0, 3)
    # BOS, and two texts of 40 and 2 bytes
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (44, 0)
    assert second.usage.prompt_tokens == 44
    assert second.usage.cached_tokens > 0
    assert first.usage.completion_tokens == 2 * (2 + 3 + 5)
    assert (first.duration_s, first.first_token_s) == (pytest.approx(0.05), pytest.approx(0.01))
    assert first.finish_reasons == ("stop",) * 6


async def test_of_a_request_that_is_left_is_told_how_far_it_came() -> None:  # FAN-25
    async with observed() as (engine, told):
        async with engine.generate("go", SamplingParams(n=2)) as generation:
            with trio.move_on_after(0.055):
                async for _ in generation:
                    pass
        with trio.move_on_after(0.001):
            await engine.complete("go")
    left, early = told.requests
    assert (left.finish_reasons, left.error, left.duration_s) == ((), None, pytest.approx(0.055))
    assert left.usage.completion_tokens == 2 * 5
    assert (early.first_token_s, early.usage.completion_tokens) == (None, 0)


async def test_of_a_request_that_fails_is_told_the_error() -> None:
    async with observed(say(["a", "bx"]), tokenizer=BrokenTokenizer()) as (engine, told):
        with pytest.raises(ChoiceFailedError) as failed:
            await engine.complete("go", SamplingParams(n=2))
    assert [report.error for report in told.requests] == [failed.value]


async def test_copies_finish_and_count_one_by_one() -> None:  # FAN-6
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))
    async with observed(say("ab"), options=options) as (engine, told):
        await engine.complete("p", SamplingParams(n=3, temperature=0))
    assert told.requests[0].finish_reasons == ("stop",) * 3
    assert told.requests[0].usage.completion_tokens == 9


async def test_choices_without_a_token_finish_too() -> None:  # case max-tokens-edges
    async with observed() as (engine, told):
        await engine.complete(["abc", "d"], SamplingParams(n=2, max_tokens=0))
    assert [(report.reason, report.prompt_tokens) for report in told.choices] == [("length", 4)] * 2 + [
        ("length", 2)
    ] * 2
    assert (told.first, told.waited) == ([], [])
    told.assert_one_request(n=2, best_of=2, longest_tokens=0)


async def test_cancelled_choices_finish_and_are_no_aborts() -> None:  # FAN-31, FAN-34
    async with observed(say(["a", "b" * 50])) as (engine, told):
        await engine.complete("go", SamplingParams(n=2, stop_when=StopWhen(finished=1)))
    assert told.reasons == {"stop": 1, "cancelled": 1}
    assert told.requests[0].aborted_choices == 0


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.015, 0.5])
async def test_a_caller_who_leaves_at_any_moment_is_an_abort_of_every_choice(seconds: float) -> None:  # FAN-25
    async with observed() as (engine, told):
        with trio.move_on_after(seconds):
            await engine.complete("g" * 600, SamplingParams(n=8))
    told.assert_aborted(8, "left")
    assert told.choices == []


async def test_leaving_while_queued_is_an_abort() -> None:  # FAN-25
    async with observed(options=ONE_AT_A_TIME) as (engine, told):
        async with engine.generate("first") as first:
            await first.receive()
            with trio.move_on_after(0.05):
                await engine.complete("second", SamplingParams(n=2))
            told.assert_aborted(2, "left")
    assert len(told.waited) == 1


async def test_leaving_while_the_prompt_is_tokenized_is_an_abort() -> None:  # FAN-25
    async with observed() as (engine, told):
        with trio.CancelScope() as scope:
            scope.cancel()
            await engine.complete(["a", "b"], SamplingParams(n=3))
    told.assert_aborted(6, "left")


async def leave(generation: Generation) -> None:
    await generation.receive()


async def close(generation: Generation) -> None:
    await generation.aclose()
    await trio.sleep(1)


async def fail(generation: Generation) -> None:
    await generation.receive()
    raise ZeroDivisionError


@pytest.mark.parametrize("way", [leave, close, fail])
async def test_every_way_to_leave_early_is_an_abort(way: Callable[[Generation], Awaitable[None]]) -> None:
    async with observed() as (engine, told):
        try:
            async with engine.generate("go", SamplingParams(n=3)) as generation:
                await way(generation)
        except ZeroDivisionError:
            pass
    told.assert_aborted(3, "left")


async def test_only_those_that_still_run_are_aborted() -> None:
    async with observed(say(["a", "b" * 90, "c"])) as (engine, told):
        async with engine.generate("go", SamplingParams(n=3)):
            await trio.sleep(0.05)
    told.assert_aborted(1, "left")
    assert told.reasons == {"stop": 2}


async def test_nothing_is_aborted_when_all_have_finished_before_their_caller_leaves() -> None:
    async with observed(say("a")) as (engine, told):
        async with engine.generate("go", SamplingParams(n=3)):
            await trio.sleep(1)
    assert told.reasons == {"stop": 3}
    assert (told.requests[0].aborted_choices, told.requests[0].abort_cause) == (0, None)


async def test_a_failed_choice_is_an_error_and_its_siblings_are_aborted() -> None:  # FAN-23
    async with observed(say(["aaaa", "x", "aaaa"]), tokenizer=BrokenTokenizer()) as (engine, told):
        with pytest.raises(ChoiceFailedError):
            await engine.complete("go", SamplingParams(n=3))
    told.assert_aborted(2, "failed")
    assert told.reasons == {"error": 1}


async def test_an_isolated_failure_aborts_nobody() -> None:  # FAN-24
    async with observed(say(["aaaa", "x", "aaaa"]), tokenizer=BrokenTokenizer()) as (engine, told):
        await engine.complete("go", SamplingParams(n=3, choice_errors="isolate"))
    assert told.reasons == {"stop": 2, "error": 1}
    told.assert_one_request(n=3, best_of=3, longest_tokens=5)


async def test_an_engine_that_ends_aborts_what_runs() -> None:
    def breaks(draw: Draw) -> int:
        if len(draw.generated) == 2:
            raise RuntimeError("out of order")
        return ord("a")

    async def ask(engine: Engine) -> None:
        with pytest.raises(EngineClosedError):
            await engine.complete("go", SamplingParams(n=2))

    async with trio.open_nursery() as nursery:
        with pytest.raises(DeviceError):
            async with observed(breaks) as (engine, told):
                nursery.start_soon(ask, engine)  # noqa: ASYNC111  # to outlive the engine is the point
                await trio.sleep_forever()
    told.assert_aborted(2, "closed")
    assert told.requests[0].longest_tokens == 2


@pytest.mark.parametrize("entered", [True, False])
async def test_what_a_shutdown_cuts_off_has_not_left_by_itself(entered: bool) -> None:
    async with observed() as (engine, told), trio.open_nursery() as nursery:
        nursery.start_soon(engine.complete, "go", SamplingParams(n=2, max_tokens=500))
        if entered:
            await trio.sleep(0.1)
        else:
            # it is being tokenized, or waits for the answer to its submit
            while engine.statistics().requests == 0:  # noqa: ASYNC110  # it is the turns that count
                await trio.lowlevel.checkpoint()
        engine.begin_drain()
        engine.begin_cut_off()
        nursery.cancel_scope.cancel()
    told.assert_aborted(2, "shutdown")


async def test_refusals_are_told_with_their_error_and_nothing_else() -> None:  # FAN-10
    options = attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=2)
    async with observed(options=options) as (engine, told):
        async with engine.generate("go", request_id="mine") as running:
            await running.receive()
            with pytest.raises(QueueFullError):
                await engine.complete("go", SamplingParams(n=3))
            with pytest.raises(ParamError):
                await engine.complete([1, -1])
            with pytest.raises(ParamError, match="is running"):
                await engine.generate("go", request_id="mine").__aenter__()
            engine.begin_drain()
            with pytest.raises(EngineStoppingError):
                await engine.complete("go")
            assert told.requests == []
    assert [type(error) for error in told.refused] == [QueueFullError, ParamError, ParamError, EngineStoppingError]
    assert len(told.requests) == 1


async def test_a_failure_while_entering_is_no_refusal() -> None:
    class NoEncoder(ByteTokenizer):
        def encode(self, text: str, *, add_special: bool) -> list[int]:
            raise ValueError("broken")

    async with observed(tokenizer=NoEncoder()) as (engine, told):
        with pytest.raises(ValueError, match="broken"):
            await engine.complete("go", SamplingParams(n=2))
    told.assert_aborted(2, "failed")


async def test_every_observer_is_told_the_same_and_of_later_requests_only() -> None:
    async with observed(say("ab")) as (engine, told):
        late = Recorder()
        async with engine.generate("go") as generation:
            engine.add_observer(late)
            async for _ in generation:
                pass
        assert (len(told.requests), late.requests) == (1, [])
        await engine.complete("go")
    assert late.then == told.then[2:]
    assert late.choices == told.choices[1:]
    assert late.requests == told.requests[1:]


async def test_an_observer_need_not_care() -> None:
    async with observed(say("ab")) as (engine, _):
        engine.add_observer(Observer())
        assert (await engine.complete("go")).choices[0].text == "ab"


async def test_a_snapshot_shows_each_request_while_it_runs() -> None:
    options = attrs.evolve(FAKE_OPTIONS, max_running=2)
    script = say(["a", "b" * 90])
    async with observed(script, options=options) as (engine, _):
        await trio.sleep(1)
        async with engine.generate(["p" * 40, "q"], SamplingParams(n=2), request_id="r1", alias="mine") as generation:
            await trio.sleep(0.035)
            (request,) = engine.snapshot().requests
            assert (request.id, request.alias, request.n, request.prompts, request.choices) == ("r1", "mine", 2, 2, 4)
            assert (request.prompt_tokens, request.cached_tokens) == (43, 0)
            assert request.age_s == pytest.approx(0.035)
            assert 0 < request.choices_finished < 4
            assert request.completion_tokens > 0
            snapshot = engine.snapshot()
            assert snapshot.scheduler == engine.statistics().scheduler
            assert snapshot.uptime_s == pytest.approx(1.035)
            assert (snapshot.model, snapshot.device, snapshot.draining) == ("tiny-chat", "fake", False)
            assert (snapshot.page_size, snapshot.page_count) == (16, 1024)
            generation.cancel()
        engine.begin_drain()
        assert (engine.snapshot().requests, engine.snapshot().draining) == ((), True)


async def test_a_snapshot_counts_copies_and_choices_without_tokens() -> None:
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))
    async with observed(say("ab"), options=options) as (engine, _):
        async with engine.generate("go", SamplingParams(n=3, temperature=0)):
            await trio.sleep(1)
            (request,) = engine.snapshot().requests
            assert (request.choices_finished, request.completion_tokens) == (3, 9)
        async with engine.generate("go", SamplingParams(n=2, max_tokens=0)):
            assert engine.snapshot().requests[0].choices_finished == 2
