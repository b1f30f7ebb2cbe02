"""The CPU device as an abc.Device: loading, steps, errors."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import attrs
import numpy as np
import pytest
from trioserve_kernels.cpu import library
from trioserve_kernels.reference.sampler import log_probability, sample

from trioserve.abc import Device, KvType
from trioserve.device.cpu import CpuDevice, unsupported
from trioserve.errors import DeviceError, ParamError
from trioserve.model.loaded import Float32Array, RawTensor
from trioserve.model.spec import DecoderSpec, Rope
from trioserve.step import StepPlan
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.weights import RandomWeights, random_model

pytestmark = pytest.mark.skipif(library.library_path() is None, reason="there are no native kernels")

OpenCpuDevice = Callable[..., CpuDevice]
SomeTokens = Callable[[int, int], list[int]]
PLAN = make_plan([Span(tokens=[1], pages=[0], rows=[Row()])])


@attrs.define(eq=False)
class Changed(RandomWeights):
    """Random weights, of which some are not."""

    changes: dict[str, Callable[[Float32Array], object]] = attrs.field(factory=dict)

    def float32(self, name: str) -> Float32Array:
        values = super().float32(name)
        if name in self.changes:
            self.changes[name](values)
        return values


def test_it_is_a_device_and_says_what_it_holds(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    device = open_cpu_device(tiny_native, page_count=5, threads=2, level="portable")
    assert isinstance(device, Device)
    assert device.info.name == "cpu (portable, 2 threads)"
    assert (device.info.vocab_size, device.info.context_length) == (97, 1024)
    assert (device.info.page_size, device.info.page_count) == (16, 5)
    assert repr(device) == "<CpuDevice cpu (portable, 2 threads)>"
    assert open_cpu_device(tiny_native, level="portable").info.name == "cpu (portable, 1 thread)"


@pytest.mark.parametrize(
    ("kv_type", "token_bytes"), [("float16", 2 * 16 * 2), ("float32", 2 * 16 * 4), ("int8", 2 * 20)]
)
def test_keys_and_values_take_the_memory_of_their_type(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, kv_type: KvType, token_bytes: int
) -> None:
    info = open_cpu_device(tiny_native, page_count=5, kv_type=kv_type, level="portable").info
    assert info.kv_bytes == 5 * 16 * tiny_native.layers * tiny_native.kv_heads * token_bytes
    also = "" if kv_type == "float16" else f", {kv_type} keys and values"
    assert info.name == f"cpu (portable, 1 thread{also})"


def test_it_takes_the_fastest_level_of_the_machine(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    assert library.levels()[-1] == "portable"
    assert open_cpu_device(tiny_native).info.name == f"cpu ({library.levels()[0]}, 1 thread)"


def test_a_level_that_the_machine_has_not_is_refused(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    with pytest.raises(DeviceError, match="this machine has no level sse9"):
        open_cpu_device(tiny_native, level="sse9")


def test_a_shorter_context_can_be_asked_for(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    assert open_cpu_device(tiny_native, context_length=100).info.context_length == 100


def test_a_context_longer_than_the_models_is_refused(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    with pytest.raises(ParamError, match="context_length must be at most 1024 for this model, got 1025") as caught:
        open_cpu_device(tiny_native, context_length=1025)
    assert caught.value.param == "context_length"


def test_more_pages_than_there_is_memory_are_refused(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    with pytest.raises(ParamError, match="kv_tokens is too large: the keys and values of 34359738352 tokens") as caught:
        open_cpu_device(attrs.evolve(tiny_native, head_dim=256, heads=64, kv_heads=64), page_count=2**31 - 1)
    assert caught.value.param == "kv_tokens"


def test_weights_and_pages_together_must_fit_into_the_memory_that_the_process_may_use(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = open_cpu_device(tiny_native).info
    enough = info.weight_bytes + info.kv_bytes
    monkeypatch.setattr("trioserve.device.limits.usable_memory", lambda: enough)
    open_cpu_device(tiny_native)
    monkeypatch.setattr("trioserve.device.limits.usable_memory", lambda: enough - 1)
    with pytest.raises(ParamError, match="kv_tokens is too large") as caught:
        open_cpu_device(tiny_native)
    assert caught.value.param == "kv_tokens"
    monkeypatch.setattr("trioserve.device.limits.usable_memory", lambda: info.weight_bytes - 1)
    with pytest.raises(DeviceError, match=r"The model's weights take 0\.0 GB, and there are 0\.0 GB of memory"):
        open_cpu_device(tiny_native)


def test_loading_tells_its_progress_in_bytes(tiny_native: DecoderSpec) -> None:
    told: list[tuple[str, int, int | None]] = []
    device = CpuDevice.load(
        random_model(tiny_native), page_count=4, threads=1, progress=lambda *args: told.append(args)
    )
    total = 4 * sum(int(np.prod(shape)) for shape in tiny_native.weight_shapes().values())
    assert told[0] == ("loading", 0, total)
    assert told[-1] == ("loading", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert 0 < device.info.weight_bytes < total
    device.close()


def test_an_error_while_loading_leaves_no_threads(tiny_native: DecoderSpec) -> None:
    def fail(stage: str, done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    before = len(list(Path("/proc/self/task").iterdir()))
    with pytest.raises(KeyboardInterrupt):
        CpuDevice.load(random_model(tiny_native), page_count=4, threads=3, progress=fail)
    assert len(list(Path("/proc/self/task").iterdir())) == before


def test_the_weights_may_be_changed_or_closed_after_loading(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice
) -> None:
    @attrs.define(eq=False)
    class Remembering(RandomWeights):
        given: list[bytearray] = attrs.field(factory=list)

        def raw(self, name: str) -> RawTensor:
            raw = super().raw(name)
            self.given.append(bytearray(raw.data))
            return attrs.evolve(raw, data=memoryview(self.given[-1]))

    weights = Remembering(tiny_native)
    device = open_cpu_device(attrs.evolve(random_model(tiny_native), weights=weights))
    expected = device.logits(PLAN)[0]
    for data in weights.given:
        data[:] = b"\xff" * len(data)
    assert np.array_equal(device.logits(PLAN)[0], expected)


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"head_dim": 8, "rope": Rope(dim=8)}, "the model's heads have 8 dimensions, not a multiple of 16 up to 256"),
        ({"head_dim": 40}, "the model's heads have 40 dimensions, not a multiple of 16 up to 256"),
        ({"head_dim": 272}, "the model's heads have 272 dimensions, not a multiple of 16 up to 256"),
        ({"heads": 65, "kv_heads": 1}, "65 heads share a KV head, more than 64"),
    ],
)
def test_a_model_that_it_has_no_kernels_for_is_named(
    tiny_native: DecoderSpec, changes: dict[str, object], obstacle: str
) -> None:
    assert unsupported(random_model(tiny_native)) is None
    assert unsupported(random_model(attrs.evolve(tiny_native, **changes))) == obstacle  # type: ignore[arg-type]


def test_a_kind_of_weight_that_it_has_no_kernels_for_is_named(tiny_native: DecoderSpec) -> None:
    class Odd(RandomWeights):
        def raw(self, name: str) -> RawTensor:
            return attrs.evolve(super().raw(name), kind="IQ3_S" if name == "layers.1.down" else "F32")

    model = attrs.evolve(random_model(tiny_native), weights=Odd(tiny_native))
    assert unsupported(model) == "the model's weight layers.1.down is of kind IQ3_S"


@pytest.fixture
def _library_forgotten() -> Iterator[None]:
    library.load_library.cache_clear()
    yield
    library.load_library.cache_clear()


@pytest.mark.usefixtures("_library_forgotten")
def test_a_missing_library_is_told(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "library_path", lambda: None)
    fault = "trioserve was installed without its native kernels, since there was no C++ compiler"
    assert unsupported(random_model(tiny_native)) == fault
    with pytest.raises(DeviceError, match=r"can't be used: trioserve was installed without .* compiler\.$"):
        open_cpu_device(tiny_native)


@pytest.mark.usefixtures("_library_forgotten")
def test_a_library_of_another_machine_is_told(
    tiny_native: DecoderSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libtrioserve_cpu.so").write_text("not a library")
    monkeypatch.setattr(library, "library_path", lambda: tmp_path / "libtrioserve_cpu.so")
    obstacle = unsupported(random_model(tiny_native))
    assert obstacle is not None
    assert obstacle.startswith("the native kernels can't be loaded: ")


def test_each_row_is_drawn_with_its_own_parameters(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: SomeTokens
) -> None:
    # FAN-11: several rows draw from one token's logits; FAN-33
    rows = [
        Row(),
        Row(seed=2**64 - 1, temperature=1.0),
        Row(seed=3, temperature=1.5, top_p=0.5),
        Row(seed=4, temperature=2.0, top_k=2),
        Row(seed=5, temperature=2.0, min_p=0.6),
        *(Row(seed=seed, temperature=1.0, logprobs=1) for seed in range(100, 120)),
    ]
    span = Span(tokens=some_tokens(4, 13), pages=range(4), rows=rows)
    for threads in (1, 3):
        device = open_cpu_device(tiny_native, threads=threads)
        result = device.run(make_plan([span], number=77))
        logits = device.logits(make_plan([span]))[12]
        assert result.number == 77
        assert result.token_ids.typecode == "i"
        assert list(result.token_ids) == [sample(logits, position=13, **row.drawn_with) for row in rows]
        assert result.token_ids[0] == int(logits.argmax())
        assert len(set(result.token_ids)) > 5
        for row, token, found in zip(rows, result.token_ids, result.logprobs, strict=True):
            expected = log_probability(logits, token) if row.logprobs else np.nan
            assert found == pytest.approx(expected, abs=2e-6, nan_ok=True)


@pytest.mark.parametrize("kv_type", library.KV_TYPES)
def test_copies_are_made_first_and_in_order(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: SomeTokens, kv_type: KvType
) -> None:
    prompt = some_tokens(6, 22)
    device = open_cpu_device(tiny_native, kv_type=kv_type)
    expected = device.logits(make_plan([Span(tokens=[*prompt, 9], pages=[0, 1], rows=[Row()])]))[22]
    # page 1 goes to 3 by way of 2, and is overwritten in the same step
    spans = [Span(tokens=[50], start=22, pages=[0, 1]), Span(tokens=[9], start=22, pages=[0, 3], rows=[Row()])]
    logits = device.logits(make_plan(spans, copies=[(1, 2), (2, 3)]))
    assert np.array_equal(logits[1], expected)


def test_an_empty_step_draws_nothing(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    assert list(open_cpu_device(tiny_native).run(make_plan([])).token_ids) == []


def bad_plans() -> dict[str, StepPlan]:
    """Plans that no scheduler makes. Every one would begin with a copy over page 3 and write to it, if it ran."""

    def plan(**changes: object) -> StepPlan:
        made = make_plan(
            [Span(tokens=[7, 8, 9], pages=[3], rows=[Row()]), Span(tokens=[5], start=20, pages=[3, 4])],
            copies=[(5, 3)],
            shared=[(0, 2, 1)],
        )
        for name, value in changes.items():
            owner = made.spans if hasattr(made.spans, name) else made
            owner = made.rows if name == "row_tokens" else owner
            object.__setattr__(owner, name.removeprefix("row_"), array("i", value))  # type: ignore[call-overload]
        return made

    return {
        "a token below the vocabulary": plan(tokens=[7, -1, 9, 5]),
        "a token beyond the vocabulary": plan(tokens=[7, 8, 9, 97]),
        "a page below the pool": plan(pages=[-1, 3, 4]),
        "a page beyond the pool": plan(pages=[3, 3, 64]),
        "a position below 0": plan(positions=[-1, 0, 1, 20]),
        "a position beyond the pages": plan(positions=[0, 1, 16, 20]),
        "a row of no token": plan(row_tokens=[4]),
        "a row below 0": plan(row_tokens=[-1]),
        "a copy from no page": plan(copies=[5, 3, 64, 3]),
        "a copy to no page": plan(copies=[5, 3, 5, -1]),
        "an empty span": plan(starts=[0, 0, 4]),
        "spans that end late": plan(starts=[0, 3, 5]),
        "a span far too long": plan(starts=[0, 2**30, 4]),
        "spans that begin late": plan(starts=[1, 3, 4]),
        "a span without pages": plan(page_starts=[0, 0, 3], pages=[3, 4, 5]),
        "a group of spans that are not there": plan(shared=[1, 2, 1]),
        "a group that begins below 0": plan(shared=[-1, 2, 1]),
        "a group that shares more pages than a span has": plan(shared=[0, 2, 2]),
        "a group of fewer than no spans": plan(shared=[0, -1, 1]),
    }


@pytest.mark.parametrize("fault", bad_plans())
def test_a_plan_that_no_scheduler_makes_is_refused_before_anything_is_touched(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, some_tokens: SomeTokens, fault: str
) -> None:
    device = open_cpu_device(tiny_native, page_count=64)
    prompt = some_tokens(1, 10)
    again = make_plan([Span(tokens=[1], start=10, pages=[3], rows=[Row()])])
    device.run(make_plan([Span(tokens=prompt, pages=[3]), Span(tokens=prompt[::-1], pages=[5])]))
    expected = device.logits(again)[0]
    with pytest.raises(DeviceError, match=r"Step 0 failed: an id or a position in the step is out of range\."):
        device.run(bad_plans()[fault])
    assert np.array_equal(device.logits(again)[0], expected)


SIZED = [
    *("spans.positions", "spans.starts", "spans.page_starts", "copies", "shared", "rows.tokens", "rows.seeds"),
    *("rows.counters", "rows.temperatures", "rows.top_ps", "rows.top_ks", "rows.min_ps", "rows.logprobs"),
    *("rows.targets", "rows.changes.rows", "rows.changes.presence_penalties", "rows.changes.frequency_penalties"),
    *("rows.changes.repetition_penalties", "rows.changes.generated_starts", "rows.changes.prompt_starts"),
    *("rows.changes.bias_starts", "rows.changes.bias_ids", "rows.changes.biases", "rows.changes.matchers"),
]


@pytest.mark.parametrize("field", SIZED)
@pytest.mark.parametrize("grows", [True, False])
def test_a_plan_whose_arrays_do_not_fit_together_never_gets_to_the_native_code(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, monkeypatch: pytest.MonkeyPatch, field: str, grows: bool
) -> None:
    device = open_cpu_device(tiny_native)
    rows = [Row(target=5), Row(seed=4, temperature=1.0, presence_penalty=0.5, generated=[3], bias={7: 1.0})]
    spans = [Span(tokens=[1, 2], pages=[0], rows=rows), Span(tokens=[3], pages=[1], rows=rows)]
    plan = make_plan(spans, copies=[(1, 2)], shared=[(0, 1, 0)])
    device.run(plan)
    monkeypatch.setattr(library.NativeDecoder, "run", None)
    values = attrgetter(field)(plan)
    if grows:
        values.append(values[-1])
    else:
        values.pop()
    with pytest.raises(DeviceError, match=r"Step 0 failed: its arrays do not fit together\."):
        device.run(plan)


@pytest.mark.parametrize("value", [np.inf, 3e38, -np.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_logits_that_are_not_finite_end_the_step(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, value: float, threads: int
) -> None:
    weights = Changed(tiny_native, changes={"head": lambda head: head[5].fill(value)})
    device = open_cpu_device(attrs.evolve(random_model(tiny_native), weights=weights), threads=threads)
    spans = [Span(tokens=[1], pages=[1]), Span(tokens=[1, 2, 3], pages=[0], rows=[Row()])]
    with pytest.raises(DeviceError, match="Step 8 failed: the logits have no finite maximum"):
        device.run(make_plan(spans, number=8))


@pytest.mark.parametrize("level", library.levels() if library.library_path() else [])
@pytest.mark.parametrize(("embedding_dim", "kv_type"), [(48, "float16"), (64, "int8"), (33, "float32"), (33, "int8")])
def test_a_broken_sequence_does_not_reach_its_neighbours(
    tiny_native: DecoderSpec,
    open_cpu_device: OpenCpuDevice,
    some_tokens: SomeTokens,
    embedding_dim: int,
    kv_type: KvType,
    level: str,
) -> None:
    spec = attrs.evolve(tiny_native, embedding_dim=embedding_dim)
    weights = Changed(spec, changes={"embedding": lambda embedding: embedding[96].fill(np.nan)})
    device = open_cpu_device(attrs.evolve(random_model(spec), weights=weights), kv_type=kv_type, level=level)
    healthy = Span(tokens=[token % 96 for token in some_tokens(1, 21)], pages=[0, 1], rows=[Row()])
    expected = open_cpu_device(spec, kv_type=kv_type, level=level).logits(make_plan([healthy]))[20]
    broken = Span(tokens=[96] * 20, pages=[2, 3], rows=[])
    assert np.array_equal(device.logits(make_plan([healthy, broken]))[20], expected)
    assert np.array_equal(device.logits(make_plan([broken, healthy]))[40], expected)
    # nor does it stay behind in a page, or where the device computes
    assert np.array_equal(device.logits(make_plan([attrs.evolve(healthy, pages=[2, 3])]))[20], expected)


def test_an_interrupt_ends_every_later_step(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    device = open_cpu_device(tiny_native)
    device.run(PLAN)
    device.interrupt()
    for plan in (PLAN, PLAN, make_plan([])):
        with pytest.raises(DeviceError, match="Step 0 failed: it was interrupted"):
            device.run(plan)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_from_another_thread_ends_the_work(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice, threads: int
) -> None:
    device = open_cpu_device(tiny_native, threads=threads)
    plan = make_plan([Span(tokens=[1] * 600, pages=range(38), rows=[Row()])])
    running, errors = threading.Event(), list[DeviceError]()

    def work() -> None:
        try:
            while True:
                device.run(plan)
                running.set()
        except DeviceError as error:
            errors.append(error)
            running.set()

    worker = threading.Thread(target=work)
    worker.start()
    running.wait(60)
    device.interrupt()
    worker.join(60)
    assert [str(error) for error in errors] == ["Step 0 failed: it was interrupted."]


def test_an_interrupt_may_come_while_it_is_closed(tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice) -> None:
    device = open_cpu_device(tiny_native, threads=2)
    closed = threading.Event()

    def interrupt() -> None:
        while not closed.is_set():
            device.interrupt()
        device.interrupt()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    device.close()
    closed.set()
    interrupter.join(60)
    assert not interrupter.is_alive()


def test_it_can_be_closed_twice_and_then_does_nothing_more(
    tiny_native: DecoderSpec, open_cpu_device: OpenCpuDevice
) -> None:
    device = open_cpu_device(tiny_native, threads=2)
    device.close()
    device.close()
    assert "closed" in repr(device)
    with pytest.raises(AssertionError, match="closed"):
        device.run(PLAN)


def test_many_teams_come_and_go(tiny_native: DecoderSpec) -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    for threads in (1, 2, 5, 2, 1, 3):
        device = CpuDevice.load(random_model(tiny_native), page_count=4, threads=threads)
        device.run(PLAN)
        assert len(list(Path("/proc/self/task").iterdir())) == before + threads - 1
        device.close()
    assert len(list(Path("/proc/self/task").iterdir())) == before
