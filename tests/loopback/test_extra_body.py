"""Everything beyond OpenAI's API, through OpenAI's own client: asked for by ``extra_body``, and read from its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import openai
import pytest
import trio

from trioserve.params import Limits
from trioserve.step import RowArrays
from trioserve.testing.device import FakeDevice, Script
from trioserve.testing.engine import FAKE_MODEL, FAKE_OPTIONS, FAKE_TEMPLATE, count_for_ever, open_fake_engine, say
from trioserve.testing.tokenizer import EOS, BrokenTokenizer, ByteTokenizer
from trioserve.web.listeners import bind
from trioserve.web.options import ServeOptions
from trioserve.web.serve import serve

COLOURS = ["red", "green", "blue"]
THINKING = "<think>hm</think>yes"
"""What the choice with seed 5 says."""
PROMPT = "go, go, go, go, go"
SHOUTING = FAKE_TEMPLATE + "{% if shouting %}!{% endif %}"
"""A template with a variable of its own."""
REPEATING = "la, la, la, la, la"
"""What the choice with seed 4 says."""


@attrs.frozen(kw_only=True)
class Asked:
    """A client of a running server, and the device that the answers come from."""

    client: openai.OpenAI
    device: FakeDevice
    kind: str

    def answer(self, n: int = 1, *, stream: bool = False, **extra_body: object) -> Any:
        """The answer to a request with extensions; streamed, an iterator over its chunks."""
        fields: dict[str, Any] = {"model": FAKE_MODEL, "n": n, "stream": stream, "extra_body": extra_body}
        if self.kind == "chat":
            return self.client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **fields)
        return self.client.completions.create(prompt=PROMPT, **fields)

    def drawn(self) -> RowArrays:
        """What the device was told to draw in its first step with rows."""
        return next(plan.rows for plan in self.device.plans if plan.rows.tokens)

    def text(self, choice: Any) -> str:
        return str(choice.message.content if self.kind == "chat" else choice.text)


Check = Callable[[Asked], None]


def top_k(asked: Asked) -> None:
    asked.answer(top_k=7)
    assert list(asked.drawn().top_ks) == [7]


def min_p(asked: Asked) -> None:
    asked.answer(min_p=0.25)
    assert list(asked.drawn().min_ps) == [0.25]


def ignore_eos(asked: Asked) -> None:
    (choice,) = asked.answer(ignore_eos=True, max_tokens=9).choices
    assert (choice.finish_reason, choice.usage["completion_tokens"]) == ("length", 9)


def choice_params(asked: Asked) -> None:  # FAN-33
    answer = asked.answer(n=3, choice_params=[{"max_tokens": 2}, {"seed": 0}, {"temperature": 0}], seed=0)
    assert [asked.text(choice) for choice in answer.choices] == ["re", "red", "blue"]
    assert [choice.seed for choice in answer.choices] == [0, 0, 2]
    assert list(asked.drawn().temperatures) == [1, 1, 0]


def stop_when(asked: Asked) -> None:  # FAN-31
    finished = asked.answer(n=3, stop_when={"finished": 1})
    assert [choice.finish_reason for choice in finished.choices] == ["stop", "cancelled", "cancelled"]
    agree = asked.answer(n=3, stop_when={"agree": 1, "pattern": "blu"})
    assert agree.choices[2].finish_reason == "stop"


def choice_errors(asked: Asked) -> None:  # FAN-24
    answer = asked.answer(n=4, choice_errors="isolate")
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop", "stop", "error"]


def prompt_lookup(asked: Asked) -> None:
    drafted, alone = (asked.answer(seed=4, max_tokens=30, prompt_lookup=asks) for asks in (True, False))
    assert asked.text(drafted.choices[0]) == asked.text(alone.choices[0]) == REPEATING
    assert drafted.usage.completion_tokens_details.accepted_prediction_tokens > 0
    assert alone.usage.completion_tokens_details.accepted_prediction_tokens == 0


def continuous_usage_stats(asked: Asked) -> None:  # FAN-20
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = asked.answer(n=2, stream=True, stream_options=options)
    assert all(chunk.usage.total_tokens < last.usage.total_tokens for chunk in chunks)


def seed(asked: Asked) -> None:  # FAN-16
    assert [choice.seed for choice in asked.answer(n=3).choices] == [0, 1, 2]
    ends = [choice for chunk in asked.answer(n=3, stream=True) for choice in chunk.choices if choice.finish_reason]
    assert {choice.index: choice.seed for choice in ends} == {0: 0, 1: 1, 2: 2}


def usage(asked: Asked) -> None:  # FAN-21
    answer = asked.answer(n=3)
    costs = [choice.usage for choice in answer.choices]
    assert [cost["completion_tokens"] for cost in costs] == [4, 6, 5]
    assert [cost["shared_tokens"] for cost in costs] == [0, answer.usage.prompt_tokens, answer.usage.prompt_tokens]
    assert sum(cost["completion_tokens"] for cost in costs) == answer.usage.completion_tokens


def error(asked: Asked) -> None:  # FAN-24
    answer = asked.answer(n=4, choice_errors="isolate")
    assert answer.choices[3].error["code"] == "generation_failed"
    assert "no x please" in answer.choices[3].error["message"]


def max_model_len(asked: Asked) -> None:
    assert asked.client.models.retrieve(FAKE_MODEL).max_model_len == 4096  # type: ignore[attr-defined]


def best_of(asked: Asked) -> None:  # FAN-32
    answer = asked.answer(n=2, best_of=3)
    assert len(answer.choices) == 2
    assert answer.usage.completion_tokens == 4 + 6 + 5


def mean_logprob(asked: Asked) -> None:  # FAN-32
    best, second = asked.answer(n=2, best_of=3).choices
    assert 0 >= best.mean_logprob >= second.mean_logprob


def discarded_tokens(asked: Asked) -> None:  # FAN-32
    answer = asked.answer(n=2, best_of=3)
    kept = sum(choice.usage["completion_tokens"] for choice in answer.choices)
    assert kept + answer.usage.completion_tokens_details.discarded_tokens == answer.usage.completion_tokens


def stop_token_ids(asked: Asked) -> None:
    (choice,) = asked.answer(stop_token_ids=[ord("e")]).choices
    assert (asked.text(choice), choice.finish_reason) == ("r", "stop")


def include_stop_str_in_output(asked: Asked) -> None:
    (choice,) = asked.answer(stop="e", include_stop_str_in_output=True).choices
    assert (asked.text(choice), choice.finish_reason) == ("re", "stop")


def min_tokens(asked: Asked) -> None:
    assert asked.answer(min_tokens=5).usage.completion_tokens == 6  # the one that ends it is the sixth


def repetition_penalty(asked: Asked) -> None:
    asked.answer(repetition_penalty=1.5)
    assert list(asked.drawn().changes.repetition_penalties) == [1.5]


def skip_special_tokens(asked: Asked) -> None:
    # kept from its end, the device says the next likeliest token, which is a special one
    texts = [asked.text(asked.answer(min_tokens=4, skip_special_tokens=skip).choices[0]) for skip in (True, False)]
    assert texts == ["red", "red<|bos|>"]


def structured_outputs(asked: Asked) -> None:
    answer = asked.answer(n=3, structured_outputs={"choice": ["yes", "no"]})
    assert {asked.text(choice) for choice in answer.choices} <= {"yes", "no"}


def priority(asked: Asked) -> None:
    assert asked.answer(priority=-5).choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="priority"):
        asked.answer(priority="high")


def cache_salt(asked: Asked) -> None:
    found = [asked.answer(cache_salt=salt).usage.prompt_tokens_details.cached_tokens for salt in ("a", "a", "b")]
    assert found[0] == found[2] == 0 < found[1]


def prompt_logprobs(asked: Asked) -> None:
    answer = asked.answer(prompt_logprobs=1)
    scores = (answer if asked.kind == "chat" else answer.choices[0]).prompt_logprobs
    assert len(scores) == answer.usage.prompt_tokens
    assert [score is None for score in scores] == [True] + [False] * (len(scores) - 1)


def return_token_ids(asked: Asked) -> None:
    assert not hasattr(asked.answer().choices[0], "token_ids")
    token_ids(asked)


def token_ids(asked: Asked) -> None:
    (choice,) = asked.answer(return_token_ids=True).choices
    assert choice.token_ids == [*b"red", EOS]


def prompt_token_ids(asked: Asked) -> None:
    answer = asked.answer(return_token_ids=True)
    ids = (answer if asked.kind == "chat" else answer.choices[0]).prompt_token_ids
    assert len(ids) == answer.usage.prompt_tokens
    assert bytes(token_id for token_id in ids if token_id < 256).count(b"go") == PROMPT.count("go")


def chat_template_kwargs(asked: Asked) -> None:
    plain, shouting = (asked.answer(chat_template_kwargs=values).usage for values in ({}, {"shouting": True}))
    assert shouting.prompt_tokens == plain.prompt_tokens + len("!")


def add_generation_prompt(asked: Asked) -> None:
    plain, bare = (asked.answer(add_generation_prompt=adds).usage for adds in (True, False))
    assert bare.prompt_tokens == plain.prompt_tokens - len(
        ByteTokenizer().encode("<|turn|>assistant: ", add_special=False)
    )


def continue_final_message(asked: Asked) -> None:
    bare, going_on = (
        asked.answer(add_generation_prompt=False, continue_final_message=continues).usage for continues in (False, True)
    )
    assert going_on.prompt_tokens == bare.prompt_tokens - len("\n")


def reasoning_content(asked: Asked) -> None:
    message = asked.answer(seed=5).choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "yes")


CHAT_ONLY: list[Check] = [chat_template_kwargs, add_generation_prompt, continue_final_message, reasoning_content]
EXTENSIONS: dict[str, Check] = {
    check.__name__: check
    for check in (
        *(top_k, min_p, ignore_eos, choice_params, stop_when, choice_errors, prompt_lookup),
        *(continuous_usage_stats, seed, usage, error, max_model_len, best_of, mean_logprob, discarded_tokens),
        *(stop_token_ids, include_stop_str_in_output, min_tokens, repetition_penalty, skip_special_tokens),
        *(structured_outputs, priority, cache_salt, prompt_logprobs),
        *(return_token_ids, token_ids, prompt_token_ids),
        *CHAT_ONLY,
    )
}
"""What shows that each extension works; a new one must be added."""


@asynccontextmanager
async def serving(kind: str, script: Script, **settings: Any) -> AsyncIterator[Asked]:
    options = ServeOptions(port=0, graceful_timeout=0.2)
    engine_options = attrs.evolve(FAKE_OPTIONS, reasoning_format="think")
    settings = {"options": engine_options, "template": SHOUTING, **settings}
    block, device = open_fake_engine(script, step_seconds=0.001, **settings)
    with trio.fail_after(20), bind(options) as listeners:
        async with block as engine, trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: serve(engine, options, listeners=listeners, task_status=task_status)
            )
            address = f"http://127.0.0.1:{listeners.port}/v1"
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                yield Asked(client=client, device=device, kind=kind)
            nursery.cancel_scope.cancel()


both = pytest.mark.parametrize("kind", ["chat", "completion"])


@both
@pytest.mark.parametrize("name", EXTENSIONS)
async def test_an_extension_works_through_the_official_client(kind: str, name: str) -> None:
    if kind == "completion" and EXTENSIONS[name] in CHAT_ONLY:
        kind = "chat"
    tokenizer = BrokenTokenizer() if EXTENSIONS[name] in (choice_errors, error) else ByteTokenizer()
    async with serving(kind, say([*COLOURS, "x", REPEATING, THINKING]), tokenizer=tokenizer) as asked:
        await trio.to_thread.run_sync(EXTENSIONS[name], asked)


async def test_a_prediction_is_openai_s_own_and_its_counts_are_where_openai_has_them() -> None:
    def ask(asked: Asked) -> None:
        answer = asked.client.chat.completions.create(
            model=FAKE_MODEL,
            messages=[{"role": "user", "content": "go"}],
            prediction={"type": "content", "content": "a red house"},
        )
        assert answer.choices[0].message.content == "a big house"
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == answer.usage.completion_tokens - len(asked.device.plans) > 0
        assert details.rejected_prediction_tokens is not None
        assert details.rejected_prediction_tokens > 0

    async with serving("chat", say("a big house")) as asked:
        await trio.to_thread.run_sync(ask, asked)


@both
async def test_every_refusal_of_an_extension_names_it(kind: str) -> None:
    def ask(asked: Asked) -> None:
        for name, value in [("choice_params", [{"top_p": 2}]), ("stop_when", {"finished": 0}), ("choice_errors", "x")]:
            with pytest.raises(openai.BadRequestError) as caught:
                asked.answer(**{name: value})
            assert str(caught.value.param).startswith(name)

    async with serving(kind, say("ok")) as asked:
        await trio.to_thread.run_sync(ask, asked)


@both
async def test_greedy_copies_are_a_matter_of_the_server(kind: str) -> None:  # FAN-6
    def ask(asked: Asked) -> None:
        answer = asked.answer(n=3, temperature=0)
        assert [asked.text(choice) for choice in answer.choices] == ["red"] * 3
        assert answer.usage.completion_tokens == 12

    options = attrs.evolve(FAKE_OPTIONS, limits=Limits(greedy_n="replicate"))
    async with serving(kind, say(COLOURS), options=options) as asked:
        await trio.to_thread.run_sync(ask, asked)


@both
@pytest.mark.parametrize(
    ("target", "ended"), [("/requests/{}", [0, 1]), ("/requests/{}/choices/1", [1])], ids=["request", "choice"]
)
async def test_a_running_request_is_ended_through_the_official_client(kind: str, target: str, ended: list[int]) -> None:
    # FAN-34
    def ask(asked: Asked) -> None:
        stream = asked.answer(n=2, stream=True, max_tokens=3000)
        reasons: dict[int, str] = {}
        first = next(stream)
        assert asked.client.delete(target.format(first.id), cast_to=object)["cancelled"]  # type: ignore[index]
        for chunk in stream:
            for choice in chunk.choices:
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
            if reasons.keys() == set(ended):
                break
        assert reasons == dict.fromkeys(ended, "cancelled")

    async with serving(kind, count_for_ever) as asked:
        await trio.to_thread.run_sync(ask, asked)


def extensions(document: Any) -> Iterator[str]:
    """The names of all fields that a document marks, but for those of documents."""
    for name, schema in document["components"]["schemas"].items():
        if name != "Document":
            yield from (field for field, inner in schema.get("properties", {}).items() if inner.get("x-extension"))


# of the newer dialects, which test_dialects asks for
NEWER = {
    *("choice", "choices", "param", "code", "n", "stop"),
    *("presence_penalty", "frequency_penalty", "logit_bias"),
}


async def test_every_extension_in_the_document_is_in_the_table() -> None:
    async with serving("chat", say("ok")) as asked:
        document = await trio.to_thread.run_sync(lambda: asked.client.get("../openapi.json", cast_to=object))
    assert set(extensions(document)) - NEWER == EXTENSIONS.keys()
