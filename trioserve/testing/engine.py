"""A real engine on a fake device: everything but the model, in virtual time.

Owns: open_fake_engine and the usual scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import ModelInfo
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.testing.device import Draw, FakeDevice, Score, Script, varied_score
from trioserve.testing.tokenizer import EOS, ByteTokenizer
from trioserve.text.template import ChatTemplate

FAKE_MODEL = "tiny-chat"
FAKE_OPTIONS = EngineOptions(pick_seed=lambda: 0, inline_characters=2**31, compile_seconds=None)
"""Unseeded choices get the seeds 0, 1, ...; and nothing is tokenized or compiled in a thread."""
FAKE_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)


def say(texts: str | bytes | Sequence[str | bytes] | Mapping[int, str | bytes]) -> Script:
    """A script in which the choice with seed s says ``texts[s]`` (or the one text) byte by byte, then ends."""
    if isinstance(texts, (str, bytes)):
        only = texts
        find: Callable[[int], str | bytes] = lambda seed: only  # noqa: E731
    else:
        many = texts
        find = lambda seed: many[seed]  # noqa: E731

    def script(draw: Draw) -> int:
        text = find(draw.seed)
        data = text.encode() if isinstance(text, str) else text
        return data[len(draw.generated)] if len(draw.generated) < len(data) else EOS

    return script


def say_ids(ids: Sequence[int]) -> Script:
    """A script in which every choice says these token ids, then ends."""
    return lambda draw: ids[len(draw.generated)] if len(draw.generated) < len(ids) else EOS


def count_for_ever(draw: Draw) -> int:
    """A script that never ends: a digit for each token, different for each seed."""
    return ord("0") + (len(draw.generated) + draw.seed) % 10


def open_fake_engine(
    script: Script = count_for_ever,
    *,
    options: EngineOptions = FAKE_OPTIONS,
    tokenizer: ByteTokenizer | None = None,
    context_length: int = 4096,
    page_count: int = 1024,
    step_seconds: float = 0.01,
    free_rows: int = 0,
    embedding_dim: int = 0,
    score: Score = varied_score,
    template: str | ChatTemplate | None = FAKE_TEMPLATE,
) -> tuple[EngineBlock, FakeDevice]:
    """An engine block over a FakeDevice that runs ``script``, and the device, to look at what it was asked."""
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    info = DeviceInfo(
        name="fake",
        vocab_size=tokenizer.vocab_size,
        context_length=context_length,
        page_size=options.page_size,
        page_count=page_count,
        free_rows=free_rows,
        embedding_dim=embedding_dim,
    )
    device = FakeDevice(script, info, step_seconds, score)
    if isinstance(template, str):
        template = ChatTemplate(template, bos_token="", eos_token="<|eos|>")
    model = ModelInfo(id=FAKE_MODEL, tokenizer=tokenizer, template=template)

    async def load() -> tuple[ModelInfo, FakeDevice]:
        # no thread: an autojump clock would take the wait for one as a reason to jump
        await trio.lowlevel.checkpoint()
        return model, device

    return EngineBlock(load, options), device
