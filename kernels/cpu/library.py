"""Calls the native library of CPU kernels.

Owns: where the library lies, its C interface, and the lifetime of a native decoder. Must not know: trioserve.

ctypes releases the interpreter's lock for the length of a call, so a step leaves other threads alone.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KINDS: Final = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
"""The kinds of weights that can be packed, with the numbers that GGUF files have for them."""
PAGE_TOKENS: Final = 16
"""Tokens in a page of keys and values."""
KV_TYPES: Final = ("float16", "float32", "int8")
"""What keys and values may be stored as; the library knows them by their index."""
ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh")
"""A spec's activation is an index in this."""

_NO_MEMORY: Final = "there is not enough memory"
_OUTCOMES: Final = {
    1: "it was interrupted",
    2: "the logits have no finite maximum",
    3: _NO_MEMORY,
    4: "an id or a position in the step is out of range",
    5: "a matcher gave no mask",
}

_FAILURES: Final = {
    1: "it is not of a kind or shape that the kernels can use",
    3: "the system gives no more threads",
}

_I32 = ctypes.c_int32
_F32 = ctypes.c_float
_POINTER = ctypes.c_void_p


class NativeError(Exception):
    """The library is missing, or refused something. Says what, as a sentence without its full stop."""


class NativeMemoryError(NativeError):
    """There is not enough memory."""


class NativeSpec(ctypes.Structure):
    """struct Spec of weights.h."""

    _fields_ = (
        *((name, _I32) for name in ("vocab_size", "layers", "heads", "kv_heads", "head_dim", "embedding_dim")),
        *((name, _I32) for name in ("feed_forward_dim", "rope_dim", "rope_interleaved", "activation", "tied_head")),
        ("sliding_window", _I32),
        *((name, _F32) for name in ("norm_eps", "attention_scale", "attention_soft_cap", "logit_soft_cap")),
        *((name, _F32) for name in ("embedding_scale", "residual_scale", "logit_scale")),
    )


class NativeChanges(ctypes.Structure):
    """struct Changes of decoder.h."""

    _fields_ = (
        *((name, _I32) for name in ("count", "generated_count", "prompt_count", "bias_count", "mask_count")),
        *((name, _POINTER) for name in ("rows", "presence_penalties", "frequency_penalties", "repetition_penalties")),
        *((name, _POINTER) for name in ("generated", "generated_starts", "prompts", "prompt_starts")),
        *((name, _POINTER) for name in ("bias_ids", "bias_starts", "biases", "mask_indices", "masks")),
        ("mask_ticket", ctypes.c_int64),
    )


class NativeStep(ctypes.Structure):
    """struct Step of decoder.h."""

    _fields_ = (
        *(
            (name, _I32)
            for name in ("copy_count", "span_count", "token_count", "group_count", "row_count", "page_entry_count")
        ),
        *((name, _POINTER) for name in ("copies", "tokens", "positions", "starts", "pages", "page_starts", "shared")),
        *((name, _POINTER) for name in ("row_tokens", "seeds", "counters", "temperatures", "top_ps", "min_ps")),
        *((name, _POINTER) for name in ("top_ks", "wants_log_probability", "targets", "top_starts", "changes")),
        ("hidden_count", _I32),
        *((name, _POINTER) for name in ("hidden_tokens", "drawn", "log_probabilities", "top_ids")),
        *((name, _POINTER) for name in ("top_log_probabilities", "hidden", "logits")),
    )


def library_path() -> Path | None:
    """Where the library was installed; None: it was not, for want of a compiler."""
    found = sorted(Path(__file__).parent.glob("libtrioserve_cpu.*"))
    return found[0] if found else None


