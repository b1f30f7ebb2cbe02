"""An engine that takes one choice at a time: the gate before it (FAN-13), and all that holds as with our scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from trioserve.engine.engine import Engine
from trioserve.engine.gate import Gate
from trioserve.engine.options import EngineOptions
from trioserve.errors import ChoiceFailedError, EngineClosedError, ParamError, QueueFullError
from trioserve.events import ChoiceFinished, TextDelta
from trioserve.params import SamplingParams
from trioserve.sched.group import Group, Uid
from trioserve.testing.engine import FAKE_OPTIONS
from trioserve.testing.groupless import (
    ADMISSION_S,
    PREFILL_S,
    TOKEN_S,
    FakeChoiceEngine,
    FakeChoiceStream,
    open_groupless_engine,
)


@asynccontextmanager
async def opened(foreign: FakeChoiceEngine, options: EngineOptions = FAKE_OPTIONS) -> AsyncIterator[Engine]:
    """An engine over a foreign one, which has to be left clean (FAN-27)."""

    async with open_groupless_engine(foreign, options) as engine:
        yield engine
        await trio.testing.wait_all_tasks_blocked()
        assert (foreign.live, foreign.admitting) == (set(), 0)
        statistics = engine.statistics()
        assert statistics.requests == 0
        assert statistics.scheduler.waiting + statistics.scheduler.prefilling + statistics.scheduler.running == 0
        engine.check()


# the gate


async def test_siblings_are_submitted_when_the_first_choice_has_a_token() -> None:  # FAN-8, FAN-13
    foreign, begin = FakeChoiceEngine(), trio.current_time()
    async with opened(foreign) as engine:
        answer = await engine.complete("hello", SamplingParams(n=4, seed=3), request_id="r")
        statistics = engine.statistics().scheduler
    assert [choice.text for choice in answer.choices] == ["456789012", "567890123", "678901234", "789012345"]
    assert foreign.uids[0] == "0_r"
    assert set(foreign.uids) == {f"{j}_r" for j in range(4)}
    # not at the reply to its admission; then all at once, and they find the prompt
    assert [round(each.when - begin, 3) for each in foreign.submitted] == [0.0] + [ADMISSION_S + PREFILL_S] * 3
    assert [each.cached_tokens for each in foreign.submitted] == [0, 5, 5, 5]
    assert (statistics.prompt_tokens_computed, statistics.prompt_tokens_cached) == (6, 0)
    assert (statistics.groups, statistics.tokens_generated) == (1, 40)


async def test_a_request_with_several_prompts_has_a_gate_for_each() -> None:  # FAN-4, FAN-21
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        answer = await engine.complete(["ab", "cde"], SamplingParams(n=2, seed=0), request_id="r")
        again = await engine.complete("ab", SamplingParams(seed=0))
    assert (foreign.uids[0], foreign.uids[1]) in (("0_r-0", "0_r-1"), ("0_r-1", "0_r-0"))
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert (answer.prompt_tokens, answer.cached_tokens) == (7, 0)
    assert (again.prompt_tokens, again.cached_tokens) == (3, 2)
    assert again.choices[0].text == answer.choices[0].text == answer.choices[2].text


async def test_one_choice_has_nobody_to_wait_for() -> None:  # FAN-5
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        (choice,) = (await engine.complete("a", SamplingParams(seed=0, max_tokens=2), request_id="r")).choices
    assert (choice.text, choice.reason, foreign.uids) == ("12", "length", ["r"])


# failures of the first choice


@pytest.mark.parametrize(
    "foreign",
    [
        lambda: FakeChoiceEngine(refuse={"0_r": RuntimeError("boom")}.get),
        lambda: FakeChoiceEngine(failures={("0_r", 0): RuntimeError("boom")}),
    ],
    ids=["as it is submitted", "before its first token"],
)
async def test_no_sibling_is_submitted_if_the_first_choice_fails(foreign: Callable[[], FakeChoiceEngine]) -> None:
    # FAN-13, FAN-23
    engine_elsewhere = foreign()
    async with opened(engine_elsewhere) as engine:
        with pytest.raises(ChoiceFailedError, match="Choice 0 failed: RuntimeError: boom") as caught:
            await engine.complete("hello", SamplingParams(n=4), request_id="r")
        assert caught.value.index == 0
        await trio.sleep(10)
        assert engine_elsewhere.uids == ["0_r"]


async def test_where_errors_are_isolated_the_siblings_fail_of_that_of_the_first_choice() -> None:  # FAN-13, FAN-24
    foreign = FakeChoiceEngine(failures={("0_r", 0): RuntimeError("boom")})
    async with opened(foreign) as engine:
        finished: list[ChoiceFinished] = []
        with pytest.raises(ChoiceFailedError, match="boom"):
            async with engine.generate("hello", SamplingParams(n=3, choice_errors="isolate"), request_id="r") as events:
                async for event in events:
                    assert isinstance(event, ChoiceFinished)
                    finished.append(event)
        # all have failed, so the request fails with the last
        assert [event.reason for event in finished] == ["error"] * len(finished)
        assert foreign.uids == ["0_r"]


async def test_a_first_choice_that_fails_after_its_first_token_has_siblings_which_end_with_it() -> None:  # FAN-23
    foreign = FakeChoiceEngine(failures={("0_r", 5): RuntimeError("boom")})
    async with opened(foreign) as engine:
        with pytest.raises(ChoiceFailedError, match="Choice 0 failed: RuntimeError: boom"):
            await engine.complete("hello", SamplingParams(n=3), request_id="r")
    assert len(foreign.uids) == 3


async def test_a_sibling_that_fails_alone_leaves_the_others_alone_if_errors_are_isolated() -> None:  # FAN-24
    foreign = FakeChoiceEngine(failures={("1_r", 2): RuntimeError("boom")})
    async with opened(foreign) as engine:
        params = SamplingParams(n=3, seed=0, choice_errors="isolate")
        async with engine.generate("hello", params, request_id="r") as generation:
            events = [event async for event in generation]
    ends = {event.index: event for event in events if isinstance(event, ChoiceFinished)}
    assert {index: end.reason for index, end in ends.items()} == {0: "stop", 1: "error", 2: "stop"}
    assert ends[1].error == "Choice 1 failed: RuntimeError: boom"
    assert ends[1].usage.completion_tokens == 2


# refusals


async def test_a_refusal_of_the_first_choice_refuses_the_request() -> None:  # FAN-10
    foreign = FakeChoiceEngine(refuse={"0_r": QueueFullError("full", 7)}.get)
    async with opened(foreign) as engine:
        with pytest.raises(QueueFullError) as caught:
            async with engine.generate("hello", SamplingParams(n=3), request_id="r"):
                pytest.fail("it was entered")
        assert caught.value.retry_after == 7
    assert foreign.uids == ["0_r"]


async def test_a_request_of_several_prompts_is_taken_whole_or_refused_whole() -> None:  # FAN-10
    foreign = FakeChoiceEngine(refuse={"0_r-1": QueueFullError("full")}.get)
    async with opened(foreign) as engine:
        with pytest.raises(QueueFullError):
            await engine.complete(["a", "b", "c"], SamplingParams(n=2), request_id="r")
        await trio.sleep(10)
    assert sorted(foreign.uids) == ["0_r-0", "0_r-1", "0_r-2"]


async def test_a_refusal_of_a_sibling_fails_the_request_with_its_status() -> None:  # FAN-23
    foreign = FakeChoiceEngine(refuse={"2_r": QueueFullError("full")}.get)
    async with opened(foreign) as engine:
        with pytest.raises(QueueFullError, match="full"):
            await engine.complete("hello", SamplingParams(n=3), request_id="r")


async def test_more_choices_than_may_run_and_wait_are_refused_whole() -> None:  # FAN-10
    foreign = FakeChoiceEngine()
    async with opened(foreign, attrs.evolve(FAKE_OPTIONS, max_running=2, max_queued=3)) as engine:
        async with engine.generate("hello", SamplingParams(n=3)):
            with pytest.raises(QueueFullError, match="3 choices run or wait; with 3 more it would be over 5"):
                await engine.complete("hello", SamplingParams(n=3))
            await engine.complete("hello", SamplingParams(n=2))


@pytest.mark.parametrize("prompts", [["abc"], ["ab", "abc"]], ids=len)
async def test_a_refusal_names_the_prompt_at_fault_as_the_caller_does(prompts: list[str]) -> None:
    foreign = FakeChoiceEngine(refuse={uid: ParamError("too long", "prompt") for uid in ("r", "0_r-1")}.get)
    async with opened(foreign) as engine:
        with pytest.raises(ParamError, match="too long") as caught:
            await engine.complete(prompts, SamplingParams(), request_id="r")
    assert caught.value.param == ("prompt" if len(prompts) == 1 else "prompt.1")


# the best of several candidates, and drafts


async def test_the_best_candidates_are_those_that_the_engine_says() -> None:  # FAN-32
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        answer = await engine.complete("hello", SamplingParams(n=2, best_of=4, seed=1))
    assert [(choice.seed, choice.mean_logprob) for choice in answer.choices] == [(3, 0.0), (1, -1.0)]
    assert [each.cached_tokens for each in foreign.submitted] == [0, 5, 5, 5]


async def test_an_engine_without_logprobs_answers_all_but_best_of() -> None:  # FAN-32
    foreign = FakeChoiceEngine(has_logprobs=False)
    async with opened(foreign) as engine:
        with pytest.raises(ParamError, match="gives no log-probabilities") as caught:
            await engine.complete("hello", SamplingParams(n=2, best_of=4), request_id="r")
        assert (caught.value.param, foreign.uids) == ("best_of", [])
        answer = await engine.complete("hello", SamplingParams(n=2))
    assert [choice.mean_logprob for choice in answer.choices] == [None, None]


async def test_logprobs_that_were_promised_and_do_not_come_fail_the_choice() -> None:
    class Forgetful(FakeChoiceEngine):
        async def submit(self, group: Group) -> FakeChoiceStream:
            (spec,) = group.choices
            return await super().submit(attrs.evolve(group, choices=(attrs.evolve(spec, logprobs=False),)))

    foreign = Forgetful()
    async with opened(foreign) as engine:
        with pytest.raises(ChoiceFailedError, match="0 log-probabilities came for 1 tokens"):
            await engine.complete("hello", SamplingParams(n=1, best_of=3), request_id="r")
    assert foreign.uids == ["0_r"]


@pytest.mark.parametrize("asked", [{"prompt_lookup": True}, {"prediction": "12345"}], ids=str)
async def test_what_a_request_says_of_drafts_reaches_the_engine_and_what_came_of_them_the_usage(
    asked: dict[str, Any],
) -> None:  # FAN-21
    async with opened(FakeChoiceEngine()) as engine:
        answer = await engine.complete("hello", SamplingParams(n=2, seed=0, **asked))
        drafting = engine.statistics().scheduler
        plain = await engine.complete("hello", SamplingParams(seed=0))
    # one token, four times two, and the last
    for choice, text in zip(answer.choices, ["123456789", "234567890"], strict=True):
        usage = choice.usage
        assert choice.text == text
        assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (4, 6)
    assert (drafting.draft_tokens, drafting.draft_tokens_accepted) == (20, 8)
    usage = plain.choices[0].usage
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (0, 0)


# leaving, cancelling, reading slowly


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.5, 1.095, 1.1, 1.105, 1.15, 1.2])
async def test_leaving_at_any_moment_ends_every_choice_and_submits_no_other(seconds: float) -> None:  # FAN-25
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        with trio.move_on_after(seconds) as scope:
            await engine.complete("hello", SamplingParams(n=8), request_id="r")
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        before = list(foreign.uids)
        assert len(before) <= 1 or seconds >= ADMISSION_S + PREFILL_S
        await trio.sleep(10)
        assert foreign.uids == before


async def test_leaving_between_two_turns_of_the_loop_harms_nobody() -> None:  # FAN-25
    async def ask(engine: Engine, scope: trio.CancelScope) -> None:
        with scope:
            await engine.complete([1, 2, 3], SamplingParams(n=3))

    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        for turns in list(range(10)) * 5:  # trio chooses the order of tasks at random
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, engine, scope)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert len(foreign.uids) <= 50
        assert (await engine.complete("go", SamplingParams(max_tokens=1))).choices[0].reason == "length"


async def test_if_the_first_choice_is_cancelled_the_next_goes_first() -> None:  # FAN-34
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        ends: dict[int, str] = {}
        async with engine.generate("hello", SamplingParams(n=4), request_id="r") as generation:
            await trio.sleep(0.5)
            generation.cancel_choice(0)
            generation.cancel_choice(2)
            await trio.sleep(0.01)
            assert foreign.uids == ["0_r", "1_r"]
            async for event in generation:
                if isinstance(event, ChoiceFinished):
                    ends[event.index] = event.reason
                    assert len(ends) > 2 or event.reason == "cancelled"
    assert ends == {0: "cancelled", 1: "stop", 2: "cancelled", 3: "stop"}
    assert foreign.uids == ["0_r", "1_r", "3_r"]


async def test_a_cancelled_request_submits_nothing_more() -> None:  # FAN-34
    foreign = FakeChoiceEngine()
    async with opened(foreign) as engine:
        async with engine.generate("hello", SamplingParams(n=4), request_id="r") as generation:
            await trio.sleep(0.5)
            assert engine.abort("r")
            ends = [event async for event in generation if isinstance(event, ChoiceFinished)]
        assert [end.reason for end in ends] == ["cancelled"] * 4
    assert foreign.uids == ["0_r"]


async def test_a_slow_reader_delays_nobody_and_loses_nothing() -> None:  # FAN-29
    foreign = FakeChoiceEngine()
    texts: dict[int, str] = dict.fromkeys(range(2), "")
    async with opened(foreign) as engine:
        async with engine.generate("hello", SamplingParams(n=2, seed=0)) as slow:
            await trio.sleep(5)
            # what nobody reads is not even asked for
            assert len(foreign.live) == 2
            begin = trio.current_time()
            await engine.complete("hello", SamplingParams())
            assert trio.current_time() - begin < ADMISSION_S + 11 * TOKEN_S
            async for event in slow:
                if isinstance(event, TextDelta):
                    texts[event.index] += event.text
                    await trio.sleep(1)
    assert texts == {0: "123456789", 1: "234567890"}


async def test_a_choice_cancelled_while_nobody_reads_it_keeps_what_it_has_made() -> None:  # FAN-34
    async with opened(FakeChoiceEngine()) as engine:
        async with engine.generate("hello", SamplingParams(seed=0)) as generation:
            await trio.sleep(5)
            generation.cancel()
            await trio.sleep(5)
            events = [event async for event in generation]
    end = events[-1]
    assert isinstance(end, ChoiceFinished)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert (end.reason, "123456789"[: end.usage.completion_tokens]) == ("cancelled", text)
    assert len(text) >= 5


# the end of the engine


@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.15])
async def test_leaving_the_engine_ends_requests_that_still_run(seconds: float) -> None:
    async def ask(engine: Engine) -> None:
        with pytest.raises(EngineClosedError):
            await engine.complete("go", SamplingParams(n=2))
        ended.set()

    ended, foreign = trio.Event(), FakeChoiceEngine()

    async with trio.open_nursery() as nursery:
        async with open_groupless_engine(foreign) as engine:
            nursery.start_soon(ask, engine)  # noqa: ASYNC111  # to outlive the engine is the point
            await trio.sleep(seconds)
        await ended.wait()
    assert (foreign.live, foreign.admitting) == (set(), 0)


# the gate alone


async def test_a_gate_gives_the_place_of_one_that_leaves_to_the_next_in_line() -> None:
    passed: list[str] = []

    async def enter(uid: str) -> None:
        await gate.wait(Uid(uid))
        passed.append(uid)

    gate = Gate([Uid(uid) for uid in "abcd"])
    async with trio.open_nursery() as nursery:
        for uid in "dcba":
            nursery.start_soon(enter, uid)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == ["a"]
        gate.leave(Uid("a"))
        await trio.testing.wait_all_tasks_blocked()
        assert passed == ["a", "b"]
        gate.open()
    assert set(passed) == set("abcd")


async def test_a_gate_that_everybody_has_left_holds_up_no_request() -> None:
    gate = Gate([Uid("a"), Uid("b")])
    gate.leave(Uid("b"))
    assert not gate.admitted.is_set()
    gate.leave(Uid("a"))
    assert gate.admitted.is_set()


async def test_a_failure_after_the_first_token_closes_no_gate() -> None:
    gate = Gate([Uid("a"), Uid("b")])
    gate.open()
    gate.fail(RuntimeError())
    await gate.wait(Uid("b"))
    assert gate.error is None
