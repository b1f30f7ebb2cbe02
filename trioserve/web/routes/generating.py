"""Chats and completions.

Owns: the order of the checks of a request, and what its answer says of itself. Must not know: formats, scheduling.
"""

from __future__ import annotations

import uuid

import attrs
from quart_trio.wrappers import TrioResponse

from trioserve.abc import Tokenizer
from trioserve.engine.generation import Generation
from trioserve.engine.prompts import Prompt
from trioserve.web.routes.running import head_of, run_chat, run_generation
from trioserve.web.routes.service import Rule, Service, given_request_id
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
        return head_of(generation, self.call, self.kind, echo_texts=echo_texts, details=self._details(generation))

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
        builders = _Builders(call=call, kind="chat", tokenizer=self._engine.tokenizer)
        return await run_chat(self._service, call, "chatcmpl-", builders)

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
        return await run_generation(self._service, call, generation, builders)
