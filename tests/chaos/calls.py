"""What clients ask for: random requests that have an answer, and requests that must be refused.

Owns: their JSON, and what the answer must be. Must not know: connections, what a client does with its answer.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final, Literal

import attrs
from oracle import COMPLETION_TOKENS, Replay, Wishes, child_seed, replay
from wishes import BAD_OF_CHATS, BAD_OF_COMPLETIONS, LONG_STRUCTURE, STOPS, TOOLS, TOP, add_wishes, tools, wishes_of
from world import (
    BULK_PROMPT,
    CONTEXT_LENGTH,
    EMBEDDING_DIM,
    MAX_CHOICES,
    MAX_N,
    MODEL,
    POISON,
    chat_prompt,
    text_prompt,
)

MAX_BODY_SIZE: Final = 200_000
"""That of the server."""

GENERATE: Final = "/inference/v1/generate"
"""Tokens in, tokens out."""
AGREEMENT: Final = "[abc]"
"""What choices may agree on: the last of these letters."""

OWN_SALT: Final = "mine"
"""How a salt begins that no other request has."""

_WORDS: Final = ("red", "a", "grün", "cat", "count", "to", "ten", "日本", "why", "b", "sing", "😀", "x y")
# prompts begin with one of these, so that the prefix cache finds something
_OPENINGS: Final = ("You are brief. " * 3, "Say what you see, and no more: ", "ab " * 40, "")


@attrs.frozen(kw_only=True)
class Call:
    """A request that must be answered."""

    path: str
    body: dict[str, Any]
    prompts: tuple[tuple[int, ...], ...]
    """The token ids of each."""
    echo_texts: tuple[str, ...] = ()
    is_cancelled: bool = False
    """Its client is going to cancel it, or a choice of it."""

    @property
    def kind(self) -> Literal["chat", "completion", "tokens"]:
        if self.path == GENERATE:
            return "tokens"
        return "chat" if self.path.endswith("/chat/completions") else "completion"

    @property
    def chat(self) -> bool:
        return self.kind == "chat"

    @property
    def fields(self) -> dict[str, Any]:
        """Those that say how to draw."""
        return self.body["sampling_params"] if self.kind == "tokens" else self.body

    @property
    def must_call(self) -> bool:
        """Its choices are tool calls."""
        return self.body.get("tool_choice") == "required"

    @property
    def logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None: no log-probabilities."""
        value = self.fields.get("logprobs")
        if self.chat:
            return self.body.get("top_logprobs", 0) if value else None
        return None if value is None else int(value)

    @property
    def prompt_logprobs(self) -> int | None:
        """The same for the prompts."""
        return self.fields.get("prompt_logprobs")

    @property
    def tells_ids(self) -> bool:
        """Whether the token ids of the choices are to be told."""
        return self.kind == "tokens" or bool(self.body.get("return_token_ids"))

    @property
    def finds_prompts(self) -> bool:
        """Its prompts may be found in the prefix cache: they need not be computed whole, and others have them too."""
        is_scored = self.prompt_logprobs is not None or (bool(self.echo_texts) and self.logprobs is not None)
        has_own_salt = self.body.get("cache_salt", "").startswith(OWN_SALT) and len(self.prompts) == 1
        return not is_scored and not has_own_salt

    @property
    def n(self) -> int:
        return int(self.fields.get("n", 1))

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def candidates(self) -> int:
        """Of each prompt; its choices are the best of them (FAN-32)."""
        return int(self.fields.get("best_of", self.n))

    @property
    def ranked(self) -> bool:
        return self.candidates > self.n

    @property
    def seed(self) -> int | None:
        """The seed of choice 0; None if the server chooses."""
        seed = self.fields.get("seed")
        return None if seed in (None, -1) else int(seed)

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def stream_options(self) -> dict[str, bool]:
        return self.body.get("stream_options") or {}

    def encoded(self) -> bytes:
        return json.dumps(self.body).encode()

    @property
    def may_be_cancelled(self) -> bool:
        """Its choices may end before they would by themselves."""
        return self.is_cancelled or "stop_when" in self.fields

    @property
    def isolates(self) -> bool:
        """A choice that fails leaves its siblings alone (FAN-24)."""
        return self.fields.get("choice_errors") == "isolate"

    def expected(self, index: int, seed: int, *, tokens: int | None = None) -> Replay:
        """What candidate ``index`` must say if the first of its prompt has ``seed``; after ``tokens`` at the latest.

        Without ``best_of`` candidates are choices.
        """
        assert not self.must_call
        p, c = divmod(index, self.candidates)
        wishes = self.wishes(p)
        if tokens is not None:
            wishes = attrs.evolve(wishes, max_tokens=tokens)
        return replay(self.prompts[p], child_seed(seed, c), wishes)

    def wishes(self, p: int) -> Wishes:
        """How a choice of prompt ``p`` is drawn."""
        max_tokens = self.fields.get("max_tokens", self.fields.get("max_completion_tokens"))
        if max_tokens is None and self.kind == "completion":
            max_tokens = min(COMPLETION_TOKENS, CONTEXT_LENGTH - len(self.prompts[p]))
        return wishes_of(self.fields, max_tokens)

    def echo(self, index: int) -> str:
        """The text in front of choice ``index``."""
        return self.echo_texts[index // self.n] if self.echo_texts else ""


def random_call(rng: random.Random, *, stream: bool | None = None) -> Call:
    """An ordinary request."""
    body: dict[str, Any] = {"model": MODEL, "stream": rng.random() < 0.5 if stream is None else stream}
    if rng.random() < 0.7:
        body["n"] = rng.choice((1, 1, 1, 2, 3, 4, 8, MAX_N))
    _add_params(rng, body)
    if not body["stream"] and rng.random() < 0.2 and body.get("temperature") != 0:
        _add_best_of(rng, body)
    if body["stream"] and rng.random() < 0.6:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.3}
    if rng.random() < 0.02:
        # large enough to be decoded in a thread
        body["user"] = "u" * 110_000
    make = rng.choice((_chat, _chat, _completion, _completion, _tokens))
    add_wishes(rng, body, chat=make is _chat)
    if rng.random() < 0.05:
        # rarely, and never one that waits for all others: the load does not end before the run
        body["priority"] = rng.randint(-3, -1)
    if rng.random() < 0.15:
        # nobody else has it, or some do
        body["cache_salt"] = rng.choice((f"{OWN_SALT}{rng.getrandbits(62)}", "shared"))
    call = make(rng, body)
    if call.choices > 1 and rng.random() < 0.15:
        most = rng.randint(1, min(4, call.choices))
        call.fields["stop_when"] = rng.choice(({"finished": most}, {"agree": most, "pattern": AGREEMENT}))
    return call


