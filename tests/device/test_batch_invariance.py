"""FAN-15: what is computed for a token does not depend, in any bit, on what is computed beside it.

On both devices; test_cpu_batch_invariance.py goes further on the one that cuts its work in more ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import torch
from trioserve_kernels.cpu.library import library_path

from trioserve.device.cpu import CpuDevice
from trioserve.device.decoder import TILE
from trioserve.device.reference import ReferenceDevice
from trioserve.model.spec import DecoderSpec, Rope
from trioserve.testing.driver import Row, Span, make_plan
from trioserve.testing.weights import random_model

Logits = npt.NDArray[np.float32]
AnyDevice = ReferenceDevice | CpuDevice
PAGE_COUNT = 1024


def wide_spec() -> DecoderSpec:
    """One layer of the default model, with fewer tokens."""
    return DecoderSpec(
        architecture="wide",
        vocab_size=97,
        context_length=128,
        layers=1,
        heads=9,
        kv_heads=3,
        head_dim=64,
        embedding_dim=576,
        feed_forward_dim=1536,
        rope=Rope(dim=64, interleaved=True),
        norm_eps=1e-5,
    )


def rich_spec() -> DecoderSpec:
    """Everything that is not a plain Llama, in sizes that fill no vector."""
    return DecoderSpec(
        architecture="rich",
        vocab_size=97,
        context_length=128,
        layers=2,
        heads=3,
        kv_heads=1,
        head_dim=10,
        embedding_dim=33,
        feed_forward_dim=51,
        rope=Rope(dim=6),
        norm_eps=1e-5,
        activation="gelu",
        attention_bias=True,
        qk_norm=True,
        sliding_window=7,
        sliding_layers=frozenset({1}),
        attention_soft_cap=3.0,
        logit_soft_cap=5.0,
    )


def reference(spec: DecoderSpec) -> ReferenceDevice:
    return ReferenceDevice.load(random_model(spec), page_size=4, page_count=PAGE_COUNT)


def native(spec: DecoderSpec) -> CpuDevice:
    if library_path() is None:
        pytest.skip("there are no native kernels")
    return CpuDevice.load(random_model(spec), page_count=PAGE_COUNT, threads=1)


DEVICES: dict[str, Callable[[], AnyDevice]] = {
    "reference, wide": lambda: reference(wide_spec()),
    "reference, rich": lambda: reference(rich_spec()),
    "cpu, wide": lambda: native(wide_spec()),
    "cpu, rich": lambda: native(attrs.evolve(rich_spec(), head_dim=48)),
}


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[AnyDevice]:
    device = DEVICES[request.param]()
    yield device
    device.close()


def prefill(
    device: AnyDevice,
    tokens: Sequence[int],
    pages: Sequence[int],
    *,
    chunk: int = 1000,
    start: int = 0,
    beside: Sequence[Span] = (),
) -> Logits:
    """[V]: the logits after ``tokens``, those from ``start`` on computed in chunks, always with ``beside`` around."""
    for first in range(start, len(tokens), chunk):
        part = tokens[first : first + chunk]
        spans = [*beside[::2], Span(tokens=part, start=first, pages=pages, rows=[Row()]), *beside[1::2]]
        own = sum(len(span.tokens) for span in beside[::2]) + len(part) - 1
        logits = device.logits(make_plan(spans))
    return logits[own]


def strangers(count: int) -> list[Span]:
    """Sequences of 1 to 9 tokens, in pages from 500 on, whose logits are asked for as well."""
    return [
        Span(tokens=[(7 * i + j) % 97 for j in range(1 + i % 9)], pages=range(500 + 3 * i, 503 + 3 * i), rows=[Row()])
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def prompt(some_tokens: Callable[[int, int], list[int]]) -> list[int]:
    return some_tokens(11, 45)


@pytest.fixture(scope="module")
def alone(device: AnyDevice, prompt: list[int]) -> Logits:
    return prefill(device, prompt, range(12))


@pytest.mark.parametrize("count", [1, 2, 15, 31])
def test_strangers_in_the_batch_change_nothing(device: AnyDevice, prompt: list[int], alone: Logits, count: int) -> None:
    assert np.array_equal(prefill(device, prompt, range(12), beside=strangers(count)), alone)


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 44])
def test_the_chunks_of_the_prompt_change_nothing(
    device: AnyDevice, prompt: list[int], alone: Logits, chunk: int
) -> None:
    assert np.array_equal(prefill(device, prompt, range(12), chunk=chunk), alone)


def test_chunks_beside_strangers_change_nothing(device: AnyDevice, prompt: list[int], alone: Logits) -> None:
    assert np.array_equal(prefill(device, prompt, range(12), chunk=5, beside=strangers(31)), alone)


def test_the_ids_of_the_pages_change_nothing(device: AnyDevice, prompt: list[int], alone: Logits) -> None:
    pages = [int(page) for page in np.random.default_rng(5).permutation(PAGE_COUNT)[:12]]
    assert np.array_equal(prefill(device, prompt, pages), alone)


def test_what_was_in_the_pages_before_changes_nothing(device: AnyDevice, prompt: list[int], alone: Logits) -> None:
    prefill(device, prompt[::-1] + prompt[:3], range(12))
    assert np.array_equal(prefill(device, prompt, range(12)), alone)


def test_a_prefix_in_shared_pages_changes_nothing(device: AnyDevice, prompt: list[int], alone: Logits) -> None:
    whole = 20 // device.info.page_size
    start = whole * device.info.page_size
    prefill(device, [*prompt[:start], 1, 2, 3], range(6))
    assert np.array_equal(prefill(device, prompt, [*range(whole), *range(20, 27)], start=start), alone)


def test_a_page_copied_on_write_changes_nothing(device: AnyDevice, prompt: list[int], alone: Logits) -> None:
    # FAN-11: the prompt ends inside a page; each choice goes on in its own copy
    last = 22 // device.info.page_size
    prefill(device, prompt[:22], range(last + 1))
    spans = [
        Span(tokens=prompt[22:], start=22, pages=[*range(last), *range(20, 27)], rows=[Row()]),
        Span(tokens=prompt[:22:-1], start=22, pages=[*range(last), *range(30, 37)], rows=[Row()]),
    ]
    logits = device.logits(make_plan(spans, copies=[(last, 20), (last, 30)]))
    assert np.array_equal(logits[len(prompt) - 22 - 1], alone)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("spec", [wide_spec, rich_spec])
def test_the_number_of_threads_changes_nothing(
    spec: Callable[[], DecoderSpec], prompt: list[int], threads: int
) -> None:
    device = reference(spec())
    alone = prefill(device, prompt, range(12))
    torch.set_num_threads(threads)
    assert np.array_equal(prefill(device, prompt, range(12), beside=strangers(5)), alone)


def test_activations_split_between_threads_change_nothing() -> None:
    # torch leaves the last elements of each thread's share to scalar code, which rounds differently
    spec = attrs.evolve(wide_spec(), embedding_dim=16, feed_forward_dim=4099, activation="gelu")
    device = ReferenceDevice.load(random_model(spec), page_size=TILE, page_count=TILE, threads=3)
    logits = device.logits(make_plan([Span(tokens=[5], pages=[page], rows=[Row()]) for page in range(TILE)]))
    assert all(np.array_equal(logits[place], logits[0]) for place in range(TILE))


def test_batch_mates_do_not_change_what_is_drawn(device: AnyDevice, prompt: list[int]) -> None:
    # case seed-batch-mates
    rows = [Row(seed=seed, temperature=0.9, top_p=0.95) for seed in range(8)]
    span = Span(tokens=prompt, pages=range(12), rows=rows)
    expected = device.run(make_plan([span])).token_ids
    mates = [attrs.evolve(mate, rows=[Row(temperature=1.5, top_k=3, seed=5)]) for mate in strangers(9)]
    assert device.run(make_plan([span, *mates])).token_ids[:8] == expected
    one_by_one = [device.run(make_plan([attrs.evolve(span, rows=[row])])).token_ids[0] for row in rows]
    assert one_by_one == list(expected)
    assert len(set(expected)) > 1


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_changes_anything(device: AnyDevice, seed: int) -> None:
    """Three sequences in one pool, each cut into spans at random, the spans put in steps at random."""
    random = np.random.default_rng(seed)
    sequences = [[(31 * s + 7 * t) % 97 for t in range(length)] for s, length in enumerate((9, 21, 34))]
    tables = random.permutation(30).reshape(3, 10).tolist()
    done = [0, 0, 0]
    last: dict[int, Logits] = {}
    while any(done[s] < len(sequences[s]) for s in range(3)):
        counts = [min(int(random.integers(0, 18)), len(sequences[s]) - done[s]) for s in range(3)]
        order = [int(s) for s in random.permutation(3) if counts[s]]
        spans = [
            Span(tokens=sequences[s][done[s] : done[s] + counts[s]], start=done[s], pages=tables[s], rows=[Row()])
            for s in order
        ]
        logits = device.logits(make_plan(spans)).values()
        last |= dict(zip(order, logits, strict=True))
        done = [before + count for before, count in zip(done, counts, strict=True)]
    for s, tokens in enumerate(sequences):
        assert np.array_equal(last[s], prefill(device, tokens, range(100, 110)))
