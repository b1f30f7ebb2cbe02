"""The engine: what a program holds while a model is loaded.

Owns: the live generations and whether new ones are taken. Must not know: how the model was found, HTTP.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Sequence

import attrs
import trio

from trioserve.abc import DeviceInfo, Tokenizer
from trioserve.engine.answers import Answer, AnswerFold, Embeddings
from trioserve.engine.chats import Chat, Chats, Message
from trioserve.engine.fan_out import resolve_choices
from trioserve.engine.generation import Generation
from trioserve.engine.groupless import GrouplessScheduler
from trioserve.engine.observer import AbortCause, Observer
from trioserve.engine.options import EngineOptions
from trioserve.engine.prompts import Prompt, as_prompts, check_ids, encode, tokenize
from trioserve.engine.scheduler import Scheduler
from trioserve.engine.snapshot import EngineSnapshot
from trioserve.engine.structures import Structures
from trioserve.engine.ticket import Mailbox
from trioserve.errors import EngineStoppingError, ParamError, RequestCancelledError
from trioserve.params import Pooling, SamplingParams
from trioserve.rendering import AS_USUAL, Rendering
from trioserve.sched.state import SchedulerStatistics
from trioserve.text.parser import OutputFormat
from trioserve.text.template import ChatTemplate
from trioserve.tools import ToolUse


@attrs.frozen(kw_only=True)
class ModelInfo:
    """What an engine serves, apart from its tensors."""

    id: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has no chat template, so it can complete texts but not chat."""
    default_temperature: float | None = None
    """None: the model's files say nothing."""
    pooling: Pooling | None = None
    """How the model makes a vector of a text; None: its files say nothing."""
    warnings: tuple[str, ...] = ()
    """What in the model's files was odd, for people."""


@attrs.frozen(kw_only=True)
class EngineStatistics:
    """A snapshot of what runs."""

    requests: int
    """Generations that have been entered and not left."""
    draining: bool
    scheduler: SchedulerStatistics


