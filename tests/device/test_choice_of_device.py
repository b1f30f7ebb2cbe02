"""Which device an engine takes: the native one where it can, else the reference, and it says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trioserve_kernels.cpu import library

from trioserve.abc import KvType
from trioserve.engine.open import open_engine
from trioserve.engine.options import EngineOptions
from trioserve.errors import ParamError
from trioserve.testing.checkpoints import TinyLlama, write_tiny_llama

MISSING = "trioserve was installed without its native kernels, since there was no C++ compiler"
needs_native = pytest.mark.skipif(library.library_path() is None, reason="there are no native kernels")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("choice") / "tiny", TinyLlama(head_dim=16))


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library.load_library.cache_clear()
    monkeypatch.setattr(library, "library_path", lambda: None)
    yield
    library.load_library.cache_clear()


@needs_native
@pytest.mark.parametrize("device", ["auto", "cpu"])
async def test_the_native_device_is_taken_where_it_can_be(folder: Path, device: str) -> None:
    options = EngineOptions(device=device, threads=1)  # type: ignore[arg-type]
    async with open_engine(folder, options) as engine:
        assert engine.info.name == f"cpu ({library.levels()[0]}, 1 thread)"
        assert engine.model.warnings == ()


@needs_native
async def test_the_reference_device_can_be_asked_for(folder: Path) -> None:
    async with open_engine(folder, EngineOptions(device="reference", threads=1)) as engine:
        assert engine.info.name == "reference (float32, cpu)"
        assert engine.model.warnings == ()


@pytest.mark.usefixtures("_no_library")
async def test_without_native_kernels_the_reference_device_is_taken_and_it_is_told(folder: Path) -> None:
    async with open_engine(folder, EngineOptions(threads=1)) as engine:
        assert engine.info.name == "reference (float32, cpu)"
        (warning,) = engine.model.warnings
        assert warning == f"The model runs on the slow reference device: {MISSING}."


@pytest.mark.usefixtures("_no_library")
async def test_without_native_kernels_the_native_device_is_refused(folder: Path) -> None:
    with pytest.raises(ParamError, match="can't run this model: trioserve was installed without") as caught:
        async with open_engine(folder, EngineOptions(device="cpu", threads=1)):
            pass
    assert caught.value.param == "device"


@needs_native
async def test_pages_of_another_size_are_for_the_reference_device(folder: Path) -> None:
    async with open_engine(folder, EngineOptions(page_size=4, threads=1)) as engine:
        assert engine.info.name == "reference (float32, cpu)"
        assert engine.model.warnings == (
            "The model runs on the slow reference device: the CPU device has pages of 16 tokens, not 4.",
        )
    with pytest.raises(ParamError, match="the CPU device has pages of 16 tokens, not 4"):
        async with open_engine(folder, EngineOptions(device="cpu", page_size=4, threads=1)):
            pass


@needs_native
@pytest.mark.parametrize("kv_type", ["float16", "float32", "int8"])
async def test_the_native_device_has_every_type_of_keys_and_values(folder: Path, kv_type: KvType) -> None:
    async with open_engine(folder, EngineOptions(threads=1)) as engine:
        usual = engine.info
    async with open_engine(folder, EngineOptions(kv_type=kv_type, threads=1)) as engine:
        assert engine.info.kv_bytes == usual.kv_bytes * {"float16": 1, "float32": 2, "int8": (16 + 4) / 32}[kv_type]


@pytest.mark.parametrize("options", [{"device": "reference"}, {"page_size": 4}])
@pytest.mark.parametrize("kv_type", ["float16", "int8"])
async def test_the_reference_device_refuses_what_it_does_not_store(
    folder: Path, options: dict[str, Any], kv_type: KvType
) -> None:
    async with open_engine(folder, EngineOptions(**options, kv_type="float32", threads=1)) as engine:
        assert engine.info.name == "reference (float32, cpu)"
    with pytest.raises(ParamError, match=f"kv_type must be float32 on the reference device, got {kv_type}") as caught:
        async with open_engine(folder, EngineOptions(**options, kv_type=kv_type, threads=1)):
            pass
    assert caught.value.param == "kv_type"


def test_a_type_that_no_device_has_is_refused() -> None:
    with pytest.raises(ParamError, match="kv_type must be one of float16, float32, int8, got int4") as caught:
        EngineOptions(kv_type="int4")  # type: ignore[arg-type]
    assert caught.value.param == "kv_type"
