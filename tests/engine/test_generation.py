"""A generation as its caller sees it: events, text, usage, seeds, and bad input."""

from __future__ import annotations

from collections import defaultdict

import attrs
import pytest
import trio

from trioserve.errors import ContextLengthError, ParamError
from trioserve.events import ChoiceFinished, Event, TextDelta
from trioserve.params import Limits, SamplingParams
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say, say_ids
from trioserve.testing.tokenizer import BOS, EOS, ByteTokenizer


async def test_each_choice_streams_its_own_text_and_finishes_once() -> None:  # FAN-9, FAN-19
    block, _ = open_fake_engine(say(["zero", "one", "", "three"]))
    texts: dict[int, str] = defaultdict(str)
    finished: list[int] = []
    async with block as engine, engine.generate("go", SamplingParams(n=4)) as generation:
        async for event in generation:
            assert event.index not in finished
            if isinstance(event, ChoiceFinished):
                assert event.reason == "stop"
                finished.append(event.index)
            else:
                texts[event.index] += event.text
    assert [texts[j] for j in range(4)] == ["zero", "one", "", "three"]
    assert sorted(finished) == [0, 1, 2, 3]


async def test_choices_interleave_as_their_tokens_are_made() -> None:  # FAN-18
    block, _ = open_fake_engine(say(["aaaa", "bbbb"]))
    async with block as engine, engine.generate("go", SamplingParams(n=2)) as generation:
        order = [event.index async for event in generation if isinstance(event, TextDelta) and event.text]
    assert sorted(order[:2]) == [0, 1]
    assert sorted(order[2:4]) == [0, 1]


async def test_a_prompt_is_computed_once_whatever_n_is() -> None:  # FAN-8, FAN-11
    prompt = "p" * 100
    block, device = open_fake_engine(say("ab"))
    async with block as engine:
        await engine.complete(prompt, SamplingParams(n=16))
        statistics = engine.statistics().scheduler
    computed = sum(len(plan.spans.tokens) for plan in device.plans)
    # 101 with the BOS; then each choice decodes "b" after "a", and the end after "b"
    assert computed == 101 + 16 * 2
    assert statistics.prompt_tokens_computed == 101


async def test_a_prompt_seen_before_is_found_in_the_cache_and_counted_once() -> None:  # FAN-21
    block, _ = open_fake_engine(say("ok"))
    async with block as engine:
        first = await engine.complete("x" * 63, SamplingParams(n=3))
        second = await engine.complete("x" * 63, SamplingParams(n=3))
    assert first.cached_tokens == 0
    assert second.cached_tokens == 48  # 64 tokens in pages of 16; the last prompt token is always computed
    assert [choice.usage.cached_tokens for choice in second.choices] == [48, 0, 0]
    assert [choice.usage.shared_tokens for choice in second.choices] == [0, 64, 64]


async def test_a_list_of_prompts_gives_prompt_major_indices() -> None:  # FAN-4, case prompt-list-index
    block, _ = open_fake_engine(lambda draw: draw.prompt[-1] if not draw.generated else EOS)
    async with block as engine:
        answer = await engine.complete(["a", "b", "c"], SamplingParams(n=2))
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate("aabbcc"))
    assert answer.prompt_tokens == 6


async def test_token_ids_are_taken_as_they_are() -> None:
    block, _ = open_fake_engine(lambda draw: EOS if draw.generated else len(draw.prompt))
    async with block as engine:
        one = await engine.complete([5, 6], SamplingParams())
        many = await engine.complete([[5, 6], [7, 8, 9]], SamplingParams())
    assert one.choices[0].token_ids == (2, EOS)
    assert [choice.token_ids[0] for choice in many.choices] == [2, 3]


async def test_text_gets_the_models_bos_once() -> None:  # case double-bos
    seen: list[tuple[int, ...]] = []

    def script(draw: object) -> int:
        seen.append(draw.prompt)  # type: ignore[attr-defined]
        return EOS

    block, _ = open_fake_engine(script)
    async with block as engine:
        await engine.complete("a")
        await engine.complete("<|bos|>a")
    assert seen == [(BOS, ord("a"))] * 2