class Engine:
    """A loaded model that answers requests. Made by ``open_engine``, and alive inside its block."""

    def __init__(
        self,
        model: ModelInfo,
        info: DeviceInfo,
        options: EngineOptions,
        mailbox: Mailbox,
        scheduler: Scheduler | GrouplessScheduler,
    ) -> None:
        self.model = model
        self.info = info
        self.options = options
        self.mailbox = mailbox
        self.structures = Structures(model.tokenizer, info.vocab_size, options.compile_seconds)
        self.observers: tuple[Observer, ...] = ()
        self.leaving: AbortCause = "left"
        """What it means that a request is left before its end."""
        self._began = trio.current_time()
        self._scheduler = scheduler
        self._chats = Chats(model.id, model.template, model.tokenizer, options)
        self._live: dict[str, Generation] = {}
        self._draining = False
        self._drained = trio.Event()

    def __repr__(self) -> str:
        state = "draining" if self._draining else "open"
        return f"<Engine {self.model.id} on {self.info.name}: {state}, {len(self._live)} requests>"

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
        alias: str | None = None,
        default_max_tokens: int | None = None,
        output: OutputFormat | None = None,
    ) -> Generation:
        """The answer to a prompt (text, or token ids), or to a list of them, as a block to enter.

        P prompts give P * n choices, prompt-major: index = p * n + j. With ``best_of``, j counts from the best.

        Args:
            prompt: texts get the model's BOS if it has one; ids are taken as they are.
            params: how to draw.
            request_id: a name no other running request has; None makes one.
            alias: another name by which ``find`` finds it, which others may have too.
            default_max_tokens: the most tokens of a choice where ``params`` say nothing; None: to the context's end.
            output: how thoughts and calls of tools are told from text; None: all of it is text. See ``prepare_chat``.

        Raises:
            ParamError: the parameters are over a limit. (Entering raises the rest: ParamError,
                ContextLengthError, QueueFullError, EngineStoppingError, EngineClosedError.)
        """
        params = params.resolve(self.model.default_temperature)
        self.options.limits.check(params, len(as_prompts(prompt)))
        if request_id is None:
            request_id = f"req-{uuid.uuid4().hex}"
        return Generation(self, prompt, params, request_id, alias, default_max_tokens, output)

    async def complete(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
        default_max_tokens: int | None = None,
        output: OutputFormat | None = None,
    ) -> Answer:
        """``generate``, folded: all choices, whole. Raises what generate, entering and leaving raise."""
        fold = AnswerFold()
        block = self.generate(
            prompt, params, request_id=request_id, default_max_tokens=default_max_tokens, output=output
        )
        async with block as generation:
            async for event in generation:
                fold.feed(event)
        return fold.answer(generation.prompt_tokens, generation.cached_tokens)

    @property
    def pooling(self) -> Pooling | None:
        """How a text becomes a vector: as the options say, else the model's files; None: it can't."""
        return self.options.pooling or self.model.pooling

    async def embed(
        self, prompt: Prompt | Sequence[Prompt], *, request_id: str | None = None, alias: str | None = None
    ) -> Embeddings:
        """The vector of a text, or of each of several; see ``generate`` for the arguments.

        Raises:
            ParamError: the model, or its device, makes no vectors.
            RequestCancelledError: the request was cancelled.
            TrioserveError: as entering and leaving ``generate`` raise.
        """
        if self.pooling is None:
            raise ParamError(
                f"The model {self.model.id!r} is not made for embeddings. The server can be told to make them all the "
                "same, with --pooling.",
                "model",
            )
        if self.info.embedding_dim == 0:
            raise ParamError(f"The device {self.info.name} gives no hidden states to make embeddings of.", "model")
        params = SamplingParams(max_tokens=0)
        self.options.limits.check(params, len(as_prompts(prompt)))
        if request_id is None:
            request_id = f"embd-{uuid.uuid4().hex}"
        block = Generation(
            self, prompt, params.resolve(None), request_id, alias, default_max_tokens=None, pooling=self.pooling
        )
        async with block as generation:
            async for _ in generation:
                pass
        vectors = [prompt.vector for prompt in generation.prompts]
        if None in vectors:
            raise RequestCancelledError("The request was cancelled before its vectors were computed.", request_id)
        return Embeddings(
            vectors=tuple(vector for vector in vectors if vector is not None),
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
        )

    async def encode_prompt(self, prompt: Prompt, param: str = "prompt") -> array[int]:
        """The token ids that ``generate`` has for a prompt. ``param``: what errors call it.

        Raises:
            ParamError: it is no prompt of this model.
            ContextLengthError: there is no room for a single token after it.
        """
        if isinstance(prompt, str):
            return await encode(prompt, self.tokenizer, self.info, param, inline=self.options.inline_characters)
        await trio.lowlevel.checkpoint()
        return check_ids(prompt, self.tokenizer, self.info, param)

    async def tokenize(self, text: str, param: str = "prompt", *, add_special: bool = True) -> list[int]:
        """The token ids of a text of any length. ``add_special``: with the model's BOS, as a prompt.

        Raises:
            ParamError: the text is not valid Unicode.
        """
        inline = self.options.inline_characters
        return await tokenize(text, self.tokenizer, param, add_special=add_special, inline=inline)

    async def tokenize_chat(
        self, messages: Sequence[Message], *, tools: ToolUse | None = None, rendering: Rendering = AS_USUAL
    ) -> list[int]:
        """The token ids of a conversation of any length; else as ``encode_chat``."""
        text = await self._chats.render(messages, tools, rendering)
        return await self.tokenize(text, "messages", add_special=False)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: ToolUse | None = None,
        rendering: Rendering = AS_USUAL,
    ) -> array[int]:
        """The token ids of a conversation, rendered by the model's template up to where the answer begins.

        Args:
            messages: what was said.
            tools: what the model is told that it may call.
            rendering: what else the template is given.

        Raises:
            ParamError: the model has no template, or it refuses these messages.
            ContextLengthError: they do not fit.
        """
        text = await self._chats.render(messages, tools, rendering)
        inline = self.options.inline_characters
        # the template writes the special tokens itself
        return await encode(text, self.tokenizer, self.info, "messages", add_special=False, inline=inline)

    async def prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams = SamplingParams(),
        *,
        tools: ToolUse | None = None,
        rendering: Rendering = AS_USUAL,
    ) -> Chat:
        """A conversation ready for ``generate``: its token ids, and how its answers are read and held to a form.

        Raises:
            ParamError: as encode_chat; or the model can't call tools, or not in the way that is demanded.
            ContextLengthError: the messages do not fit.
        """
        prompt = await self.encode_chat(messages, tools=tools, rendering=rendering)
        return await self._chats.prepare(prompt, params, tools)

    async def check_params(
        self, params: SamplingParams, prompt_tokens: int, *, default_max_tokens: int | None = None
    ) -> None:
        """Whether ``generate`` would take ``params`` after a prompt of ``prompt_tokens``.

        Raises:
            ParamError: it would not.
        """
        resolve_choices(params, default_max_tokens, prompt_tokens, self.info)
        if params.structure is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.structures.compile(params.structure)

    def abort(self, request_id: str) -> bool:
        """End every choice of a running request with the finish reason "cancelled". False: no such request runs."""
        generation = self._live.get(request_id)
        if generation is None:
            return False
        generation.cancel()
        return True

    def find(self, name: str) -> list[Generation]:
        """The running requests with this id or alias (FAN-34)."""
        return [generation for generation in self._live.values() if name in (generation.request_id, generation.alias)]

    def begin_drain(self) -> None:
        """Take no new request; what runs goes on. Idempotent."""
        self._draining = True
        if not self._live:
            self._drained.set()

    def begin_cut_off(self) -> None:
        """Count requests that are left from now on as cut off by a shutdown, which has no more time for them."""
        self.leaving = "shutdown"

    async def wait_drained(self) -> None:
        """Wait until, after ``begin_drain``, the last request has left."""
        await self._drained.wait()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            requests=len(self._live), draining=self._draining, scheduler=self._scheduler.statistics()
        )

    def snapshot(self) -> EngineSnapshot:
        """Everything that runs, request by request."""
        return EngineSnapshot(
            model=self.model.id,
            device=self.info.name,
            context_length=self.info.context_length,
            page_size=self.info.page_size,
            page_count=self.info.page_count,
            uptime_s=trio.current_time() - self._began,
            draining=self._draining,
            requests=tuple(generation.snapshot() for generation in self._live.values()),
            scheduler=self._scheduler.statistics(),
        )

    def add_observer(self, observer: Observer) -> None:
        """Tell ``observer`` what happens to the requests that are entered from now on."""
        self.observers = (*self.observers, observer)

    def check(self) -> None:
        """Raise InvariantError if the books of the scheduler are wrong."""
        self._scheduler.check()

    def enter(self, generation: Generation) -> None:
        """A generation begins. For Generation only."""
        if self._draining:
            raise EngineStoppingError
        if generation.request_id in self._live:
            raise ParamError(f"A request with the id {generation.request_id!r} is running.", "request_id")
        self._live[generation.request_id] = generation

    def leave(self, generation: Generation) -> None:
        """A generation has ended. For Generation only; idempotent."""
        if self._live.get(generation.request_id) is generation:
            del self._live[generation.request_id]
        if self._draining and not self._live:
            self._drained.set()