@functools.cache
def load_library() -> ctypes.CDLL:
    """The library.

    Raises:
        NativeError: it was not built, or can't be loaded.
    """
    path = library_path()
    if path is None:
        raise NativeError("trioserve was installed without its native kernels, since there was no C++ compiler")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native kernels can't be loaded: {error}") from error
    signatures: dict[str, tuple[type | None, Sequence[type]]] = {
        "level": (ctypes.c_char_p, (_I32,)),
        "decoder_new": (_POINTER, (_POINTER, _POINTER, _POINTER, _I32, _I32, _I32, ctypes.c_char_p, _POINTER)),
        "decoder_delete": (None, (_POINTER,)),
        "decoder_set": (_I32, (_POINTER, ctypes.c_char_p, _I32, _I32, _POINTER)),
        "decoder_weight_bytes": (ctypes.c_size_t, (_POINTER,)),
        "page_bytes": (ctypes.c_size_t, (_I32, _I32, _I32)),
        "decoder_run": (_I32, (_POINTER, _POINTER)),
        "decoder_interrupt": (None, (_POINTER,)),
        "decoder_masks_filled": (None, (_POINTER, ctypes.c_int64, _I32)),
        "row_bytes": (ctypes.c_size_t, (_I32, _I32)),
        "packed_bytes": (ctypes.c_size_t, (_I32, _I32, _I32)),
        "dequantise": (None, (_I32, _POINTER, _I32, _I32, _POINTER)),
        "multiply": (_I32, (ctypes.c_char_p, _I32, _POINTER, _I32, _I32, _POINTER, _I32, _POINTER)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"trioserve_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def levels() -> list[str]:
    """The instruction set levels that this machine can run, the fastest first; all give the same bits.

    Raises:
        NativeError: as load_library.
    """
    library, names = load_library(), list[str]()
    while (name := library.trioserve_level(len(names))) is not None:
        names.append(name.decode())
    return names


def page_bytes(kv_type: str, kv_heads: int, head_dim: int) -> int:
    """Bytes of a page of keys and values in one layer.

    Args:
        kv_type: one of KV_TYPES.
        kv_heads: KV heads of the layer.
        head_dim: values of a key, and of a value, in each of them.

    Raises:
        NativeError: as load_library.
    """
    size: int = load_library().trioserve_page_bytes(KV_TYPES.index(kv_type), kv_heads, head_dim)
    return size


def packed_bytes(kind: str, rows: int, width: int) -> int:
    """Bytes that a matrix of a kind, one of KINDS, takes when it is packed.

    Raises:
        NativeError: as load_library.
    """
    size: int = load_library().trioserve_packed_bytes(KINDS[kind], rows, width)
    return size


def address(values: array[int] | array[float]) -> int:
    """Where an array's items lie, for as long as the array lives and does not grow."""
    return values.buffer_info()[0]


def _failed(failure: int) -> NativeError:
    return NativeMemoryError(_NO_MEMORY) if failure == 2 else NativeError(_FAILURES[failure])


class NativeDecoder:
    """A decoder and its pages, made without weights. One thread at a time may use it, but for ``interrupt``."""

    def __init__(
        self,
        spec: NativeSpec,
        frequencies: Sequence[float],
        windows: Sequence[bool],
        *,
        page_count: int,
        kv_type: str,
        threads: int,
        level: str,
    ) -> None:
        """
        Args:
            spec: the model's numbers.
            frequencies: [rope_dim / 2] radians per position.
            windows: [layers] whether a layer sees no more than the sliding window.
            page_count: pages of PAGE_TOKENS tokens.
            kv_type: what keys and values are stored as: one of KV_TYPES.
            threads: that compute, the caller's included.
            level: one of ``levels()``.

        Raises:
            NativeError: there is no such level, no memory (NativeMemoryError), or no thread.
        """
        if level not in levels():
            raise NativeError(f"this machine has no level {level}")
        self._library = load_library()
        own_frequencies, own_windows, failure = array("d", frequencies), bytes(windows), _I32()
        self._decoder: int | None = self._library.trioserve_decoder_new(
            ctypes.byref(spec),
            address(own_frequencies),
            own_windows,
            page_count,
            KV_TYPES.index(kv_type),
            threads,
            level.encode(),
            ctypes.byref(failure),
        )
        if self._decoder is None:
            raise _failed(failure.value)
        # also for one that nobody closes: whoever was to get it may have been cancelled
        self._free = weakref.finalize(self, self._library.trioserve_decoder_delete, self._decoder)

    def set(self, name: str, layer: int, kind: str, data: int) -> None:
        """Pack a weight.

        Args:
            name: as in DecoderSpec.weight_shapes, without its layer.
            layer: -1 for weights of no layer.
            kind: one of KINDS.
            data: the address of its first byte.

        Raises:
            NativeError: the weight can't be used, or there is no memory.
        """
        if kind not in KINDS:
            raise NativeError(f"the kernels have no weights of kind {kind}")
        failure = self._library.trioserve_decoder_set(self._decoder, name.encode(), layer, KINDS[kind], data)
        if failure:
            raise _failed(failure)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        size: int = self._library.trioserve_decoder_weight_bytes(self._decoder)
        return size

    def run(self, step: NativeStep) -> None:
        """Run a step; its results are where the step says.

        Raises:
            NativeError: what went wrong.
        """
        outcome = self._library.trioserve_decoder_run(self._decoder, ctypes.byref(step))
        if outcome:
            raise NativeError(_OUTCOMES[outcome])

    def interrupt(self) -> None:
        """Make the running step, and any later one, fail soon. Any thread may call it, but not after ``close``."""
        self._library.trioserve_decoder_interrupt(self._decoder)

    def masks_filled(self, ticket: int, *, ok: bool) -> None:
        """Say that the masks of the step with this ticket are there, or that there will be none and the step fails.

        Tickets ascend from 1. Any thread may call it, but not after ``close``.
        """
        self._library.trioserve_decoder_masks_filled(self._decoder, ticket, ok)

    def close(self) -> None:
        """Free all memory. Idempotent."""
        self._free()
        self._decoder = None