def long_call(rng: random.Random, *, stream: bool, prompt_tokens: int = 0, max_tokens: int = 150) -> Call:
    """A request that takes long enough to do something to it; with its own seed, so that it can be found."""
    text = "".join(rng.choices("abcdefgh ", k=prompt_tokens)) if prompt_tokens else _opening(rng)
    body = {
        "model": MODEL,
        "prompt": text,
        "n": rng.choice((1, 2, 4, 8)),
        "seed": rng.getrandbits(62),
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    if rng.random() < 0.3:
        body |= {"logprobs": rng.randint(0, TOP), "frequency_penalty": 0.5, "min_p": 0.1}
    if rng.random() < 0.15:
        body |= LONG_STRUCTURE
        del body["ignore_eos"]
    if not stream and rng.random() < 0.3:
        _add_best_of(rng, body)
    return Call(path="/v1/completions", body=body, prompts=(text_prompt(text),))


def bulk_call(rng: random.Random, *, stream: bool) -> Call:
    """A request whose answer does not fit into the buffers of the kernel."""
    text = f"{BULK_PROMPT.decode()} {rng.getrandbits(32)}"
    body = {
        "model": MODEL,
        "prompt": text,
        "n": 4,
        "seed": rng.getrandbits(62),
        "max_tokens": 40,
        "ignore_eos": True,
        "stream": stream,
    }
    return Call(path="/v1/completions", body=body, prompts=(text_prompt(text),))


def _add_params(rng: random.Random, body: dict[str, Any]) -> None:
    if rng.random() < 0.6:
        body["seed"] = rng.choice((rng.getrandbits(62), rng.randrange(1000), -1, -2, 2**63 - 1, -(2**63)))
    if rng.random() < 0.4:
        body["stop"] = rng.choice((rng.choice(STOPS), rng.sample(STOPS, rng.randint(1, 4))))
    if rng.random() < 0.7:
        body["max_tokens"] = rng.choice((1, 2, 10, 20, 40, 80))
    if rng.random() < 0.05:
        body["ignore_eos"] = True
        body.setdefault("max_tokens", 60)
    if rng.random() < 0.3:
        body["temperature"] = rng.choice((1, 1e-6, 2.0))
        body["top_p"] = 0.9
    if rng.random() < 0.05 and body.get("n", 1) == 1:
        body["temperature"] = 0
    if rng.random() < 0.1:
        body["choice_errors"] = "isolate"
    if rng.random() < 0.3:
        body["prompt_lookup"] = rng.random() < 0.5


def _add_best_of(rng: random.Random, body: dict[str, Any]) -> None:
    body["best_of"] = min(MAX_N, body.get("n", 1) + rng.choice((0, 1, 2, 5)))
    # by their seeds it is told which candidates the choices are
    if body.get("seed") in (None, -1):
        body["seed"] = rng.getrandbits(62)


def _add_prompt_logprobs(rng: random.Random, fields: dict[str, Any]) -> None:
    if rng.random() < 0.08:
        fields["prompt_logprobs"] = rng.randint(0, TOP)


def _tokens(rng: random.Random, body: dict[str, Any]) -> Call:
    """A request with the ids of its prompt, which is answered with ids."""
    about = ("model", "stream", "stream_options", "priority", "cache_salt")
    fields = {name: value for name, value in body.items() if name not in (*about, "user")}
    if rng.random() < 0.3:
        fields["logprobs"] = rng.randint(0, TOP)
    _add_prompt_logprobs(rng, fields)
    prompt = text_prompt(_opening(rng))
    body = {name: body[name] for name in about if name in body}
    return Call(path=GENERATE, body=body | {"token_ids": list(prompt), "sampling_params": fields}, prompts=(prompt,))


def _opening(rng: random.Random) -> str:
    return rng.choice(_OPENINGS) + " ".join(rng.choices(_WORDS, k=rng.randint(1, 8)))


def _chat(rng: random.Random, body: dict[str, Any]) -> Call:
    messages = [("system", rng.choice(_OPENINGS) or "Be kind.")]
    for _ in range(rng.choice((0, 0, 1, 2))):
        messages += [("user", rng.choice(_WORDS)), ("assistant", rng.choice(_WORDS))]
    messages.append(("user", " ".join(rng.choices(_WORDS, k=3))))
    if "max_tokens" in body and rng.random() < 0.5:
        body["max_completion_tokens"] = body.pop("max_tokens")
    body["messages"] = [{"role": role, "content": content} for role, content in messages]
    if rng.random() < 0.2:
        body["logprobs"] = True
        if rng.random() < 0.7:
            body["top_logprobs"] = rng.randint(0, TOP)
    _add_prompt_logprobs(rng, body)
    if rng.random() < 0.15:
        body["return_token_ids"] = True
    told_of: tuple[str, ...] = ()
    if rng.random() < 0.15 and "structured_outputs" not in body and "response_format" not in body:
        told_of = _add_tools(rng, body)
    call = Call(path="/v1/chat/completions", body=body, prompts=(chat_prompt(messages, told_of),))
    if rng.random() < 0.2 and not call.must_call:
        body["prediction"] = {"type": "content", "content": _prediction(rng, call)}
    return call


def _add_tools(rng: random.Random, body: dict[str, Any]) -> tuple[str, ...]:
    """Tools that may be called, that must not be, or that have to be. Returns those that the model is told of."""
    body["tools"] = tools()
    # that a choice fails for itself is told by the replay, which calls have not
    choice = rng.choice(("none", "required", "required"))
    body["tool_choice"] = choice
    if choice == "none":
        return ()
    for name in ("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "best_of"):
        body.pop(name, None)
    if rng.random() < 0.5:
        body["parallel_tool_calls"] = False
    body["max_tokens"] = rng.choice((10, 60, 100))
    body.pop("max_completion_tokens", None)
    return TOOLS


def _prediction(rng: random.Random, call: Call) -> str:
    """The beginning of what a choice says, with a mistake in it; or something that it does not say, without a seed."""
    text = call.expected(rng.randrange(call.choices), call.seed or 0).text[:100]
    place = rng.randrange(len(text) + 1)
    return f"{text[:place]}{rng.choice(_WORDS)}{text[place + 1 :]}"


def _completion(rng: random.Random, body: dict[str, Any]) -> Call:
    count = rng.choice((1, 1, 1, 2, 3))
    if count * body.get("best_of", body.get("n", 1)) > MAX_CHOICES:
        count = 1
    texts = [_opening(rng) for _ in range(count)]
    prompts = tuple(text_prompt(text) for text in texts)
    if rng.random() < 0.2:
        # ids are taken as they are, so without BOS unless it is given
        prompts = tuple(tuple(text.encode()) for text in texts)
        given: list[Any] = [list(prompt) for prompt in prompts]
    else:
        given = [*texts]
    body["prompt"] = given[0] if count == 1 and rng.random() < 0.8 else given
    if rng.random() < 0.25:
        body["logprobs"] = rng.randint(0, TOP)
    _add_prompt_logprobs(rng, body)
    if rng.random() < 0.15:
        body["return_token_ids"] = True
    echo = rng.random() < 0.15
    if echo:
        body["echo"] = True
        if rng.random() < 0.3:
            body["max_tokens"] = 0
            body.pop("min_tokens", None)
    return Call(path="/v1/completions", body=body, prompts=prompts, echo_texts=tuple(texts) if echo else ())


@attrs.frozen(kw_only=True)
class BadCall:
    """A request that must be refused."""

    name: str
    status: int
    param: str | None = None
    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes = b""


def _wrong(name: str, param: str | None, *, status: int = 400, chat: bool = False, **fields: Any) -> BadCall:
    body: dict[str, Any] = {"model": MODEL}
    body |= {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return BadCall(name=name, status=status, param=param, path=path, body=json.dumps(body | fields).encode())


def _other(name: str, param: str | None, path: str, **body: Any) -> BadCall:
    return BadCall(name=name, status=400, param=param, path=path, body=json.dumps(body).encode())


BAD_CALLS: Final[tuple[BadCall, ...]] = (
    BadCall(name="not JSON", status=400, body=b'{"model": '),
    BadCall(name="not an object", status=400, body=b"[1, 2]"),
    BadCall(name="no body", status=400),
    BadCall(name="not UTF-8", status=400, body=b'{"model": "\xff\xfe"}'),
    BadCall(name="NaN", status=400, param="temperature", body=b'{"model": "m", "prompt": "x", "temperature": NaN}'),
    BadCall(name="deep", status=400, body=b"[" * 50_000),
    BadCall(name="unknown path", status=404, path="/v1/nothing", body=b"{}"),
    BadCall(name="wrong method", status=405, method="GET"),
    _wrong("no such model", "model", status=404, model="nope"),
    _wrong("n is 0", "n", n=0),
    _wrong("n is too large", "n", n=MAX_N + 1, chat=True),
    _wrong("n is true", "n", n=True),
    _wrong("greedy with n", "n", n=3, temperature=0),
    _wrong("too many choices", "prompt", prompt=["x"] * (MAX_CHOICES // MAX_N + 1), n=MAX_N),
    _wrong("temperature", "temperature", temperature=2.5, chat=True),
    _wrong("seed", "seed", seed=2**63),
    _wrong("stop", "stop", stop=[""]),
    _wrong("unknown field", "frobnicate", frobnicate=1),
    _wrong("stream_options", "stream_options", stream_options={"include_usage": True}),
    _wrong("stop_when", "stop_when", stop_when={"finished": 2}),
    _wrong("choice_errors", "choice_errors", choice_errors="ignore"),
    _wrong("best_of is less than n", "best_of", n=3, best_of=2),
    _wrong("best_of is too large", "best_of", best_of=MAX_N + 1, chat=True),
    _wrong("best_of in a stream", "best_of", best_of=2, stream=True),
    _wrong("prompt_lookup", "prompt_lookup", prompt_lookup="yes", chat=True),
    _wrong("prediction", "prediction.type", prediction={"type": "text", "content": "x"}, chat=True),
    _wrong("prediction of a completion", "prediction", prediction={"type": "content", "content": "x"}),
    _wrong(
        "prediction too long", "prediction", prediction={"type": "content", "content": "x" * CONTEXT_LENGTH}, chat=True
    ),
    _wrong("no messages", "messages", chat=True, messages=[]),
    _wrong("role", "messages.0.role", chat=True, messages=[{"role": "bard", "content": "x"}]),
    _wrong("token id", "prompt", prompt=[1, POISON + 1], stream=True),
    _wrong("second token id", "prompt.1", prompt=[[1], [POISON + 1]]),
    _wrong("prompt too long", "prompt", prompt="x" * CONTEXT_LENGTH, stream=True),
    _wrong("chat too long", "messages", chat=True, messages=[{"role": "user", "content": "x" * CONTEXT_LENGTH}]),
    _wrong("max_tokens too large", "max_tokens", max_tokens=CONTEXT_LENGTH, stream=True),
    *(_wrong(f"{param} of a completion", param, **fields) for param, fields in BAD_OF_COMPLETIONS),
    *(_wrong(f"{param} of a chat", param, chat=True, **fields) for param, fields in BAD_OF_CHATS),
    _other("no input", "input", "/v1/embeddings", model=MODEL),
    _other("encoding", "encoding_format", "/v1/embeddings", model=MODEL, input="x", encoding_format="hex"),
    _other("dimensions", "dimensions", "/v1/embeddings", model=MODEL, input="x", dimensions=EMBEDDING_DIM + 1),
    _other("input too long", "input", "/v1/embeddings", model=MODEL, input="x" * CONTEXT_LENGTH),
    _other("second input", "input.1", "/v1/embeddings", model=MODEL, input=["x", "x" * CONTEXT_LENGTH]),
    _other("prompt and messages", "messages", "/tokenize", prompt="x", messages=[]),
    _other("no prompt", "prompt", "/tokenize"),
    _other("tokens", "tokens", "/detokenize", tokens=[POISON]),
    _other("token_ids", "token_ids", GENERATE, token_ids=[]),
    _other("n", "sampling_params.n", GENERATE, token_ids=[1], sampling_params={"n": 0}),
    _other("top_p", "sampling_params.top_p", GENERATE, token_ids=[1], sampling_params={"top_p": 2}),
    _other(
        "stop ids", "sampling_params.stop_token_ids", GENERATE, token_ids=[1], sampling_params={"stop_token_ids": [999]}
    ),
)


def random_bad_call(rng: random.Random) -> BadCall:
    """A request that must be refused."""
    return rng.choice(BAD_CALLS)


def not_http(rng: random.Random) -> tuple[bytes, int]:
    """Bytes that are no request, and the status they are answered with."""
    return rng.choice(
        (
            (b"GARBAGE\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
            (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: minus\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-Y: z\r\n" * 120 + b"\r\n", 431),
            (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            (b"CONNECT example.org:80 HTTP/1.1\r\nHost: example.org\r\n\r\n", 501),
        )
    )