@pytest.mark.parametrize("stop", ["<end>", ("zzz", "<end>")])
async def test_a_stop_string_ends_a_choice_and_its_tokens_are_counted_to_the_match(stop: str) -> None:
    block, device = open_fake_engine(say("alpha<end>tail"))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(n=2, stop=stop))
        await trio.testing.wait_all_tasks_blocked()
        assert engine.statistics().scheduler.running == 0
    for choice in answer.choices:
        assert choice.text == "alpha"
        assert choice.reason == "stop"
        assert choice.usage.completion_tokens == len("alpha<end>") == len(choice.token_ids)
    # no more than the step that was under way when the match was seen
    assert sum(len(plan.rows.tokens) for plan in device.plans) <= 2 * (len("alpha<end>") + 1)


async def test_tokens_that_arrive_together_with_a_stop_string_are_not_counted_past_it() -> None:  # FAN-21
    block, _ = open_fake_engine(say("a" * 30 + "<end>" + "t" * 60))
    async with block as engine, engine.generate("go", SamplingParams(stop="<end>")) as generation:
        # a reader that comes late: what was drawn meanwhile comes in one message
        await trio.sleep(1)
        events = [event async for event in generation]
    ids = [token for event in events if isinstance(event, TextDelta) for token in event.token_ids]
    assert bytes(ids) == b"a" * 30 + b"<end>"
    assert isinstance(events[-1], ChoiceFinished)
    assert events[-1].usage.completion_tokens == 35


async def test_text_held_back_for_a_stop_string_comes_out_at_the_end() -> None:  # case stop-split-and-holdback
    block, _ = open_fake_engine(say("a tail"))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(stop="tail!!", max_tokens=6))
    assert (answer.choices[0].text, answer.choices[0].reason) == ("a tail", "length")


async def test_a_character_split_over_tokens_arrives_whole() -> None:  # case utf8-across-tokens
    block, _ = open_fake_engine(say_ids([*"世".encode(), 0xFF, ord("b"), 0xE4, 0xB8]))
    async with block as engine, engine.generate("go", SamplingParams(max_tokens=7)) as generation:
        texts = [event.text async for event in generation if isinstance(event, TextDelta) and event.text]
    assert "".join(texts) == "世\ufffdb\ufffd"


async def test_ignore_eos_goes_on_past_the_end_token() -> None:
    block, _ = open_fake_engine(say_ids([ord("a"), EOS, ord("b")]))
    async with block as engine:
        answer = await engine.complete("go", SamplingParams(ignore_eos=True, max_tokens=5))
    assert answer.choices[0].text == "ab"
    assert answer.choices[0].reason == "length"
    assert answer.choices[0].usage.completion_tokens == 5


async def test_the_token_that_ends_a_choice_is_counted_and_has_no_text() -> None:
    block, _ = open_fake_engine(say("ab"))
    async with block as engine:
        (choice,) = (await engine.complete("go")).choices
    assert choice.usage.completion_tokens == 3
    assert choice.token_ids == (ord("a"), ord("b"), EOS)
    assert choice.text == "ab"


async def test_zero_tokens_are_an_empty_answer_that_costs_no_step() -> None:  # case max-tokens-edges
    block, device = open_fake_engine(say("ab"))
    async with block as engine:
        answer = await engine.complete(["x", "y"], SamplingParams(n=2, max_tokens=0))
    assert [(choice.index, choice.text, choice.reason) for choice in answer.choices] == [
        (index, "", "length") for index in range(4)
    ]
    assert answer.prompt_tokens == 4
    assert device.plans == []


@pytest.mark.parametrize(
    ("seed", "seeds"), [(7, [7, 8, 9]), (-2, [-2, -1, 0]), (2**63 - 1, [2**63 - 1, -(2**63), 1 - 2**63])]
)
async def test_choice_j_of_a_seeded_request_reports_seed_plus_j(seed: int, seeds: list[int]) -> None:  # FAN-14, FAN-16
    block, device = open_fake_engine(say_ids([]))
    async with block as engine:
        answer = await engine.complete(["a", "b"], SamplingParams(n=3, seed=seed))
    assert [choice.seed for choice in answer.choices] == seeds * 2
    drawn = sorted({seed for plan in device.plans for seed in plan.rows.seeds})
    assert drawn == sorted(seed % 2**64 for seed in seeds)


