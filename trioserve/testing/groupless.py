"""An engine without groups that is not there: what the gate is tested with.

Owns: FakeChoiceEngine, a ChoiceEngine on trio's clock, and open_groupless_engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import trio

from trioserve.abc import DeviceInfo
from trioserve.engine.engine import ModelInfo
from trioserve.engine.open import EngineBlock
from trioserve.engine.options import EngineOptions
from trioserve.events import FinishReason, TokenLogprob
from trioserve.sched.commit import Admitted, Drafted
from trioserve.sched.group import Group
from trioserve.sched.outbox import Progress
from trioserve.testing.engine import FAKE_MODEL, FAKE_OPTIONS
from trioserve.testing.tokenizer import EOS, ByteTokenizer

ADMISSION_S = 0.1
PREFILL_S = 1.0
"""From the admission to the first token of a choice whose prompt is not cached."""
TOKEN_S = 0.01
ANSWER_TOKENS = 10
"""Nine digits and the end-of-sequence token."""


@attrs.frozen
class Submitted:
    """What the engine was asked, and when."""

    uid: str
    when: float
    cached_tokens: int
    """Prompt tokens that were in its cache then."""


@attrs.define(eq=False)
class FakeChoiceEngine:
    """Every choice says the nine digits that follow that of its seed. The cache knows prompts that had a token sampled.

    What ``refuse`` says about a uid is raised instead of an admission; what ``failures`` has for a uid and the number
    of tokens before, instead of a token. The log-probability of every token is the seed modulo 3, negated. If a group
    may have drafts, each has two tokens, and the first of them is right.
    """

    refuse: Callable[[str], Exception | None] = attrs.field(default=lambda _: None, kw_only=True)
    failures: Mapping[tuple[str, int], Exception] = attrs.field(factory=dict, kw_only=True)
    has_logprobs: bool = attrs.field(default=True, kw_only=True)
    info: DeviceInfo = attrs.field(init=False)
    submitted: list[Submitted] = attrs.field(factory=list, init=False)
    computed: set[bytes] = attrs.field(factory=set, init=False)
    """The prompts in the cache."""
    live: set[FakeChoiceStream] = attrs.field(factory=set, init=False)
    admitting: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        vocab_size = ByteTokenizer().vocab_size
        self.info = DeviceInfo(name="fake", vocab_size=vocab_size, context_length=4096, page_size=1, page_count=1)

    @property
    def uids(self) -> list[str]:
        """Of all choices that were submitted, in that order."""
        return [submitted.uid for submitted in self.submitted]

    async def submit(self, group: Group) -> FakeChoiceStream:
        (spec,) = group.choices
        cached_tokens = len(group.prompt) - 1 if group.prompt.tobytes() in self.computed else 0
        self.submitted.append(Submitted(spec.uid, trio.current_time(), cached_tokens))
        self.admitting += 1
        try:
            await trio.sleep(ADMISSION_S)
        finally:
            self.admitting -= 1
        if (error := self.refuse(spec.uid)) is not None:
            raise error
        stream = FakeChoiceStream(self, group, cached_tokens)
        self.live.add(stream)
        return stream


@attrs.define(eq=False)
class FakeChoiceStream:
    """A choice that a FakeChoiceEngine answers."""

    engine: FakeChoiceEngine
    group: Group
    cached_tokens: int
    tokens: int = attrs.field(default=0, init=False)

    async def receive(self) -> Progress:
        (spec,) = self.group.choices
        is_first = self.tokens == 0
        await trio.sleep(PREFILL_S if is_first and not self.cached_tokens else TOKEN_S)
        if (error := self.engine.failures.get((spec.uid, self.tokens))) is not None:
            raise error
        self.engine.computed.add(self.group.prompt.tobytes())
        end = min(ANSWER_TOKENS, spec.max_tokens)
        is_drafted = not is_first and (self.group.prompt_lookup or self.group.prediction is not None)
        told = range(self.tokens + 1, min(self.tokens + 1 + is_drafted, end) + 1)
        self.tokens += len(told)
        token_ids = tuple(EOS if t == ANSWER_TOKENS else ord("0") + (spec.seed + t) % 10 for t in told)
        has_stopped = self.tokens == ANSWER_TOKENS
        is_scored = spec.logprobs > 0 and self.engine.has_logprobs
        ended: FinishReason = "stop" if has_stopped else "length"
        return Progress(
            Admitted(self.cached_tokens, 0.0) if is_first else None,
            token_ids,
            ended if self.tokens == end else None,
            EOS if has_stopped else None,
            tuple(TokenLogprob(token_id, -float(spec.seed % 3)) for token_id in token_ids) if is_scored else (),
            Drafted(len(told) - 1, 3 - len(told)) if is_drafted else None,
        )

    def close(self) -> None:
        self.engine.live.remove(self)


def open_groupless_engine(foreign: FakeChoiceEngine, options: EngineOptions = FAKE_OPTIONS) -> EngineBlock:
    """An engine block over an engine without groups."""

    async def load() -> tuple[ModelInfo, FakeChoiceEngine]:
        await trio.lowlevel.checkpoint()
        return ModelInfo(id=FAKE_MODEL, tokenizer=ByteTokenizer(), template=None), foreign

    return EngineBlock(load, options)
