"""The CPU device: quantised weights and one native call for each step.

Owns: loading a model into the native decoder, and handing it plans. Must not know: requests, trio, how the native code
computes. torch is not imported here: a GGUF file is served without it.

The logits of a token, and what is drawn from them, are the same bit for bit whatever else is in the plan, however its
prompt was cut into spans, in whichever pages it lies, with any number of threads, and at every instruction set level.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

import numpy as np
import numpy.typing as npt
from trioserve_kernels.cpu.library import (
    ACTIVATIONS,
    KINDS,
    PAGE_TOKENS,
    NativeDecoder,
    NativeError,
    NativeMemoryError,
    NativeSpec,
    levels,
    load_library,
    packed_bytes,
    page_bytes,
)

from trioserve.abc import DeviceInfo, KvType, Progress, no_progress
from trioserve.device.frequencies import rope_frequencies
from trioserve.device.limits import check_memory, resolve_context_length
from trioserve.device.masks import MaskFiller, MaskJob, distinct, new_masks
from trioserve.device.native_step import Results, is_whole, native_changes, native_step
from trioserve.errors import DeviceError, ParamError
from trioserve.model.loaded import LoadedModel
from trioserve.model.spec import DecoderSpec
from trioserve.step import StepPlan, StepResult

BATCH_TOKENS: Final = 512
FREE_ROWS: Final = 6
"""A step of so many rows takes less than twice as long as one of a single row, which mostly waits for memory."""
LANES: Final = 16
"""Widths that the kernels are made for are multiples of this."""
MOST_HEAD_DIM: Final = 256
MOST_QUERIES_PER_HEAD: Final = 64


def unsupported(model: LoadedModel) -> str | None:
    """Why the CPU device can't run a model, as a sentence without its full stop; None if it can."""
    spec = model.spec
    try:
        load_library()
    except NativeError as error:
        return str(error)
    if spec.head_dim % LANES or spec.head_dim > MOST_HEAD_DIM:
        return f"the model's heads have {spec.head_dim} dimensions, not a multiple of {LANES} up to {MOST_HEAD_DIM}"
    if spec.heads // spec.kv_heads > MOST_QUERIES_PER_HEAD:
        return f"{spec.heads // spec.kv_heads} heads share a KV head, more than {MOST_QUERIES_PER_HEAD}"
    for name in spec.weight_shapes():
        kind = model.weights.raw(name).kind
        if kind not in KINDS:
            return f"the model's weight {name} is of kind {kind}"
    return None


class CpuDevice:
    """An abc.Device. Made by ``load``."""

    def __init__(self, decoder: NativeDecoder, info: DeviceInfo) -> None:
        self._decoder: NativeDecoder | None = decoder
        self._info = info
        # interrupt(), or masks, may come from another thread at any time, also while the decoder is being closed
        self._lock = threading.Lock()
        self._filler = MaskFiller()
        self._tickets = itertools.count(1)

    @classmethod
    def load(
        cls,
        model: LoadedModel,
        *,
        page_count: int,
        context_length: int | None = None,
        kv_type: KvType = "float16",
        threads: int,
        level: str | None = None,
        progress: Progress = no_progress,
    ) -> CpuDevice:
        """Pack the weights of ``model``, which may be closed afterwards. Blocks.

        Args:
            model: what to run; one that is not ``unsupported``.
            page_count: KV pages of 16 tokens in all.
            context_length: tokens per sequence at most; None: what the model was made for.
            kv_type: what keys and values are stored as. Of int8, each token's key and its value in each KV head have a
                scale of their own.
            threads: CPU threads.
            level: instruction set level; None: the fastest of the machine.
            progress: told the bytes read.

        Raises:
            ParamError: the model was not made for so long a context, or the machine has no memory for the pages.
            DeviceError: the native kernels are missing, or there is no memory for the weights.
        """
        spec = model.spec
        context_length = resolve_context_length(spec, context_length)
        level = level or _fastest_level()
        kv_bytes = page_count * spec.layers * page_bytes(kv_type, spec.kv_heads, spec.head_dim)
        check_memory(page_count * PAGE_TOKENS, kv_bytes, _packed_bytes(model))
        decoder = _new_decoder(spec, page_count, kv_type, threads, level)
        try:
            _pack(model, decoder, progress)
        except BaseException:
            decoder.close()
            raise
        parts = [level, f"{threads} {'thread' if threads == 1 else 'threads'}"]
        if kv_type != "float16":
            parts.append(f"{kv_type} keys and values")
        info = DeviceInfo(
            name=f"cpu ({', '.join(parts)})",
            vocab_size=spec.vocab_size,
            context_length=context_length,
            page_size=PAGE_TOKENS,
            page_count=page_count,
            batch_tokens=BATCH_TOKENS,
            free_rows=FREE_ROWS,
            weight_bytes=decoder.weight_bytes,
            kv_bytes=kv_bytes,
            embedding_dim=spec.embedding_dim,
        )
        return cls(decoder, info)

    def __repr__(self) -> str:
        return f"<CpuDevice {self._info.name}{', closed' if self._decoder is None else ''}>"

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def run(self, plan: StepPlan) -> StepResult:
        """As abc.Device.run.

        Raises:
            DeviceError: it was interrupted, or there is no memory.
        """
        return self._run(plan, None)

    def logits(self, plan: StepPlan) -> dict[int, npt.NDArray[np.float32]]:
        """Run a step: [V] for each token that a row is drawn from, by its index in the plan."""
        logits = np.empty((len(plan.rows.tokens), self._info.vocab_size), np.float32)
        self._run(plan, logits)
        return dict(zip(plan.rows.tokens, logits, strict=True))

    def interrupt(self) -> None:
        with self._lock:
            if self._decoder is not None:
                self._decoder.interrupt()

    def close(self) -> None:
        with self._lock:
            if self._decoder is not None:
                self._decoder.close()
                self._decoder = None
            self._filler.close()

    def _run(self, plan: StepPlan, logits: npt.NDArray[np.float32] | None) -> StepResult:
        assert self._decoder is not None, "the device is closed"
        if not is_whole(plan):
            raise DeviceError(f"Step {plan.number} failed: its arrays do not fit together.")
        changes, job = None, None
        if plan.rows.changes.rows:
            matchers, mask_indices = distinct(plan.rows.changes.matchers)
            masks, ticket = new_masks(len(matchers), self._info.vocab_size), next(self._tickets)
            changes = native_changes(plan.rows.changes, mask_indices, masks, ticket)
            job = MaskJob(matchers, masks, lambda job: self._tell_masks(ticket, ok=job.error is None))
        results = Results.of(plan, vocab_size=self._info.vocab_size, embedding_dim=self._info.embedding_dim)
        step = native_step(plan, results, changes=changes, logits=logits)
        if job is not None and job.matchers:
            self._filler.submit(job)
        try:
            self._decoder.run(step)
        except NativeError as error:
            if job is not None and job.error is not None:
                raise DeviceError(f"Step {plan.number} failed: a matcher gave no mask.") from job.error
            raise DeviceError(f"Step {plan.number} failed: {error}.") from error
        finally:
            if job is not None:
                job.abandoned = True
        if results.hidden and not np.isfinite(results.hidden).all():
            raise DeviceError(f"Step {plan.number} failed: a hidden state is not finite.")
        return results.result(plan)

    def _tell_masks(self, ticket: int, *, ok: bool) -> None:
        with self._lock:
            if self._decoder is not None:
                self._decoder.masks_filled(ticket, ok=ok)