@pytest.mark.parametrize("seed", [None, -1])
async def test_an_unseeded_request_gets_a_seed_that_replays_it(seed: int | None) -> None:  # FAN-14, FAN-16
    options = attrs.evolve(FAKE_OPTIONS, pick_seed=lambda: 41)
    block, _ = open_fake_engine(say_ids([]), options=options)
    async with block as engine:
        answer = await engine.complete("a", SamplingParams(n=2, seed=seed))
    assert [choice.seed for choice in answer.choices] == [41, 42]


async def test_picked_seeds_differ_and_are_exact_in_a_double() -> None:
    options = attrs.evolve(FAKE_OPTIONS, pick_seed=type(FAKE_OPTIONS)().pick_seed)
    block, _ = open_fake_engine(say_ids([]), options=options)
    async with block as engine:
        seeds = {choice.seed for _ in range(5) for choice in (await engine.complete("a")).choices}
    assert len(seeds) == 5
    assert all(int(float(seed)) == seed for seed in seeds)


async def test_a_stream_folds_to_the_answer_that_is_not_streamed() -> None:  # FAN-22
    block, _ = open_fake_engine(count_for_ever)
    params = SamplingParams(n=3, seed=5, max_tokens=30, stop="77")
    events: list[Event] = []
    async with block as engine:
        async with engine.generate("go", params) as generation:
            async for event in generation:
                events.append(event)  # noqa: PERF401
        answer = await engine.complete("go", params)
    for choice in answer.choices:
        deltas = [event for event in events if isinstance(event, TextDelta) and event.index == choice.index]
        assert "".join(delta.text for delta in deltas) == choice.text
        assert sum((delta.token_ids for delta in deltas), ()) == choice.token_ids


@pytest.mark.parametrize(
    ("prompt", "params", "param", "message"),
    [
        ("x", SamplingParams(n=129), "n", "n must be at most 128, got 129."),  # FAN-2
        ("x", SamplingParams(n=3, temperature=0), "n", "n must be 1 when using greedy sampling, got 3."),  # FAN-6
        (["x"] * 9, SamplingParams(n=128), "prompt", "at most 1024 choices, got 9 prompts times n = 128"),  # FAN-3
        ([], SamplingParams(), "prompt", "must not be empty"),
        ([[]], SamplingParams(), "prompt", "at least one token"),
        (["a", []], SamplingParams(), "prompt.1", "at least one token"),
        ([1, -1], SamplingParams(), "prompt", "out of the vocabulary"),
        ([1, 259], SamplingParams(), "prompt", "out of the vocabulary (0 to 258)"),
        ([1, 2**70], SamplingParams(), "prompt", "out of the vocabulary"),
        ([1, True], SamplingParams(), "prompt", "True is neither"),
        ([1, 2.0], SamplingParams(), "prompt", "2.0 is neither"),
        ("\ud800", SamplingParams(), "prompt", "not valid Unicode"),
        ("x" * 90, SamplingParams(max_tokens=10), "max_tokens", "maximum context length is 100 tokens"),
    ],
)
async def test_a_bad_request_is_refused_before_any_step(
    prompt: object, params: SamplingParams, param: str, message: str
) -> None:
    block, device = open_fake_engine(context_length=100)
    async with block as engine:
        with pytest.raises(ParamError) as caught:
            async with engine.generate(prompt, params):  # type: ignore[arg-type]
                pass
        assert engine.statistics().requests == 0
    assert caught.value.param == param
    assert message in str(caught.value)
    assert device.plans == []


@pytest.mark.parametrize("length", [100, 101, 100_000])
async def test_a_prompt_that_fills_the_context_is_refused(length: int) -> None:  # case max-tokens-edges
    block, device = open_fake_engine(context_length=100)
    async with block as engine:
        with pytest.raises(ContextLengthError, match="maximum context length is 100 tokens"):
            await engine.complete([1] * length)
        with pytest.raises(ContextLengthError, match="maximum context length is 100 tokens"):
            await engine.complete("y" * length)
    assert device.plans == []


