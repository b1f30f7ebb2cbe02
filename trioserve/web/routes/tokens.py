"""Texts to tokens and back, prompts as tokens, and tokens in and tokens out.

Owns: the paths of who works with token ids. Must not know: formats, scheduling.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio
from quart_trio.wrappers import TrioResponse

from trioserve.engine.generation import Generation
from trioserve.errors import ParamError
from trioserve.web.routes.running import head_of, run_generation
from trioserve.web.routes.service import (
    INLINE_BODY_BYTES,
    Rule,
    Service,
    as_written,
    given_request_id,
    json_response,
)
from trioserve.wire.decode import DEFAULT_COMPLETION_TOKENS, parse_chat, parse_completion
from trioserve.wire.details import Details
from trioserve.wire.generate import GenerateCall, TokenAnswerBuilder, TokenChunkBuilder, parse_generate
from trioserve.wire.rendered import rendered_body, rendered_fields
from trioserve.wire.tally import Head
from trioserve.wire.token_texts import TokenTexts
from trioserve.wire.tokenizing import (
    detokenize_body,
    parse_detokenize,
    parse_tokenize,
    tokenize_body,
    tokenizer_body,
)

_INLINE_TOKENS: Final = INLINE_BODY_BYTES // 10
"""This many take some milliseconds to write, as texts or as ids."""


@attrs.frozen
class _Builders:
    """What makes answers of the events of a call."""

    call: GenerateCall
    texts: TokenTexts

    def head(self, generation: Generation) -> Head:
        params = self.call.params
        told = None
        if params.prompt_logprobs is not None:
            told = Details(texts=self.texts, prompt_logprobs=params.prompt_logprobs)
        return head_of(generation, self.call, "tokens", details=told)

    def answer_builder(self, generation: Generation) -> TokenAnswerBuilder:
        return TokenAnswerBuilder(self.head(generation), self.call.params.logprobs)

    def chunk_builder(self, generation: Generation) -> TokenChunkBuilder:
        return TokenChunkBuilder(
            self.head(generation),
            self.call.params.logprobs,
            include_usage=self.call.include_usage,
            continuous_usage=self.call.continuous_usage,
        )


async def _write(tokens: int, write: Callable[[], bytes]) -> TrioResponse:
    """The answer that ``write`` gives, in a thread if there are many tokens in it."""
    if tokens <= _INLINE_TOKENS:
        return json_response(write())
    return json_response(await trio.to_thread.run_sync(write))


class Tokens:
    """The handlers of paths about tokens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            Rule("/tokenize", "POST", self.tokenize),
            Rule("/detokenize", "POST", self.detokenize),
            Rule("/tokenizer_info", "GET", self.tokenizer),
            Rule("/v1/chat/completions/render", "POST", self.render_chat),
            Rule("/v1/completions/render", "POST", self.render_completion),
            Rule("/inference/v1/generate", "POST", self.generate),
        )

    async def tokenize(self) -> TrioResponse:
        call = await self._service.decode(parse_tokenize)
        self._check_model(call.model)
        if call.messages is not None:
            token_ids = await self._engine.tokenize_chat(call.messages, tools=call.tools, rendering=call.rendering)
        else:
            assert call.prompt is not None
            token_ids = await self._engine.tokenize(call.prompt, add_special=call.add_special)
        texts = TokenTexts(self._engine.tokenizer) if call.with_texts else None
        return await _write(len(token_ids), partial(tokenize_body, token_ids, self._engine.info.context_length, texts))

    async def detokenize(self) -> TrioResponse:
        call = await self._service.decode(parse_detokenize)
        self._check_model(call.model)
        tokenizer = self._engine.tokenizer
        if call.token_ids and max(call.token_ids) >= tokenizer.vocab_size:
            raise ParamError(
                f"Token id {max(call.token_ids)} is out of the vocabulary (0 to {tokenizer.vocab_size - 1}).", "tokens"
            )

        return await _write(
            len(call.token_ids), lambda: detokenize_body(tokenizer.decode(call.token_ids, skip_special=False))
        )

    async def tokenizer(self) -> TrioResponse:
        tokenizer, template = self._engine.tokenizer, self._engine.model.template
        # where a model ends in several ways, the first of them
        ends = sorted(tokenizer.eos_ids)[:1]
        begins = tokenizer.encode("", add_special=True)
        return json_response(
            tokenizer_body(
                bos_token=tokenizer.decode(begins, skip_special=False) or None,
                eos_token=tokenizer.decode(ends, skip_special=False) or None,
                chat_template=None if template is None else template.source,
                vocab_size=tokenizer.vocab_size,
                context_length=self._engine.info.context_length,
            )
        )

    async def render_chat(self) -> TrioResponse:
        call = await self._service.decode(parse_chat)
        self._service.check_model(call.model)
        chat = await self._engine.prepare_chat(call.messages, call.params, tools=call.tools, rendering=call.rendering)
        with as_written(call.names):
            await self._engine.check_params(chat.params, len(chat.prompt))
        return json_response(rendered_body(rendered_fields(call, chat.prompt.tolist(), chat.params)))

    async def render_completion(self) -> TrioResponse:
        call = await self._service.decode(parse_completion)
        self._service.check_model(call.model)
        requests = []
        for index, prompt in enumerate(call.prompts):
            param = "prompt" if len(call.prompts) == 1 else f"prompt.{index}"
            token_ids = await self._engine.encode_prompt(prompt, param)
            await self._engine.check_params(call.params, len(token_ids), default_max_tokens=DEFAULT_COMPLETION_TOKENS)
            room = self._engine.info.context_length - len(token_ids)
            params = call.params
            if params.max_tokens is None:
                params = attrs.evolve(params, max_tokens=min(DEFAULT_COMPLETION_TOKENS, room))
            requests.append(rendered_fields(call, token_ids.tolist(), params))
        return json_response(rendered_body(requests))

    async def generate(self) -> TrioResponse:
        call = await self._service.decode(parse_generate)
        self._check_model(call.model or None)
        texts = TokenTexts(self._engine.tokenizer, skip_special=call.params.skip_special_tokens)
        with as_written(call.names):
            generation = self._engine.generate(
                call.token_ids,
                call.params,
                request_id=call.request_id or f"gen-{uuid.uuid4().hex}",
                alias=given_request_id(),
            )
        return await run_generation(self._service, call, generation, _Builders(call, texts))

    def _check_model(self, name: str | None) -> None:
        """As for every other path, where a model must be named."""
        if name is not None:
            self._service.check_model(name)
