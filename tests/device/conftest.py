"""Tiny models in memory, and devices that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest
import torch

from trioserve.abc import KvType
from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.model.loaded import LoadedModel
from trioserve.model.spec import DecoderSpec, Rope
from trioserve.testing.weights import random_model

OpenDevice = Callable[..., ReferenceDevice]
OpenCpuDevice = Callable[..., CpuDevice]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other make a busy machine many times slower; a test that wants some says so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _one_thread_again() -> Iterator[None]:
    """What a test sets ends with it."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> DecoderSpec:
    """A small model of which no size is a multiple of another by chance."""
    return DecoderSpec(
        architecture="tiny",
        vocab_size=97,
        context_length=128,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=8,
        embedding_dim=36,
        feed_forward_dim=52,
        rope=Rope(dim=8),
        norm_eps=1e-5,
    )


@pytest.fixture
def open_device() -> OpenDevice:
    """Makes a device of a spec and the seed of its random weights."""

    def open_(
        spec: DecoderSpec,
        *,
        seed: int = 0,
        page_size: int = 4,
        page_count: int = 64,
        context_length: int | None = None,
        threads: int | None = None,
    ) -> ReferenceDevice:
        return ReferenceDevice.load(
            random_model(spec, seed),
            page_size=page_size,
            page_count=page_count,
            context_length=context_length,
            threads=threads,
        )

    return open_


@pytest.fixture(scope="session")
def tiny_native(tiny: DecoderSpec) -> DecoderSpec:
    """The same for the native kernels, with a context of several pages, stretches and pieces."""
    return attrs.evolve(
        tiny, context_length=1024, head_dim=16, embedding_dim=48, feed_forward_dim=72, rope=Rope(dim=16)
    )


@pytest.fixture
def open_cpu_device() -> Iterator[OpenCpuDevice]:
    """Makes a CpuDevice of a spec or a model, and closes it at the end of the test."""
    opened: list[CpuDevice] = []

    def open_(
        model: DecoderSpec | LoadedModel,
        *,
        page_count: int = 64,
        context_length: int | None = None,
        kv_type: KvType = "float16",
        threads: int = 1,
        level: str | None = None,
    ) -> CpuDevice:
        device = CpuDevice.load(
            random_model(model) if isinstance(model, DecoderSpec) else model,
            page_count=page_count,
            context_length=context_length,
            kv_type=kv_type,
            threads=threads,
            level=level,
        )
        opened.append(device)
        return device

    yield open_
    for device in opened:
        device.close()


@pytest.fixture(scope="session")
def some_tokens() -> Callable[[int, int], list[int]]:
    """``count`` token ids below 97 that follow from a seed."""

    def make(seed: int, count: int) -> list[int]:
        return [int(token) for token in np.random.default_rng(seed).integers(0, 97, count)]

    return make