async def test_a_prompt_one_short_of_the_context_gets_one_token() -> None:  # case max-tokens-edges
    block, _ = open_fake_engine(context_length=100)
    async with block as engine:
        answer = await engine.complete([1] * 99, SamplingParams(n=2), default_max_tokens=16)
    assert [(choice.usage.completion_tokens, choice.reason) for choice in answer.choices] == [(1, "length")] * 2


async def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it() -> None:
    class NoEncoder(ByteTokenizer):
        def encode(self, text: str, *, add_special: bool) -> list[int]:
            raise AssertionError("was tokenized")

    block, _ = open_fake_engine(tokenizer=NoEncoder(), context_length=100)
    async with block as engine:
        with pytest.raises(ContextLengthError, match=r"has at least \d+ tokens"):
            await engine.complete("x" * 10_000)


async def test_without_max_tokens_a_choice_runs_to_the_end_of_the_context() -> None:
    block, _ = open_fake_engine(count_for_ever, context_length=100)
    async with block as engine:
        answer = await engine.complete([1] * 60, SamplingParams(n=2))
    assert [choice.usage.completion_tokens for choice in answer.choices] == [40, 40]


async def test_limits_are_the_servers_to_set() -> None:
    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(max_n=2, max_choices=3))
    block, _ = open_fake_engine(say("a"), options=options)
    async with block as engine:
        with pytest.raises(ParamError, match="at most 2"):
            engine.generate("x", SamplingParams(n=3))
        with pytest.raises(ParamError, match="at most 3 choices"):
            engine.generate(["x", "y"], SamplingParams(n=2))


async def test_the_id_of_a_running_request_cannot_be_used_twice() -> None:
    block, _ = open_fake_engine(count_for_ever)
    async with block as engine:
        async with engine.generate("x", request_id="mine"):
            with pytest.raises(ParamError, match="'mine' is running"):
                async with engine.generate("x", request_id="mine"):
                    pass
            assert engine.statistics().requests == 1
        async with engine.generate("x", request_id="mine"):
            pass


async def test_chat_is_rendered_by_the_template_and_needs_one() -> None:
    block, _ = open_fake_engine(say("a"))
    async with block as engine:
        ids = await engine.encode_chat([{"role": "user", "content": "hi"}])
        assert engine.tokenizer.decode(ids, skip_special=False) == "<|turn|>user: hi\n<|turn|>assistant: "
    block, _ = open_fake_engine(say("a"), template=None)
    async with block as engine:
        with pytest.raises(ParamError, match="no chat template"):
            await engine.encode_chat([{"role": "user", "content": "hi"}])


async def test_equal_prompts_without_a_seed_get_different_seeds() -> None:
    picked = iter([100, 200])
    options = attrs.evolve(FAKE_OPTIONS, pick_seed=lambda: next(picked))
    block, _ = open_fake_engine(say_ids([]), options=options)
    async with block as engine:
        answer = await engine.complete(["same", "same"], SamplingParams(n=2))
    assert [choice.seed for choice in answer.choices] == [100, 101, 200, 201]


async def test_an_id_between_the_vocabulary_and_the_width_of_the_logits_is_refused() -> None:  # case oov-token-ids
    block, device = open_fake_engine()
    device.info = attrs.evolve(device.info, vocab_size=320)
    async with block as engine:
        with pytest.raises(ParamError, match=r"Token id 259 is out of the vocabulary \(0 to 258\)"):
            await engine.complete([1, 259])


async def test_an_answer_has_the_scores_that_were_asked_for() -> None:
    block, _ = open_fake_engine(say("ab"))
    params = SamplingParams(n=2, seed=0, logprobs=1, prompt_logprobs=0)
    async with block as engine:
        answer = await engine.complete([[1, 2, 3], [4, 5]], params)
        plain = await engine.complete("x")
    assert [[score.token_id for score in choice.logprobs] for choice in answer.choices] == [[97, 98, EOS]] * 4
    assert [(scored.prompt, scored.token_ids) for scored in answer.scored_prompts] == [(0, (1, 2, 3)), (1, (4, 5))]
    assert (plain.choices[0].logprobs, plain.scored_prompts) == ((), ())
