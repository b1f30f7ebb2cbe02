"""The reference device as an abc.Device: loading, steps, errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import torch
from trioserve_kernels.reference.sampler import log_probability, sample

from trioserve.abc import Device
from trioserve.device.decoder import TILE, Decoder, Tile
from trioserve.device.pages import KVPages
from trioserve.device.reference import ReferenceDevice
from trioserve.errors import DeviceError, ParamError
from trioserve.model.loaded import Float32Array
from trioserve.model.spec import DecoderSpec
from trioserve.testing.dense import dense_logits
from trioserve.testing.driver import Row, Span, generate_greedily, make_plan
from trioserve.testing.weights import RandomWeights, random_model

OpenDevice = Callable[..., ReferenceDevice]
SomeTokens = Callable[[int, int], list[int]]


def test_it_is_a_device_and_says_what_it_holds(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    device = open_device(tiny, page_size=8, page_count=5)
    assert isinstance(device, Device)
    assert device.info.name == "reference (float32, cpu)"
    assert (device.info.vocab_size, device.info.context_length) == (97, 128)
    assert (device.info.page_size, device.info.page_count) == (8, 5)
    assert repr(device) == "<ReferenceDevice reference (float32, cpu), ready>"


def test_a_shorter_context_can_be_asked_for(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    assert open_device(tiny, context_length=100).info.context_length == 100


def test_a_context_longer_than_the_models_is_refused_before_loading(tiny: DecoderSpec) -> None:
    told: list[str] = []
    with pytest.raises(ParamError, match="context_length must be at most 128 for this model, got 129") as caught:
        ReferenceDevice.load(
            random_model(tiny),
            page_size=4,
            page_count=4,
            context_length=129,
            progress=lambda stage, done, total: told.append(stage),
        )
    assert caught.value.param == "context_length"
    assert told == []


def test_loading_tells_its_progress_in_bytes(tiny: DecoderSpec) -> None:
    told: list[tuple[str, int, int | None]] = []
    ReferenceDevice.load(random_model(tiny), page_size=4, page_count=4, progress=lambda *args: told.append(args))
    total = 4 * sum(int(np.prod(shape)) for shape in tiny.weight_shapes().values())
    assert told[0] == ("loading", 0, total)
    assert told[-1] == ("loading", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_the_weights_may_be_changed_or_closed_after_loading(tiny: DecoderSpec) -> None:
    @attrs.define(eq=False)
    class Remembering(RandomWeights):
        given: list[Float32Array] = attrs.field(factory=list)

        def float32(self, name: str) -> Float32Array:
            self.given.append(super().float32(name))
            return self.given[-1]

    weights = Remembering(tiny)
    model = attrs.evolve(random_model(tiny), weights=weights)
    device = ReferenceDevice.load(model, page_size=4, page_count=4)
    for array in weights.given:
        array[...] = np.nan
    device.run(make_plan([Span(tokens=[1, 2], pages=[0], rows=[Row()])]))


def test_a_mixed_step_computes_prefills_and_decodes(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    a, b, c = some_tokens(1, 20), some_tokens(2, 9), some_tokens(3, 33)
    device = open_device(tiny)
    first = [Span(tokens=a[:-1], pages=range(5)), Span(tokens=c[:30], pages=range(10, 19))]
    assert device.logits(make_plan(first)) == {}
    second = [
        Span(tokens=a[-1:], start=19, pages=range(5), rows=[Row()]),
        Span(tokens=b, pages=range(20, 23), rows=[Row()]),
        Span(tokens=c[30:], start=30, pages=range(10, 19), rows=[Row()]),
    ]
    logits = device.logits(make_plan(second, number=1))
    assert list(logits) == [0, 9, 12]
    for tokens, found in zip((a, b, c), logits.values(), strict=True):
        assert np.abs(found - dense_logits(tiny, RandomWeights(tiny), tokens)[-1]).max() < 2e-5


def test_each_row_is_drawn_with_its_own_parameters(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    # FAN-11: several rows draw from one token's logits; FAN-33
    rows = [
        Row(),
        Row(seed=2**64 - 1, temperature=1.0),
        Row(seed=3, temperature=1.5, top_p=0.5),
        Row(seed=4, temperature=2.0, top_k=2),
        Row(seed=5, temperature=2.0, min_p=0.6),
        *(Row(seed=seed, temperature=1.0) for seed in range(100, 120)),
    ]
    tokens = some_tokens(4, 13)
    span = Span(tokens=tokens, pages=range(4), rows=rows)
    device = open_device(tiny)
    result = device.run(make_plan([span], number=77))
    logits = dict(device.logits(make_plan([span])))[12]
    assert result.number == 77
    assert result.token_ids.typecode == "i"
    assert list(result.token_ids) == [sample(logits, position=13, **row.drawn_with) for row in rows]
    assert result.token_ids[0] == int(logits.argmax())
    assert len(set(result.token_ids)) > 5
    assert not result.logprobs


def test_a_row_that_asks_is_told_the_log_probability_of_its_token_before_temperature_and_filters(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    # FAN-32
    rows = [
        Row(logprobs=1),
        Row(seed=1, temperature=1.0),
        Row(seed=2, temperature=2.0, top_k=3, logprobs=1),
        Row(seed=3, temperature=0.1, min_p=0.5, logprobs=1),
    ]
    span = Span(tokens=some_tokens(4, 13), pages=range(4), rows=rows)
    device = open_device(tiny)
    result = device.run(make_plan([span]))
    logits = torch.from_numpy(device.logits(make_plan([span]))[12])
    exact = torch.log_softmax(logits.double(), dim=0)
    assert result.logprobs.typecode == "d"
    assert math.isnan(result.logprobs[1])
    for r in (0, 2, 3):
        token = result.token_ids[r]
        assert result.logprobs[r] == log_probability(logits.numpy(), token)
        assert result.logprobs[r] == pytest.approx(float(exact[token]), abs=1e-12)


def test_copies_are_made_first_and_in_order(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    prompt = some_tokens(6, 6)
    device = open_device(tiny)
    expected = device.logits(make_plan([Span(tokens=[*prompt, 9], pages=[0, 1], rows=[Row()])]))[6]
    # page 1 goes to 3 by way of 2, and is overwritten in the same step
    spans = [
        Span(tokens=[50], start=6, pages=[0, 1]),
        Span(tokens=[9], start=6, pages=[0, 3], rows=[Row()]),
    ]
    logits = device.logits(make_plan(spans, copies=[(1, 2), (2, 3)]))
    assert np.array_equal(logits[1], expected)


def test_a_copy_is_not_touched_by_its_source(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    prompt = some_tokens(6, 6)
    device = open_device(tiny)
    device.run(make_plan([Span(tokens=prompt, pages=[0, 1])]))
    expected = device.logits(make_plan([Span(tokens=[9], start=6, pages=[0, 1], rows=[Row()])]))[0]
    device.run(make_plan([], copies=[(1, 2)]))
    device.run(make_plan([Span(tokens=[1, 2, 3, 4], start=4, pages=[0, 1])]))
    logits = device.logits(make_plan([Span(tokens=[9], start=6, pages=[0, 2], rows=[Row()])]))
    assert np.array_equal(logits[0], expected)


def test_an_empty_step_draws_nothing(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    assert list(open_device(tiny).run(make_plan([])).token_ids) == []


def test_it_generates_what_the_dense_decoder_would(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    prompts = [some_tokens(seed, 3 + 5 * seed) for seed in range(4)]
    weights = RandomWeights(tiny)
    for prompt, answer in zip(prompts, generate_greedily(open_device(tiny), prompts, 6), strict=True):
        logits = dense_logits(tiny, weights, [*prompt, *answer])
        assert answer == logits[len(prompt) - 1 : -1].argmax(axis=1).tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_logits_that_are_not_finite_end_the_step(tiny: DecoderSpec, value: float) -> None:
    class Broken(RandomWeights):
        def float32(self, name: str) -> Float32Array:
            array = super().float32(name)
            if name == "head":
                array[5] = value
            return array

    model = attrs.evolve(random_model(tiny), weights=Broken(tiny))
    device = ReferenceDevice.load(model, page_size=4, page_count=4)
    spans = [Span(tokens=[1], pages=[1]), Span(tokens=[1, 2, 3], pages=[0], rows=[Row()])]
    with pytest.raises(FloatingPointError, match="Step 8: the logits at position 2 are not finite"):
        device.run(make_plan(spans, number=8))


def test_a_broken_sequence_does_not_reach_its_neighbours(
    tiny: DecoderSpec, open_device: OpenDevice, some_tokens: SomeTokens
) -> None:
    class Broken(RandomWeights):
        def float32(self, name: str) -> Float32Array:
            array = super().float32(name)
            if name == "embedding":
                array[96] = np.nan
            return array

    device = ReferenceDevice.load(attrs.evolve(random_model(tiny), weights=Broken(tiny)), page_size=4, page_count=16)
    prompt = [token % 96 for token in some_tokens(1, 5)]
    healthy = Span(tokens=prompt, pages=[0, 1], rows=[Row()])
    expected = open_device(tiny).logits(make_plan([healthy]))[4]
    assert np.array_equal(device.logits(make_plan([healthy, Span(tokens=[96, 96], pages=[2])]))[4], expected)
    # nor does it stay behind in a page
    assert np.array_equal(device.logits(make_plan([attrs.evolve(healthy, pages=[2, 3])]))[4], expected)


@pytest.mark.parametrize(
    ("span", "fault"),
    [
        (Span(tokens=[1] * 5, pages=[0]), "past the end of its pages"),
        (Span(tokens=[1], start=128, pages=range(33)), "past the end of the context"),
        (Span(tokens=[], pages=[0]), "span 0 is empty"),
    ],
)
def test_a_plan_that_no_scheduler_makes_is_noticed(
    tiny: DecoderSpec, open_device: OpenDevice, span: Span, fault: str
) -> None:
    with pytest.raises(AssertionError, match=fault):
        open_device(tiny).run(make_plan([span]))


@pytest.mark.parametrize("token", [-1, 97])
def test_a_token_outside_the_vocabulary_is_noticed(tiny: DecoderSpec, open_device: OpenDevice, token: int) -> None:
    with pytest.raises(IndexError):
        open_device(tiny).run(make_plan([Span(tokens=[token], pages=[0], rows=[Row()])]))


@pytest.mark.parametrize("page", [-1, 64])
def test_a_page_that_is_not_there_is_noticed(tiny: DecoderSpec, open_device: OpenDevice, page: int) -> None:
    with pytest.raises(IndexError):
        open_device(tiny).run(make_plan([Span(tokens=[1], pages=[page], rows=[Row()])]))


def test_an_interrupt_ends_every_later_step(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    device = open_device(tiny)
    plan = make_plan([Span(tokens=[1], pages=[0], rows=[Row()])])
    device.run(plan)
    device.interrupt()
    for _ in range(2):
        with pytest.raises(DeviceError, match="interrupted"):
            device.run(plan)
    assert "interrupted" in repr(device)


def test_an_interrupt_ends_the_running_step_after_a_tile(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    tiles: list[int] = []

    class InterruptedDecoder(Decoder):
        def hidden(self, tile: Tile, pages: KVPages) -> torch.Tensor:
            tiles.append(len(tile.tokens))
            if len(tiles) == 2:
                device.interrupt()
            return super().hidden(tile, pages)

    weights = RandomWeights(tiny)
    decoder = InterruptedDecoder(tiny, {name: torch.from_numpy(weights.float32(name)) for name in tiny.weight_shapes()})
    device = ReferenceDevice(decoder, KVPages(tiny, 16, 4, torch.device("cpu")), open_device(tiny).info, None)
    with pytest.raises(DeviceError, match="interrupted"):
        device.run(make_plan([Span(tokens=[1] * 60, pages=range(16), rows=[Row()])]))
    assert tiles == [TILE, TILE]


def test_it_computes_in_as_many_threads_as_it_was_given(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    device = open_device(tiny, threads=2)
    assert torch.get_num_threads() == 1
    device.run(make_plan([]))
    assert torch.get_num_threads() == 2


def test_it_can_be_closed_twice_and_then_does_nothing_more(tiny: DecoderSpec, open_device: OpenDevice) -> None:
    device = open_device(tiny)
    device.close()
    device.close()
    assert "closed" in repr(device)
    with pytest.raises(AssertionError, match="closed"):
        device.run(make_plan([]))
