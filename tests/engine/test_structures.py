"""Structures in the engine: compiled once for a request, off the event loop, and kept by every choice."""

from __future__ import annotations

import json
from itertools import count
from random import Random

import attrs
import llguidance
import pytest

from trioserve.engine import structures
from trioserve.engine.structures import Structures
from trioserve.errors import ParamError, StructureError
from trioserve.events import ChoiceFinished
from trioserve.params import SamplingParams
from trioserve.structure import Structure
from trioserve.testing.device import Draw
from trioserve.testing.engine import open_fake_engine
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.text import grammar
from trioserve.text.grammar import Clock, GrammarTokens, compile_structure

PAIR = Structure(
    kind="json_schema",
    text=json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    ),
    param="response_format",
)


def draw_anything(draw: Draw) -> int:
    """A script of random tokens; the device draws the next one that is allowed."""
    return Random(f"{draw.seed} {draw.generated}").randrange(259)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the structures that were compiled."""
    texts: list[str] = []

    def count(structure: Structure, tokens: GrammarTokens, clock: Clock) -> object:
        texts.append(structure.text)
        return compile_structure(structure, tokens, clock)

    monkeypatch.setattr(structures, "compile_structure", count)
    return texts


async def test_every_choice_of_every_prompt_is_what_it_must_be(compilations: list[str]) -> None:  # FAN-8, FAN-9
    block, _ = open_fake_engine(draw_anything)
    async with block as engine:
        params = SamplingParams(n=8, seed=1, max_tokens=200, structure=PAIR)
        answer = await engine.complete(["one prompt", "another"], params)
    assert {choice.reason for choice in answer.choices} == {"stop"}
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) == 8  # a seed says the same to every prompt here
    for text in texts:
        value = json.loads(text)
        assert isinstance(value["a"], int)
        assert value["b"] in ("x", "y")
    assert compilations == [PAIR.text]


async def test_a_choice_that_is_cut_off_ends_with_length() -> None:
    block, _ = open_fake_engine(draw_anything)
    async with block as engine:
        params = SamplingParams(n=4, seed=1, max_tokens=5, structure=PAIR)
        answer = await engine.complete("p", params)
    assert {choice.reason for choice in answer.choices} == {"length"}
    assert all(choice.text.startswith("{") for choice in answer.choices)


async def test_the_same_seed_gives_the_same_choice_in_any_company() -> None:  # FAN-15
    block, _ = open_fake_engine(draw_anything)
    async with block as engine:
        params = SamplingParams(n=4, seed=10, max_tokens=100, structure=PAIR)
        together = await engine.complete("p", params)
        alone = [await engine.complete("p", attrs.evolve(params, n=1, seed=choice.seed)) for choice in together.choices]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]


async def test_preempted_choices_go_on_where_they_were() -> None:  # case preempt-same-output
    params = SamplingParams(n=6, seed=3, max_tokens=60, structure=Structure(kind="regex", text="[a-z]{40}"))
    texts = []
    for page_count in (1024, 20):
        block, _ = open_fake_engine(draw_anything, page_count=page_count)
        async with block as engine:
            answer = await engine.complete("p" * 30, params)
            texts.append([choice.text for choice in answer.choices])
            preemptions = engine.statistics().scheduler.preemptions
    assert texts[0] == texts[1]
    assert preemptions > 0


async def test_an_agent_that_asks_the_same_again_waits_for_nothing(compilations: list[str]) -> None:
    block, _ = open_fake_engine(draw_anything)
    async with block as engine:
        for _ in range(3):
            await engine.complete("p", SamplingParams(max_tokens=100, structure=PAIR))
    assert compilations == [PAIR.text]


async def test_each_request_has_a_matcher_of_its_own() -> None:
    compiler = Structures(ByteTokenizer(), 259, None)
    first, second = [await compiler.compile(Structure(kind="regex", text="ab")) for _ in range(2)]
    first.advance(ord("a"))
    assert not second.advance(ord("a"))


async def test_of_many_structures_the_ones_asked_for_last_are_kept(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structures, "MAX_CACHED_CHARACTERS", 6)
    compiler = Structures(ByteTokenizer(), 259, None)
    for text in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb"):
        await compiler.compile(Structure(kind="regex", text=text))
    assert compilations == ["aaa", "bbb", "ccc", "bbb"]


async def test_a_structure_that_cant_be_enforced_is_refused_before_anything_runs() -> None:
    block, device = open_fake_engine()
    bad = attrs.evolve(PAIR, text='{"type": "nope"}')
    async with block as engine:
        with pytest.raises(ParamError, match="nope") as caught:
            await engine.complete("p", SamplingParams(structure=bad))
        # also where nothing is to be generated
        with pytest.raises(ParamError, match="nope"):
            await engine.complete("p", SamplingParams(structure=bad, max_tokens=0))
        assert engine.statistics().requests == 0
    assert caught.value.param == "response_format"
    assert device.plans == []


@pytest.mark.parametrize(
    "fields",
    [{"stop": ("x",)}, {"stop_token_ids": (1,)}, {"ignore_eos": True}, {"min_tokens": 1}, {"include_stop": True}],
)
def test_what_would_end_it_elsewhere_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ParamError, match="response_format") as caught:
        SamplingParams(structure=PAIR, **fields)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(fields))


async def test_a_choice_that_hits_a_limit_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:  # FAN-24
    limits = llguidance.LLParserLimits(max_lexer_states=30, verbose_errors=False)
    monkeypatch.setattr(grammar, "_limits", lambda: limits)
    # one of the choices needs a state for each of its characters
    block, _ = open_fake_engine(lambda draw: ord("b") if draw.seed == 1 and not draw.generated else ord("a"))
    params = SamplingParams(
        n=3, seed=0, max_tokens=100, choice_errors="isolate", structure=Structure(kind="regex", text="a|b[a-z]{50}")
    )
    finished: dict[int, ChoiceFinished] = {}
    async with block as engine:
        async with engine.generate("p", params) as generation:
            async for event in generation:
                if isinstance(event, ChoiceFinished):
                    finished[event.index] = event
        assert [finished[index].reason for index in range(3)] == ["stop", "error", "stop"]
        assert "can't go on" in str(finished[1].error)
        with pytest.raises(StructureError, match="can't go on"):
            await engine.complete("p", attrs.evolve(params, choice_errors="fail"))
        # the engine goes on, and does not take what is spent for the next one
        assert (await engine.complete("p", attrs.evolve(params, n=1))).choices[0].reason == "stop"
        engine.check()


async def test_no_drafts_are_made_for_a_structured_choice() -> None:
    block, device = open_fake_engine(draw_anything, free_rows=8)
    params = SamplingParams(seed=1, max_tokens=100, structure=PAIR, prompt_lookup=True, prediction='{"a":1,"b":"x"}')
    async with block as engine:
        answer = await engine.complete('{"a":1,"b":"x"}', params)
    assert answer.choices[0].reason == "stop"
    assert all(len(plan.rows.tokens) <= 1 for plan in device.plans)


async def test_a_structure_that_took_too_long_ends_its_choices_and_is_refused_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = count(step=0.5)
    monkeypatch.setattr(structures.time, "thread_time", lambda: next(times))
    block, _ = open_fake_engine(draw_anything)
    async with block as engine:
        params = SamplingParams(n=3, seed=1, max_tokens=20, structure=Structure(kind="regex", text="a*", param="here"))
        with pytest.raises(StructureError, match="takes too long"):
            await engine.complete("p", params)
        with pytest.raises(ParamError, match="took too long") as caught:
            await engine.complete("p", params)
        assert caught.value.param == "here"
        # others are none the worse for it
        await engine.complete("p", attrs.evolve(params, structure=None))
