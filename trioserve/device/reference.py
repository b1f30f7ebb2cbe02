"""The reference device: float32 torch, short and slow, the oracle for every other device.

Owns: loading weights, and turning a StepPlan into tiles of tokens and rows to draw.
Must not know: requests, trio. It trusts the scheduler: pages in a plan are its sequences' own.

A step: copy pages; compute the tokens of the spans, tile by tile; compute the logits that rows ask for; draw the rows.
The logits of a token, and what is drawn from them, are the same bit for bit whatever else is in the plan, however its
prompt was cut into spans, and in whichever pages it lies. (decoder.py says why.)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trioserve.abc import DeviceInfo, Progress, no_progress
from trioserve.device.decoder import TILE, Decoder, Tile
from trioserve.device.limits import check_memory, resolve_context_length
from trioserve.device.pages import KVPages
from trioserve.device.rows import check_ids, draw_rows
from trioserve.errors import DeviceError
from trioserve.model.loaded import LoadedModel
from trioserve.model.spec import DecoderSpec
from trioserve.step import SpanArrays, StepPlan, StepResult

Floats = npt.NDArray[np.float32]
FLOAT32_BYTES = 4


class ReferenceDevice:
    """An abc.Device. Made by ``load``."""

    def __init__(self, decoder: Decoder, pages: KVPages, info: DeviceInfo, threads: int | None) -> None:
        self._decoder: Decoder | None = decoder
        self._pages: KVPages | None = pages
        self._info = info
        self._threads = threads
        self._interrupted = threading.Event()

    @classmethod
    def load(
        cls,
        model: LoadedModel,
        *,
        page_size: int,
        page_count: int,
        context_length: int | None = None,
        torch_device: str = "cpu",
        threads: int | None = None,
        progress: Progress = no_progress,
    ) -> ReferenceDevice:
        """Read all weights of ``model``, which may be closed afterwards. Blocks.

        Args:
            model: what to run.
            page_size: tokens per KV page.
            page_count: KV pages in all.
            context_length: tokens per sequence at most; None: what the model was made for.
            torch_device: where torch computes. The promise of equal bits is for the CPU.
            threads: CPU threads; None: torch's own choice.
            progress: told the float32 bytes loaded.

        Raises:
            ParamError: the model was not made for so long a context, or there is no memory for so many pages.
            DeviceError: there is no memory for the weights.
        """
        spec = model.spec
        context_length = resolve_context_length(spec, context_length)
        device = torch.device(torch_device)
        info = DeviceInfo(
            name=f"reference (float32, {device})",
            vocab_size=spec.vocab_size,
            context_length=context_length,
            page_size=page_size,
            page_count=page_count,
            batch_tokens=4 * TILE,
            embedding_dim=spec.embedding_dim,
            weight_bytes=_weight_bytes(spec),
            kv_bytes=page_count * page_size * spec.layers * spec.kv_heads * spec.head_dim * 2 * FLOAT32_BYTES,
        )
        check_memory(page_count * page_size, info.kv_bytes, info.weight_bytes)
        pages = KVPages(spec, page_count, page_size, device)
        return cls(Decoder(spec, _load_weights(model, device, progress)), pages, info, threads)

    def __repr__(self) -> str:
        state = "closed" if self._decoder is None else "interrupted" if self._interrupted.is_set() else "ready"
        return f"<ReferenceDevice {self._info.name}, {state}>"

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def run(self, plan: StepPlan) -> StepResult:
        """As abc.Device.run.

        Raises:
            DeviceError: it was interrupted.
            FloatingPointError: logits or hidden states are not finite numbers.
            IndexError: a token id is not in the vocabulary.
        """
        check_ids(plan, self._info.vocab_size)
        logits, hidden = self._compute(plan)
        return draw_rows(plan, logits, hidden)

    def logits(self, plan: StepPlan) -> dict[int, Floats]:
        """Run a step up to its logits: [V] for each token that a row is drawn from, by its index in the plan.

        Raises: as ``run``.
        """
        logits, _ = self._compute(plan)
        return logits

    def _compute(self, plan: StepPlan) -> tuple[dict[int, Floats], list[memoryview]]:
        """The logits, and the hidden states of the result."""
        assert self._decoder is not None, "the device is closed"
        assert self._pages is not None
        if self._threads is not None:
            # a setting of the calling thread, and loading happened in another
            torch.set_num_threads(self._threads)
        wanted = sorted(set(plan.rows.tokens))
        self._check_interrupt()
        with torch.inference_mode():
            for source, target in zip(plan.copies[::2], plan.copies[1::2], strict=True):
                self._pages.copy(source, target)
            tiles = []
            for tile in self._tiles(plan.spans, self._pages):
                tiles.append(self._decoder.hidden(tile, self._pages))
                self._check_interrupt()
            if not tiles:
                return {}, []
            states = torch.cat(tiles)
            logits = self._decoder.logits(states[wanted]).numpy(force=True) if wanted else ()
            hidden = states[list(plan.hidden)].numpy(force=True)
        for name, tokens, values in (("logits", wanted, logits), ("hidden states", plan.hidden, hidden)):
            for token, row in zip(tokens, values, strict=True):
                if not np.isfinite(row).all():
                    position = plan.spans.positions[token]
                    raise FloatingPointError(f"Step {plan.number}: the {name} at position {position} are not finite.")
        return dict(zip(wanted, logits, strict=True)), [memoryview(state) for state in hidden]

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._decoder = None
        self._pages = None

    def _check_interrupt(self) -> None:
        if self._interrupted.is_set():
            raise DeviceError("The step was interrupted.")

    def _tiles(self, spans: SpanArrays, pages: KVPages) -> Iterator[Tile]:
        """The tokens of all spans in order, cut without regard to where spans begin."""
        contexts: list[Tensor] = []
        for s in range(len(spans.starts) - 1):
            span = spans.positions[spans.starts[s] : spans.starts[s + 1]]
            slots = pages.slots(spans.pages[spans.page_starts[s] : spans.page_starts[s + 1]])
            assert span, f"span {s} is empty"
            assert span[-1] < self._info.context_length, f"span {s} is past the end of the context"
            assert span[-1] < len(slots), f"span {s} is past the end of its pages"
            contexts += [slots[: position + 1] for position in span]
        tokens = torch.tensor(spans.tokens, dtype=torch.int64, device=pages.device)
        positions = torch.tensor(spans.positions, dtype=torch.int64, device=pages.device)
        for start in range(0, len(tokens), TILE):
            cut = slice(start, start + TILE)
            own = torch.stack([context[-1] for context in contexts[cut]])
            yield Tile(tokens[cut], positions[cut], own, contexts[cut])


def _weight_bytes(spec: DecoderSpec) -> int:
    return FLOAT32_BYTES * sum(math.prod(shape) for shape in spec.weight_shapes().values())


def _load_weights(model: LoadedModel, device: torch.device, progress: Progress) -> dict[str, Tensor]:
    """Every weight as a float32 tensor, one after another, so that no more than one is in memory twice."""
    shapes = model.spec.weight_shapes()
    total = _weight_bytes(model.spec)
    done = 0
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        progress("loading", done, total)
        # copied, since numpy aligns memory less strictly than torch does
        tensors[name] = torch.from_numpy(model.weights.float32(name)).to(device, copy=True)
        assert tensors[name].shape == shape, name
        done += FLOAT32_BYTES * math.prod(shape)
    progress("loading", done, total)
    return tensors
