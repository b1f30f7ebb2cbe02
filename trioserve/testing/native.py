"""Calls single functions of the native CPU kernels on numpy arrays, and makes weights for them.

Owns: the wrappers, and random blocks of every kind. Must not know: models, steps.

What the library is to write is poisoned before, and watched around, so that a result that was not written, or one too
many, is an error.
"""

from __future__ import annotations

import ctypes
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
from trioserve_kernels.cpu.library import ACTIVATIONS, KINDS, KV_TYPES, load_library

Array = npt.NDArray[np.float32]

BLOCK_VALUES: Final = {"F32": 1, "F16": 1, "BF16": 1, "Q4_0": 32, "Q4_1": 32, "Q8_0": 32, "Q4_K": 256, "Q6_K": 256}
"""Values in a block: a row's width is a multiple of it."""
_GUARD: Final = 64
_POISON: Final = 0x7FC0DEAD
"""A NaN that no computation makes."""


@attrs.frozen
class Blocks:
    """A matrix as a file stores it."""

    kind: str
    rows: int
    width: int
    data: bytes

    def dequantised(self) -> Array:
        """[rows, width], by the library."""
        out = _Output((self.rows, self.width))
        load_library().trioserve_dequantise(KINDS[self.kind], self.data, self.rows, self.width, out.pointer)
        return out.take()


def random_blocks(kind: str, rows: int, width: int, seed: int = 0) -> Blocks:
    """A matrix of random bits, except that its scales are ordinary numbers, some of them negative."""
    random = np.random.default_rng((seed, rows, width))
    if BLOCK_VALUES[kind] == 1:
        values = random.standard_normal((rows, width)).astype("<f4")
        if kind == "F32":
            return Blocks(kind, rows, width, values.tobytes())
        if kind == "F16":
            return Blocks(kind, rows, width, values.astype("<f2").tobytes())
        return Blocks(kind, rows, width, (values.view("<u4") >> 16).astype("<u2").tobytes())
    layout = {
        "Q4_0": [("d", "<f2"), ("q", "u1", 16)],
        "Q4_1": [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)],
        "Q8_0": [("d", "<f2"), ("q", "u1", 32)],
        "Q4_K": [("d", "<f2"), ("m", "<f2"), ("q", "u1", 140)],
        "Q6_K": [("q", "u1", 208), ("d", "<f2")],
    }[kind]
    count = rows * width // BLOCK_VALUES[kind]
    blocks = np.frombuffer(random.bytes(count * np.dtype(layout).itemsize), layout).copy()
    for name in {"d", "m"} & set(blocks.dtype.names or ()):
        blocks[name] = random.standard_normal(count) / 64
    return Blocks(kind, rows, width, blocks.tobytes())


def multiply(level: str, blocks: Blocks, x: Array) -> Array:
    """[C, rows]: ``x`` [C, width] times the matrix, transposed."""
    assert x.dtype == np.float32
    assert x.shape[1] == blocks.width
    x = np.ascontiguousarray(x)
    out = _Output((len(x), blocks.rows))
    failed = load_library().trioserve_multiply(
        level.encode(), KINDS[blocks.kind], blocks.data, blocks.rows, blocks.width, x.ctypes.data, len(x), out.pointer
    )
    assert not failed, f"no level {level}, or no rows of {blocks.width} {blocks.kind} values"
    return out.take()


def rms_norm(level: str, x: Array, weight: Array, epsilon: float) -> Array:
    """[W]: the norm of a row of W values."""
    padded = -(-len(x) // 32) * 32
    own_x, own_weight = np.zeros((2, padded), np.float32)
    own_x[: len(x)], own_weight[: len(x)] = x, weight
    out = _Output((padded,))
    _call("rms_norm", level, own_x, own_weight, len(x), ctypes.c_float(epsilon), out)
    normed = out.take()
    assert not normed[len(x) :].any()
    return normed[: len(x)]


def gate(level: str, activation: str, gates: Array, ups: Array) -> Array:
    """activation(gates) * ups, for a multiple of 16 values."""
    out = _Output(gates.shape)
    _call("gate", level, ACTIVATIONS.index(activation), gates, ups, len(gates), out)
    return out.take()


def soft_cap(level: str, x: Array, cap: float) -> Array:
    """cap * tanh(x / cap), for a multiple of 16 values."""
    capped = x.copy()
    _call("soft_cap", level, capped, len(x), ctypes.c_float(cap))
    return capped


def to_halves(level: str, x: Array) -> npt.NDArray[np.uint16]:
    """The bits of x as float16, for a multiple of 16 values."""
    halves = np.zeros(len(x), np.uint16)
    _call("store_halves", level, x, len(x), halves)
    return halves


def attend(
    level: str,
    queries: Array,
    keys: Array,
    values: Array,
    *,
    kv_type: str = "float16",
    soft_cap: float = 0.0,
    window: int = 0,
    stale: int = 0,
) -> Array:
    """[Q, D]: what the last of T tokens sees: queries [Q, D] of one KV head, keys and values [T, D].

    Keys and values are stored as ``kv_type``. ``stale`` are the bits, 16 at a time, that lie in the last page after the
    last token.
    """
    count, dim = queries.shape
    out = _Output((count, dim))
    shape, mask = (KV_TYPES.index(kv_type), count, dim), (ctypes.c_float(soft_cap), window, len(keys))
    _call("attend", level, *shape, *mask, *map(np.ascontiguousarray, (queries, keys, values)), stale, out)
    return out.take()


class _Output:
    """Memory to write an array to, between guards."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._count = int(np.prod(shape))
        self._words = np.full(self._count + 2 * _GUARD, _POISON, np.uint32)
        self.pointer = ctypes.c_void_p(self._words.ctypes.data + 4 * _GUARD)

    def take(self) -> Array:
        """What was written, once all of it was, and nothing beside it."""
        inside = self._words[_GUARD : _GUARD + self._count]
        assert (inside != _POISON).all(), "not all results were written"
        assert (self._words == _POISON).sum() == 2 * _GUARD, "memory beside the results was written"
        return inside.view(np.float32).reshape(self._shape)


def _call(name: str, level: str, *arguments: object) -> None:
    def native(argument: object) -> object:
        if isinstance(argument, _Output):
            return argument.pointer
        return ctypes.c_void_p(argument.ctypes.data) if isinstance(argument, np.ndarray) else argument

    function = getattr(load_library(), f"trioserve_{name}")
    assert not function(level.encode(), *map(native, arguments)), f"this machine has no level {level}"
