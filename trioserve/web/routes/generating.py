"""Chats and completions.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import time
import uuid

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.abc import Tokenizer
from trioserve.engine.generation import Generation
from trioserve.engine.prompts import Prompt
from trioserve.web.routes.running import Job, run_job
from trioserve.web.routes.service import Rule, Service, as_written, given_request_id
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.calls import Call
from trioserve.wire.chunks import ChunkBuilder
from trioserve.wire.decode import DEFAULT_COMPLETION_TOKENS, parse_chat, parse_completion
from trioserve.wire.details import Details
from trioserve.wire.tally import Head, Kind
from trioserve.wire.token_texts import TokenTexts


@attrs.frozen(kw_only=True)
class _Builders:
    """What makes answers of the events of a call."""

    call: Call
    kind: Kind
    tokenizer: Tokenizer
    echoed: tuple[Prompt, ...] = ()
    """The prompts, if the answers begin with them."""

    def head(self, generation: Generation) -> Head:
        # here, and not before: now they are known to be of this model
        echo_texts = tuple(map(self._text, self.echoed))
        return Head(
            kind=self.kind,
            id=generation.request_id,
            created=int(time.time()),
            model=self.call.model,
            n=generation.n,
            prompt_tokens=tuple(prompt.prompt_tokens for prompt in generation.prompts),
            echo_texts=echo_texts,
            ranked=self.call.params.ranked,
            details=self._details(generation),
        )

    def _details(self, generation: Generation) -> Details | None:
        call = self.call
        if call.params.logprobs is None and call.prompt_logprobs is None and not call.return_token_ids:
            return None
        return Details(
            texts=TokenTexts(self.tokenizer, skip_special=call.params.skip_special_tokens),
            logprobs=call.params.logprobs,
            echo_logprobs=bool(self.echoed) and call.params.logprobs is not None,
            prompt_logprobs=call.prompt_logprobs,
            token_ids=call.return_token_ids,
            prompt_ids=tuple(prompt.token_ids for prompt in generation.prompts),
        )

    def _text(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)

    def answer_builder(self, generation: Generation) -> AnswerBuilder:
        return AnswerBuilder(self.head(generation))

    def chunk_builder(self, generation: Generation) -> ChunkBuilder:
        return ChunkBuilder(
            self.head(generation),
            include_usage=self.call.include_usage,
            continuous_usage=self.call.continuous_usage,
        )


class Generating:
    """The handlers of OpenAI's generating paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule("/v1/chat/completions", "POST", self.chat_completions),
            Rule("/v1/completions", "POST", self.completions),
        )

    async def chat_completions(self) -> TrioResponse:
        call = await self._service.decode(parse_chat)
        self._service.check_model(call.model)
        chat = await self._engine.prepare_chat(call.messages, call.params, tools=call.tools, rendering=call.rendering)
        generation = self._engine.generate(
            chat.prompt,
            chat.params,
            request_id=f"chatcmpl-{uuid.uuid4().hex}",
            alias=given_request_id(),
            output=chat.output,
        )
        return await self._run(generation, _Builders(call=call, kind="chat", tokenizer=self._engine.tokenizer))

    async def completions(self) -> TrioResponse:
        call = await self._service.decode(parse_completion)
        self._service.check_model(call.model)
        generation = self._engine.generate(
            call.prompts,
            call.params,
            request_id=f"cmpl-{uuid.uuid4().hex}",
            alias=given_request_id(),
            default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        )
        echoed = call.prompts if call.echo else ()
        builders = _Builders(call=call, kind="completion", tokenizer=self._engine.tokenizer, echoed=echoed)
        return await self._run(generation, builders)

    async def _run(self, generation: Generation, builders: _Builders) -> TrioResponse:
        job = Job(
            generation=generation,
            stream=builders.call.stream,
            answer_builder=builders.answer_builder,
            chunk_builder=builders.chunk_builder,
        )
        with as_written(builders.call.names):
            return await run_job(job, self._service.options.ping_interval)
