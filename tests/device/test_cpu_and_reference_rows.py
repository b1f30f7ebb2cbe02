"""What rows can ask for beside a draw, on both devices: changes of the logits, likeliest tokens, scores, hidden states."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trioserve_kernels.cpu.library import levels, library_path
from trioserve_kernels.reference.sampler import sample

from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.errors import DeviceError
from trioserve.model.loaded import Float32Array
from trioserve.model.spec import DecoderSpec
from trioserve.step import StepPlan, StepResult
from trioserve.testing.driver import Row, SetMatcher, Span, make_plan
from trioserve.testing.weights import RandomWeights, random_model

pytestmark = pytest.mark.skipif(library_path() is None, reason="there are no native kernels")

AnyDevice = CpuDevice | ReferenceDevice
OpenAny = Callable[[DecoderSpec], AnyDevice]
SomeTokens = Callable[[int, int], list[int]]
Logits = npt.NDArray[np.float32]
VOCAB = 97
PROMPT = [(11 * t + 3) % VOCAB for t in range(21)]


@pytest.fixture(params=["cpu", "reference"])
def device(
    request: pytest.FixtureRequest,
    tiny_native: DecoderSpec,
    open_cpu_device: Callable[..., CpuDevice],
    open_device: Callable[..., ReferenceDevice],
) -> AnyDevice:
    if request.param == "cpu":
        return open_cpu_device(tiny_native)
    return open_device(tiny_native, page_size=16)


def run_rows(device: AnyDevice, rows: Sequence[Row]) -> tuple[StepResult, Logits]:
    """The result of rows after PROMPT, and the logits that they are drawn from."""
    plan = make_plan([Span(tokens=PROMPT, pages=range(2), rows=rows)])
    return device.run(plan), device.logits(plan)[len(PROMPT) - 1]


def exactly_changed(logits: Logits, row: Row) -> npt.NDArray[np.float64]:
    """The changes of a row as their definitions say them, in float64."""
    exact = [float(logit) for logit in logits]
    for token_id, count in Counter(row.generated).items():
        exact[token_id] -= row.presence_penalty + row.frequency_penalty * count
    for token_id in set(row.generated) | set(row.prompt):
        exact[token_id] *= 1 / row.repetition_penalty if exact[token_id] > 0 else row.repetition_penalty
    for token_id, bias in row.bias.items():
        exact[token_id] += bias
    if isinstance(row.matcher, SetMatcher):
        exact = [x if token_id in row.matcher.allowed else -math.inf for token_id, x in enumerate(exact)]
    return np.array(exact)


def exact_logprobs(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    return np.asarray(wide - wide.max() - math.log(math.fsum(np.exp(wide - wide.max()))))


def order(logits: Logits) -> list[int]:
    """All tokens, the likeliest first."""
    return sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))


def test_a_token_that_was_generated_is_penalised_for_being_there_and_for_how_often(device: AnyDevice) -> None:
    _, logits = run_rows(device, [Row()])
    first, second, third = order(logits)[:3]
    gap = float(logits[first] - logits[second])
    rows = [
        Row(generated=[first], presence_penalty=gap * 0.9),
        Row(generated=[first], presence_penalty=gap * 1.1),
        Row(generated=[first] * 3, presence_penalty=gap * 0.9),
        Row(generated=[first] * 3, frequency_penalty=gap * 0.3),
        Row(generated=[first, third, first, third, first], frequency_penalty=gap * 0.4),
        Row(generated=[second], presence_penalty=-gap * 1.1),
        # a prompt counts for neither
        Row(prompt=[first] * 9, presence_penalty=gap * 1.1, frequency_penalty=gap * 1.1),
    ]
    result, _ = run_rows(device, rows)
    assert list(result.token_ids) == [first, second, first, first, second, second, first]


def test_a_token_of_the_prompt_or_the_choice_is_penalised_once_for_repetition(device: AnyDevice) -> None:
    _, logits = run_rows(device, [Row()])
    first, second, *_ = order(logits)
    ratio = float(logits[first] / logits[second])
    assert ratio > 1
    enough, not_enough = ratio * 1.05, math.sqrt(ratio)
    rows = [
        Row(prompt=[first], repetition_penalty=enough),
        Row(generated=[first], repetition_penalty=enough),
        Row(prompt=[first, first], generated=[first, first], repetition_penalty=not_enough),
        Row(prompt=[first, second], repetition_penalty=enough),
        Row(prompt=[second], repetition_penalty=1 / enough),
    ]
    result, _ = run_rows(device, rows)
    assert list(result.token_ids) == [second, second, first, first, second]


def test_a_logit_below_zero_is_multiplied_by_the_repetition_penalty(device: AnyDevice) -> None:
    _, logits = run_rows(device, [Row()])
    negative = [token_id for token_id in order(logits) if logits[token_id] < 0][:2]
    only = SetMatcher(negative)
    penalty = 1.1 * float(logits[negative[1]] / logits[negative[0]])
    rows = [Row(matcher=only), Row(matcher=only, prompt=[negative[0]], repetition_penalty=penalty)]
    result, _ = run_rows(device, rows)
    assert list(result.token_ids) == negative


@pytest.mark.parametrize("penalty", [1e-300, 5e-324])
def test_a_repetition_penalty_of_next_to_nothing_makes_the_repeated_tokens_the_likeliest(
    device: AnyDevice, penalty: float
) -> None:
    _, logits = run_rows(device, [Row()])
    positive = [token_id for token_id in range(VOCAB) if logits[token_id] > 0][-3:]
    rows = [Row(prompt=range(VOCAB), repetition_penalty=penalty), Row(prompt=positive, repetition_penalty=penalty)]
    rows += [Row(prompt=positive, repetition_penalty=penalty, temperature=1.0, seed=seed) for seed in range(40)]
    tokens = list(run_rows(device, rows)[0].token_ids)
    assert tokens[1] == positive[0]
    assert set(tokens[2:]) == set(positive)


def test_a_bias_is_added_and_one_of_minus_infinity_excludes(device: AnyDevice) -> None:
    _, logits = run_rows(device, [Row()])
    first, second, third, *_, last = order(logits)
    rows = [
        Row(bias={last: 100.0}),
        Row(bias={last: 100.0, first: -math.inf, third: 101.0}),
        Row(bias={first: -math.inf, second: -math.inf}),
        *(Row(bias={first: -math.inf}, temperature=5.0, seed=seed) for seed in range(60)),
    ]
    tokens = list(run_rows(device, rows)[0].token_ids)
    assert tokens[:3] == [last, third, third]
    assert first not in tokens[3:]
    assert len(set(tokens[3:])) > 10


def test_only_what_a_matcher_allows_is_drawn(device: AnyDevice) -> None:
    matchers = [SetMatcher(allowed) for allowed in ({96}, {0, 31, 32, 64, 95}, range(VOCAB))]
    rows = [Row(matcher=m, temperature=2.0, seed=seed) for m in matchers for seed in range(50)]
    result, logits = run_rows(device, rows)
    assert set(result.token_ids[:50]) == {96}
    assert set(result.token_ids[50:100]) == {0, 31, 32, 64, 95}
    assert list(result.token_ids[100:]) == [sample(logits, position=21, **row.drawn_with) for row in rows[100:]]


def test_rows_with_the_same_matcher_ask_it_once(device: AnyDevice) -> None:
    shared, own = SetMatcher({1, 2}), SetMatcher({3})
    rows = [Row(matcher=shared), Row(), Row(matcher=own), Row(matcher=shared)]
    plan = make_plan([Span(tokens=PROMPT, pages=range(2), rows=rows)])
    result = device.run(plan)
    assert (shared.asked, own.asked) == (1, 1)
    assert result.token_ids[2] == 3
    assert result.token_ids[0] == result.token_ids[3]


NOTHING_LEFT = {
    "a mask without a token": Row(matcher=SetMatcher(())),
    "a bias against all that a mask allows": Row(matcher=SetMatcher({4, 5}), bias={4: -math.inf, 5: -math.inf}),
    "a bias against all": Row(bias=dict.fromkeys(range(VOCAB), -math.inf)),
    "a bias that is not a number": Row(bias={7: math.nan}),
    "a bias that is not finite": Row(bias={7: math.inf}),
}


@pytest.mark.parametrize("fault", NOTHING_LEFT)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_is_left_has_no_token_and_its_neighbours_are_fine(
    device: AnyDevice, fault: str, temperature: float
) -> None:
    healthy = Row(seed=4, temperature=1.0, logprobs=1)
    row = attrs.evolve(NOTHING_LEFT[fault], temperature=temperature, logprobs=3)
    alone, _ = run_rows(device, [healthy])
    result, logits = run_rows(device, [healthy, row, healthy])
    assert list(result.token_ids) == [alone.token_ids[0], -1, alone.token_ids[0]]
    assert list(result.logprobs) == [alone.logprobs[0], -math.inf, alone.logprobs[0]]
    assert list(result.top_ids) == order(logits)[:2]


def test_the_likeliest_tokens_are_told_as_the_model_sees_them(device: AnyDevice) -> None:
    # FAN-32
    rows = [
        Row(logprobs=4),
        Row(),
        Row(logprobs=1),
        Row(logprobs=21, matcher=SetMatcher({8}), bias={8: 50.0}, temperature=0.1, top_k=1),
        Row(logprobs=VOCAB + 1),
        Row(logprobs=VOCAB + 50),
    ]
    result, logits = run_rows(device, rows)
    counts = [3, 0, 0, 20, VOCAB, VOCAB]
    likeliest, exact = order(logits), exact_logprobs(logits)
    expected = [token_id for count in counts for token_id in likeliest[:count]]
    assert result.top_ids.typecode == "i"
    assert result.top_logprobs.typecode == "d"
    assert list(result.top_ids) == expected
    assert list(result.top_logprobs) == pytest.approx(exact[expected].tolist(), abs=2e-6)
    assert result.token_ids[3] == 8
    assert math.isnan(result.logprobs[1])
    assert result.logprobs[3] == pytest.approx(exact[8], abs=2e-6)


def test_a_row_with_a_target_is_scored_and_nothing_is_drawn(device: AnyDevice) -> None:
    rows = [
        Row(target=5, logprobs=3),
        Row(temperature=1.0, seed=3),
        Row(target=96, logprobs=1, bias={96: -math.inf}),
        Row(target=0),
    ]
    result, logits = run_rows(device, rows)
    exact = exact_logprobs(logits)
    drawn = sample(logits, position=21, **rows[1].drawn_with)
    assert list(result.token_ids) == [5, drawn, 96, 0]
    assert result.logprobs[0] == pytest.approx(exact[5], abs=2e-6)
    assert result.logprobs[2] == pytest.approx(exact[96], abs=2e-6)
    assert math.isnan(result.logprobs[1])
    assert math.isnan(result.logprobs[3])
    assert list(result.top_ids) == order(logits)[:2]


def test_a_prompt_is_scored_token_by_token(device: AnyDevice) -> None:
    plan = make_plan([Span(tokens=PROMPT, pages=range(2), rows=[Row(target=token, logprobs=1) for token in PROMPT])])
    plan.rows.tokens[:] = array("i", range(len(PROMPT)))
    result, logits = device.run(plan), device.logits(plan)
    assert list(result.token_ids) == PROMPT
    assert list(result.logprobs) == pytest.approx([exact_logprobs(logits[t])[PROMPT[t]] for t in range(21)], abs=2e-6)


def test_hidden_states_are_what_the_head_makes_logits_of(device: AnyDevice, tiny_native: DecoderSpec) -> None:
    spans = [
        Span(tokens=PROMPT[:4], pages=[3], hidden=[3]),
        Span(tokens=[9], pages=[4]),
        Span(tokens=PROMPT, pages=range(2), rows=[Row()], hidden=[0, 7, 20]),
    ]
    plan = make_plan(spans)
    result = device.run(plan)
    assert device.info.embedding_dim == tiny_native.embedding_dim
    assert [(state.format, state.shape) for state in result.hidden] == [("f", (48,))] * 4
    head = RandomWeights(tiny_native).float32("head").astype(np.float64)
    expected = device.logits(plan)[25]
    found = head @ np.asarray(result.hidden[3])
    # the CPU device rounds it to multiples of 1/127 of its largest number before the product
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert not device.run(make_plan([Span(tokens=[1], pages=[0], rows=[Row()])])).hidden


def test_hidden_states_are_the_same_whatever_stands_beside_them(device: AnyDevice) -> None:
    # FAN-15
    (whole,) = device.run(make_plan([Span(tokens=PROMPT, pages=range(2), hidden=[20])])).hidden
    device.run(make_plan([Span(tokens=PROMPT[:13], pages=[5])]))
    spans = [
        Span(tokens=PROMPT[:15], pages=[8], hidden=range(15)),
        Span(tokens=PROMPT[13:], start=13, pages=[5, 6], hidden=[2, 7], rows=[Row(bias={1: 2.0})]),
    ]
    states = device.run(make_plan(spans)).hidden
    assert len(states) == 17
    assert bytes(states[-1]) == bytes(whole)


def test_a_plan_may_want_hidden_states_only(device: AnyDevice) -> None:
    result = device.run(make_plan([Span(tokens=PROMPT, pages=range(2), hidden=[20])]))
    assert not result.token_ids
    assert np.isfinite(np.asarray(result.hidden[0])).all()


def test_a_hidden_state_that_is_not_finite_ends_the_step(
    tiny_native: DecoderSpec, open_cpu_device: Callable[..., CpuDevice]
) -> None:
    class Broken(RandomWeights):
        def float32(self, name: str) -> Float32Array:
            values = super().float32(name)
            if name == "final_norm":
                values[3] = np.inf
            return values

    model = attrs.evolve(random_model(tiny_native), weights=Broken(tiny_native))
    plan = make_plan([Span(tokens=[1, 2], pages=[0], hidden=[1])], number=6)
    with pytest.raises(DeviceError, match="Step 6 failed: a hidden state is not finite"):
        open_cpu_device(model).run(plan)
    with pytest.raises(FloatingPointError, match="Step 6: the hidden states at position 1 are not finite"):
        ReferenceDevice.load(model, page_size=16, page_count=4).run(plan)


def bad_plan(name: str, values: Sequence[float]) -> StepPlan:
    plan = make_plan(
        [
            Span(tokens=[1, 2], pages=[0], rows=[Row()], hidden=[0]),
            Span(tokens=[3], pages=[1], rows=[Row(generated=[4], prompt=[5], bias={6: 1.0}, matcher=SetMatcher({7}))]),
        ]
    )
    owner = next(owner for owner in (plan.rows.changes, plan.rows, plan) if hasattr(owner, name))
    object.__setattr__(owner, name, array("i", values))
    return plan


BAD_IDS: list[tuple[str, list[int]]] = [
    ("generated", [VOCAB]),
    ("generated", [-1]),
    ("prompts", [VOCAB]),
    ("prompts", [-(2**31)]),
    ("bias_ids", [VOCAB]),
    ("bias_ids", [-1]),
    ("targets", [-1, VOCAB]),
    ("targets", [-2, 1]),
    ("hidden", [3]),
]


@pytest.mark.parametrize(("name", "values"), BAD_IDS, ids=str)
def test_an_id_that_is_not_in_the_vocabulary_is_noticed(device: AnyDevice, name: str, values: list[int]) -> None:
    assert len(device.run(bad_plan("shared", [])).token_ids) == 2
    with pytest.raises((DeviceError, IndexError), match=r"out of range|out of bounds|not in the vocabulary"):
        device.run(bad_plan(name, values))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rows", [2]),
        ("rows", [-1]),
        ("generated_starts", [0, 2]),
        ("generated_starts", [1, 1]),
        ("prompt_starts", [0, 0]),
        ("bias_starts", [0, -1]),
        ("hidden", [-1]),
    ],
    ids=str,
)
def test_changes_that_no_scheduler_makes_are_refused_by_the_kernels(
    tiny_native: DecoderSpec, open_cpu_device: Callable[..., CpuDevice], name: str, values: list[int]
) -> None:
    with pytest.raises(DeviceError, match="an id or a position in the step is out of range"):
        open_cpu_device(tiny_native).run(bad_plan(name, values))


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
SETS = st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


def matchers() -> st.SearchStrategy[SetMatcher | None]:
    return st.none() | SETS.map(SetMatcher)


ROWS = st.builds(
    Row,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    logprobs=st.sampled_from([0, 0, 1, 3, 21]),
    target=st.sampled_from([-1, -1, -1, 17]),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.sampled_from([1.0, 0.3, 1.3, 10.0]),
    generated=TOKENS,
    prompt=TOKENS,
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-math.inf, -100.0, 3.5, 100.0]), max_size=6),
    matcher=matchers(),
)


@attrs.frozen
class Told:
    """All that is said about one row; equal only if all bits are."""

    token_id: int
    logprob: bytes
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def told(result: StepResult, rows: Sequence[Row]) -> list[Told]:
    logprobs = result.logprobs or array("d", [math.nan] * len(rows))
    found, first = [], 0
    for r, row in enumerate(rows):
        end = first + max(0, row.logprobs - 1)
        top_ids, top_logprobs = tuple(result.top_ids[first:end]), tuple(result.top_logprobs[first:end])
        found.append(Told(result.token_ids[r], array("d", [logprobs[r]]).tobytes(), top_ids, top_logprobs))
        first = end
    assert first == len(result.top_ids) == len(result.top_logprobs)
    return found


def check_row(row: Row, told: Told, logits: Logits) -> None:
    """The row's result against the definitions, as far as rounding leaves no doubt."""
    exact, logprobs = exactly_changed(logits, row), exact_logprobs(logits)
    if row.target >= 0:
        assert told.token_id == row.target
    elif not np.isfinite(exact.max()):
        assert told.token_id == -1
    elif row.temperature == 0.0:
        assert exact[told.token_id] == pytest.approx(exact.max(), rel=1e-6)
    else:
        assert exact[told.token_id] > -math.inf
        drawn = sample(exact.astype(np.float32), position=21, **row.drawn_with)
        assert told.token_id == drawn
    if row.logprobs:
        (logprob,) = array("d", told.logprob)
        assert logprob == pytest.approx(logprobs[told.token_id] if told.token_id >= 0 else -math.inf, abs=2e-6)
    assert list(told.top_ids) == order(logits)[: max(0, row.logprobs - 1)]
    assert list(told.top_logprobs) == pytest.approx(logprobs[list(told.top_ids)].tolist(), abs=2e-6)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, min_size=1, max_size=12), strangers=st.integers(0, 3))
