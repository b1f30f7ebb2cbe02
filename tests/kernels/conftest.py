"""The native sampler, compiled once for each level that this machine has."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parent.parent / "kernels" / "cpu"
FLAGS = ["-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared"]
ARM_LEVELS = {"portable": [], "neon": ["-DLEVEL_IS_NEON"]}
X86_LEVELS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c"],
}
NOT_FINITE, NOTHING_LEFT = 1, 2
"""Values of DrawStatus."""
LEVELS = ARM_LEVELS if platform.machine() in ("aarch64", "arm64") else X86_LEVELS
GUARD = 64
"""How many elements on either side of every array are watched."""


class Row(ctypes.Structure):
    """SamplerRow of sampler_row.h."""

    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("counter", ctypes.c_uint64),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("top_k", ctypes.c_int32),
        ("wants_log_probability", ctypes.c_int32),
        ("alternatives", ctypes.c_int32),
        ("target", ctypes.c_int32),
        ("generated", ctypes.c_void_p),
        ("generated_count", ctypes.c_int32),
        ("prompt_count", ctypes.c_int32),
        ("prompt", ctypes.c_void_p),
        ("presence_penalty", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("bias_ids", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("bias_count", ctypes.c_int32),
        ("mask", ctypes.c_void_p),
    ]


class Drawn(ctypes.Structure):
    """Drawn of sampler_row.h."""

    _fields_ = [("token", ctypes.c_int32), ("status", ctypes.c_int32), ("log_probability", ctypes.c_double)]


@attrs.frozen
class Result:
    """What came out; equal only if all bits are."""

    token: int
    status: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...]


class NativeSampler:
    """The sampler of one level. Poisons what it gives to it, and watches the memory around."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.sampler_scratch.restype = ctypes.c_int64
        library.uniform.restype = ctypes.c_double
        library.uniform.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        library.sample.restype = None

    def uniform(self, seed: int, position: int) -> float:
        return float(self._library.uniform(seed, position))

    def sample(
        self,
        logits: npt.NDArray[np.float32],
        *,
        seed: int = 0,
        position: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        generated: Sequence[int] = (),
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        prompt: Sequence[int] = (),
        repetition_penalty: float = 1.0,
        bias: Mapping[int, float] | None = None,
        allowed: npt.NDArray[np.bool_] | None = None,
        wants_log_probability: bool = True,
        alternatives: int = 0,
        target: int = -1,
    ) -> Result:
        vocab = len(logits)
        scratch = Watched(np.full(self._library.sampler_scratch(vocab), np.nan, np.float32))
        row_logits = Watched(logits)
        counts = Watched(np.zeros(vocab, np.int32))
        ids = Watched(np.full(alternatives, -77, np.int32))
        scores = Watched(np.full(alternatives, np.nan, np.float64))
        inputs = [
            np.array(list(values), dtype)
            for values, dtype in [
                (generated, np.int32),
                (prompt, np.int32),
                ((bias or {}).keys(), np.int32),
                ((bias or {}).values(), np.float64),
            ]
        ]
        generated_ids, prompt_ids, bias_ids, biases = (array.ctypes.data for array in inputs)
        mask = None if allowed is None else mask_words(allowed)
        row = Row(
            seed=seed,
            counter=position,
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            top_k=top_k,
            wants_log_probability=wants_log_probability,
            alternatives=alternatives,
            target=target,
            generated=generated_ids,
            generated_count=len(generated),
            prompt_count=len(prompt),
            prompt=prompt_ids,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            bias_ids=bias_ids,
            biases=biases,
            bias_count=len(bias or {}),
            mask=None if mask is None else mask.ctypes.data,
        )
        drawn = Drawn(-77, -77, np.nan)
        self._library.sample(
            row_logits.pointer,
            ctypes.c_int32(vocab),
            ctypes.byref(row),
            scratch.pointer,
            counts.pointer,
            ctypes.byref(drawn),
            ids.pointer,
            scores.pointer,
        )
        for watched in (scratch, row_logits, counts, ids, scores):
            watched.check()
        assert not counts.inside.any()
        np.testing.assert_array_equal(row_logits.inside, logits)
        reported = (
            tuple(zip(ids.inside.tolist(), scores.inside.tolist(), strict=True)) if drawn.status != NOT_FINITE else ()
        )
        return Result(drawn.token, drawn.status, drawn.log_probability, reported)


class Watched:
    """A copy of an array between guards that must stay as they are."""

    def __init__(self, inside: npt.NDArray[Any]) -> None:
        # a NaN that is read poisons the result; a number that is overwritten is seen
        self._all = np.full(len(inside) + 2 * GUARD, -55, inside.dtype)
        if inside.dtype.kind == "f":
            self._all[:] = np.nan
        self.inside = self._all[GUARD : GUARD + len(inside)]
        self.inside[:] = inside
        self._before = self._guards()
        self.pointer = ctypes.c_void_p(self.inside.ctypes.data)

    def _guards(self) -> bytes:
        return self._all[:GUARD].tobytes() + self._all[len(self._all) - GUARD :].tobytes()

    def check(self) -> None:
        assert self._guards() == self._before


def mask_words(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Bit i % 32 of word i / 32 for token i; the bits after the last token are set, and must mean nothing."""
    padded = np.ones(-(-len(allowed) // 32) * 32, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4")


def levels_here() -> list[str]:
    """The levels whose instructions this machine has."""
    if LEVELS is ARM_LEVELS:
        return list(LEVELS)
    if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists():
        return ["portable"]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = set(next(line for line in lines if line.startswith("flags")).split())
    needs = {
        level: {flag.removeprefix("-m").replace("avx512vnni", "avx512_vnni") for flag in LEVELS[level]}
        for level in LEVELS
    }
    return [level for level in LEVELS if needs[level] <= has]


@pytest.fixture(scope="session")
def native_samplers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NativeSampler]:
    """The sampler at each level of this machine. CXX and CXXFLAGS have their usual meaning, for sanitizers."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("sampler")
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    samplers = {}
    for level in levels_here():
        library = folder / f"{level}.so"
        command = [compiler, *FLAGS, *LEVELS[level], *extra, f"-DLEVEL={level}", f"-I{KERNELS}"]
        subprocess.run([*command, str(HERE / "sampler_abi.cpp"), "-o", str(library)], check=True)
        samplers[level] = NativeSampler(ctypes.CDLL(str(library)))
    return samplers


@pytest.fixture(params=list(LEVELS))
def native_sampler(request: pytest.FixtureRequest, native_samplers: dict[str, NativeSampler]) -> NativeSampler:
    """The sampler of one level after the other."""
    if request.param not in native_samplers:
        pytest.skip(f"this machine has no {request.param}")
    return native_samplers[request.param]