def _fastest_level() -> str:
    try:
        return levels()[0]
    except NativeError as error:
        raise DeviceError(f"The CPU device can't be used: {error}.") from error


def _new_decoder(spec: DecoderSpec, page_count: int, kv_type: str, threads: int, level: str) -> NativeDecoder:
    """A decoder without weights."""
    windows = [layer in spec.sliding_layers for layer in range(spec.layers)]
    try:
        return NativeDecoder(
            _native_spec(spec),
            rope_frequencies(spec.rope),
            windows,
            page_count=page_count,
            kv_type=kv_type,
            threads=threads,
            level=level,
        )
    except NativeMemoryError as error:
        tokens = page_count * PAGE_TOKENS
        raise ParamError(
            f"kv_tokens is too large: {error} for the keys and values of {tokens} tokens.", "kv_tokens"
        ) from error
    except NativeError as error:
        raise DeviceError(f"The CPU device can't be made: {error}.") from error


def _native_spec(spec: DecoderSpec) -> NativeSpec:
    return NativeSpec(
        vocab_size=spec.vocab_size,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        embedding_dim=spec.embedding_dim,
        feed_forward_dim=spec.feed_forward_dim,
        rope_dim=spec.rope.dim,
        rope_interleaved=spec.rope.interleaved,
        activation=ACTIVATIONS.index(spec.activation),
        tied_head=spec.tied_head,
        sliding_window=spec.sliding_window or 0,
        norm_eps=spec.norm_eps,
        attention_scale=spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale,
        attention_soft_cap=spec.attention_soft_cap or 0.0,
        logit_soft_cap=spec.logit_soft_cap or 0.0,
        embedding_scale=spec.embedding_scale,
        residual_scale=spec.residual_scale,
        logit_scale=spec.logit_scale,
    )


def _packed_bytes(model: LoadedModel) -> int:
    """What the matrices of a model take in a decoder, known before any is packed."""
    size = 0
    for name, shape in model.spec.weight_shapes().items():
        if len(shape) == 1:
            continue
        raw = model.weights.raw(name)
        is_embedding, tied = name == "embedding", model.spec.tied_head
        if not is_embedding or tied:
            size += packed_bytes(raw.kind, *shape)
        # of a packed Q8_0 matrix, rows can be read as they were
        if is_embedding and not (tied and raw.kind == "Q8_0"):
            size += len(raw.data)
    return size


def _pack(model: LoadedModel, decoder: NativeDecoder, progress: Progress) -> None:
    shapes = model.spec.weight_shapes()
    total = sum(len(model.weights.raw(name).data) for name in shapes)
    done = 0
    for name, shape in shapes.items():
        progress("loading", done, total)
        raw = model.weights.raw(name)
        _, layer, part = name.split(".") if name.startswith("layers.") else ("", "-1", name)
        try:
            if len(shape) == 1:
                vector = model.weights.float32(name)
                decoder.set(part, int(layer), "F32", vector.ctypes.data)
            else:
                decoder.set(part, int(layer), raw.kind, np.frombuffer(raw.data, np.uint8).ctypes.data)
        except NativeError as error:
            raise DeviceError(f"The weight {name} can't be packed: {error}.") from error
        done += len(raw.data)
    progress("loading", done, total)