def test_any_mixture_of_rows_is_what_each_would_be_alone_and_what_the_definitions_say(
    device: AnyDevice, rows: list[Row], strangers: int
) -> None:
    # FAN-15
    result, logits = run_rows(device, rows)
    found = told(result, rows)
    for row, each in zip(rows, found, strict=True):
        check_row(row, each, logits)
    mates = [Span(tokens=[i], pages=[10 + i], rows=[Row(bias={i: 9.0}, logprobs=3)]) for i in range(strangers)]
    mixed = make_plan([*mates, Span(tokens=PROMPT, pages=range(2), rows=rows[::-1])])
    beside = told(device.run(mixed), [*[Row(logprobs=3)] * strangers, *rows[::-1]])
    assert beside[strangers:] == found[::-1]
    assert told(run_rows(device, rows[:1])[0], rows[:1]) == found[:1]


def random_rows(seed: int, count: int) -> list[Row]:
    random = np.random.default_rng(seed)

    def some(most: int) -> list[int]:
        return [int(token) for token in random.integers(0, VOCAB, random.integers(most))]

    shared = [SetMatcher(set(some(60)) | {1}) for _ in range(3)]
    return [
        Row(
            seed=int(random.integers(2**63)),
            temperature=float(random.choice([0.0, 0.8, 2.0])),
            top_p=float(random.choice([1.0, 0.9])),
            logprobs=int(random.choice([0, 1, 6])),
            target=int(random.choice([-1, -1, -1, 40])),
            presence_penalty=float(random.normal()),
            frequency_penalty=float(random.normal()),
            repetition_penalty=float(random.choice([1.0, 1.2])),
            generated=some(30),
            prompt=some(30),
            bias={token: float(random.choice([-np.inf, 4.0])) for token in some(5)},
            matcher=[*shared, None][random.integers(4)],
        )
        if random.random() < 0.8
        else Row(seed=int(random.integers(2**63)), temperature=1.0)
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_levels_and_threads_change_no_row(
    tiny_native: DecoderSpec, open_cpu_device: Callable[..., CpuDevice], some_tokens: SomeTokens, seed: int
) -> None:
    # FAN-15; more rows than logits are computed at a time
    rows = random_rows(seed, 150)
    spans = [
        Span(tokens=some_tokens(i, 3), pages=[i % 60], rows=rows[2 * i : 2 * i + 2], hidden=[1] if i % 9 == 0 else [])
        for i in range(75)
    ]
    found = []
    for level in levels():
        for threads in (1, 3):
            result = open_cpu_device(tiny_native, level=level, threads=threads).run(make_plan(spans))
            found.append((told(result, rows), [bytes(state) for state in result.hidden]))
    assert all(each == found[0] for each in found)
