"""What a caller may ask of a generation, checked once, at the edge.

Owns: SamplingParams and Limits, and the ranges of every field.
Must not know: JSON, HTTP, or how a token is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import attrs

from trioserve.errors import ParamError
from trioserve.structure import Structure

Pooling = Literal["mean", "last"]
"""How the tokens of a text become one vector: the mean of their hidden states, or that of the last one."""

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
DEFAULT_TEMPERATURE = 1.0
MAX_TEMPERATURE = 2.0
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 20
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_CACHE_SALT = 256


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    # bool is an int in Python; a caller who writes "n": true means something else
    if not isinstance(value, int) or isinstance(value, bool):
        raise ParamError(f"{name} must be an integer, got {value!r}.", name)
    if value < low:
        raise ParamError(f"{name} must be at least {low}, got {value}.", name)
    if high is not None and value > high:
        raise ParamError(f"{name} must be at most {high}, got {value}.", name)


def _check_float(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ParamError(f"{name} must be a number, got {value!r}.", name)
    # written so that NaN, for which every comparison is false, is refused
    if not math.isfinite(value) or not low <= value <= high:
        raise ParamError(f"{name} must be between {low:g} and {high:g}, got {value}.", name)


def at_least(low: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    """A validator of attrs fields: ParamError for a number below ``low``."""

    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if value < low:
            raise ParamError(f"{attribute.name} must be at least {low}, got {value}.", attribute.name)

    return check


def is_finite(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    """A validator of attrs fields: ParamError for a number that is negative, infinite or NaN."""
    if not 0 <= value < math.inf:
        raise ParamError(f"{attribute.name} must be a finite number, 0 or more, got {value}.", attribute.name)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ParamError(f"{name} must be true or false, got {value!r}.", name)


def _check_optional_int(name: str, value: object, low: int, high: int) -> None:
    if value is not None:
        _check_int(name, value, low, high)


def _check_optional_float(name: str, value: object, high: float) -> None:
    if value is not None:
        _check_float(name, value, 0.0, high)


def _as_tuple(stop: str | Iterable[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


@attrs.frozen(kw_only=True)
class ChoiceParams:
    """What one choice has of its own (FAN-33). None takes the value of the request.

    Raises:
        ParamError: a value is of the wrong type or out of range; ``param`` names the field.
    """

    max_tokens: int | None = None
    """At least 1."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    """The seed itself, to which no index is added; -1 is unseeded."""

    def __attrs_post_init__(self) -> None:
        _check_optional_int("max_tokens", self.max_tokens, 1, INT32_MAX)
        _check_optional_float("temperature", self.temperature, MAX_TEMPERATURE)
        _check_optional_float("top_p", self.top_p, 1.0)
        _check_optional_int("top_k", self.top_k, -1, INT32_MAX)
        _check_optional_float("min_p", self.min_p, 1.0)
        _check_optional_int("seed", self.seed, INT64_MIN, INT64_MAX)


@attrs.frozen(kw_only=True)
class StopWhen:
    """When a request ends before all its choices have (FAN-31). Exactly one of the two rules.

    Raises:
        ParamError: neither, both, or a number below 1.
    """

    finished: int | None = None
    """As soon as this many choices have finished."""
    agree: int | None = None
    """As soon as this many finished choices agree on what ``pattern`` finds in their text."""
    pattern: str | None = None
    """A regular expression in RE2's syntax. A choice's answer is what its first group, or else all of it, matched in
    the last match in the text; a choice without a match has none."""

    def __attrs_post_init__(self) -> None:
        _check_optional_int("stop_when.finished", self.finished, 1, INT32_MAX)
        _check_optional_int("stop_when.agree", self.agree, 1, INT32_MAX)
        if (self.finished is None) == (self.agree is None):
            raise ParamError("stop_when takes exactly one of finished and agree.", "stop_when")
        if (self.agree is None) != (self.pattern is None):
            raise ParamError("stop_when.pattern goes with stop_when.agree.", "stop_when.pattern")


def _as_biases(biases: Mapping[int, float] | Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(biases.items() if isinstance(biases, Mapping) else biases)


def _as_choices(choices: Iterable[ChoiceParams]) -> tuple[ChoiceParams, ...]:
    return tuple(choices)


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How to draw the choices of every prompt of one request. Frozen, and valid once it exists.

    Raises:
        ParamError: a value is of the wrong type or out of range; ``param`` names the field.
    """

    n: int = 1
    """Choices per prompt, at least 1 (the upper bound is the engine's, see Limits)."""
    best_of: int | None = None
    """Candidates per prompt, n at least: more than n are drawn, and the n whose tokens are likelier in the mean are the
    choices, the best first (FAN-32). None and n: every candidate is a choice, in the order of the seeds."""
    max_tokens: int | None = None
    """Tokens to generate per choice at most; None: to the end of the context. 0 generates nothing."""
    temperature: float | None = None
    """0 to 2. Exactly 0 is greedy. None: what the model's own files say, or else 1."""
    top_p: float = 1.0
    """0 to 1: keep the smallest set of most likely tokens whose probability reaches this. 1 keeps all."""
    top_k: int = -1
    """Keep this many most likely tokens; -1 or 0 keeps all."""
    min_p: float = 0.0
    """0 to 1: drop tokens less likely than this times the most likely one."""
    seed: int | None = None
    """Any int64. Choice j, or candidate j of best_of, uses seed + j. None and -1 are unseeded."""
    stop: tuple[str, ...] = attrs.field(default=(), converter=_as_tuple)
    """Texts that end a choice; none of them appears in its text."""
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=tuple[int, ...])
    """Token ids that end a choice, besides the model's end-of-sequence tokens. Like those they have no text."""
    include_stop: bool = False
    """The text of a choice ends with the stop string, or the text of the stop token, that ended it."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens."""
    min_tokens: int = 0
    """Before a choice has so many tokens, none of those that end it can be drawn, and no stop string counts."""
    presence_penalty: float = 0.0
    """-2 to 2: subtracted from the logit of every token that the choice has generated."""
    frequency_penalty: float = 0.0
    """-2 to 2: subtracted from the logit of a token as many times as the choice has generated it."""
    repetition_penalty: float = 1.0
    """Above 0, to 10: the logit of every token in the prompt or the choice is divided by this if it is positive, and
    multiplied if it is negative. 1 changes nothing."""
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_as_biases)
    """Token ids, and what is added to their logits: -100 to 100."""
    logprobs: int | None = None
    """0 to 20: the log-probability of every token, and of so many of the likeliest ones in its place. None: none.
    They are those of the model, before penalties, bias, structure, temperature and filters."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but the first, which follows nothing."""
    structure: Structure | None = None
    """What every choice must be; it ends where it is complete."""
    skip_special_tokens: bool = True
    """The model's special tokens have no text."""
    priority: int = 0
    """Lower ones start first; those that run go on, whatever comes."""
    cache_salt: str | None = None
    """Prompts are found in the prefix cache only by requests with the same salt."""
    choice_params: tuple[ChoiceParams, ...] = attrs.field(default=(), converter=_as_choices)
    """Empty, or one for each of the n choices, or best_of candidates: how it differs from the request."""
    stop_when: StopWhen | None = None
    """When the choices that still run end with the reason "cancelled"."""
    choice_errors: Literal["fail", "isolate"] = "fail"
    """What a choice that fails means: the request fails, or the choice alone ends with the reason "error" (FAN-24)."""
    prompt_lookup: bool | None = None
    """Take drafts from the prompt and the answer itself, which changes the speed and nothing else. None: as the engine
    is set up."""
    prediction: str | None = None
    """A text that the answers may repeat in large part. Drafts are taken from it, whatever ``prompt_lookup`` says."""

    def __attrs_post_init__(self) -> None:
        _check_int("n", self.n, 1)
        _check_optional_int("best_of", self.best_of, self.n, INT32_MAX)
        _check_optional_int("max_tokens", self.max_tokens, 0, INT32_MAX)
        _check_optional_float("temperature", self.temperature, MAX_TEMPERATURE)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, INT32_MAX)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_optional_int("seed", self.seed, INT64_MIN, INT64_MAX)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ParamError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}.", "stop")
        for text in self.stop:
            if not isinstance(text, str):
                raise ParamError(f"stop must be a string or a list of strings, got {text!r}.", "stop")
            if not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise ParamError(f"A stop string has 1 to {MAX_STOP_LENGTH} characters, got {len(text)}.", "stop")
        for name in ("ignore_eos", "include_stop", "skip_special_tokens"):
            _check_bool(name, getattr(self, name))
        self._check_ends()
        self._check_changes()
        _check_optional_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_optional_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _check_int("priority", self.priority, -(2**31), INT32_MAX)
        if self.cache_salt is not None and not 1 <= len(self.cache_salt) <= MAX_CACHE_SALT:
            raise ParamError(
                f"cache_salt has 1 to {MAX_CACHE_SALT} characters, got {len(self.cache_salt)}.", "cache_salt"
            )
        self._check_choice_params()
        if self.choice_errors not in ("fail", "isolate"):
            raise ParamError(f"choice_errors must be fail or isolate, got {self.choice_errors!r}.", "choice_errors")
        if not isinstance(self.prompt_lookup, (bool, type(None))):
            raise ParamError(f"prompt_lookup must be true or false, got {self.prompt_lookup!r}.", "prompt_lookup")
        if not isinstance(self.prediction, (str, type(None))):
            raise ParamError(f"prediction must be a text, got {self.prediction!r}.", "prediction")

    def _check_ends(self) -> None:
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise ParamError(
                f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids, got {len(self.stop_token_ids)}.",
                "stop_token_ids",
            )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, INT32_MAX)
        _check_int("min_tokens", self.min_tokens, 0, INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamError(
                f"min_tokens must be at most max_tokens, {self.max_tokens}, got {self.min_tokens}.", "min_tokens"
            )
        if self.structure is not None:
            # A structured choice ends where it is complete: what is cut off before that is not what it must be, and
            # what is complete has nothing to go on with.
            for name in ("stop", "stop_token_ids", "include_stop", "ignore_eos", "min_tokens"):
                if getattr(self, name):
                    raise ParamError(f"{name} can't be given together with {self.structure.param}.", name)

    def _check_changes(self) -> None:
        _check_float("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_float("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY)
        if self.repetition_penalty == 0.0:
            raise ParamError("repetition_penalty must be above 0, got 0.", "repetition_penalty")
        if len(self.logit_bias) > MAX_BIASES:
            raise ParamError(f"logit_bias takes at most {MAX_BIASES} tokens, got {len(self.logit_bias)}.", "logit_bias")
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise ParamError("logit_bias has two values for one token.", "logit_bias")
        for token_id, bias in self.logit_bias:
            _check_int("logit_bias", token_id, 0, INT32_MAX)
            _check_float("logit_bias", bias, -MAX_BIAS, MAX_BIAS)

    def _check_choice_params(self) -> None:
        given = len(self.choice_params)
        if given not in (0, self.candidates):
            raise ParamError(
                f"choice_params must have one entry for each of the {self.candidates} choices, got {given}.",
                "choice_params",
            )
        if given and self.max_tokens == 0:
            raise ParamError("max_tokens must be at least 1 when choice_params is given, got 0.", "max_tokens")

    @property
    def candidates(self) -> int:
        """Choices that are drawn for each prompt: n, or best_of if that is more."""
        return self.n if self.best_of is None else self.best_of

    @property
    def ranked(self) -> bool:
        """Whether there are more candidates than choices, so that the best have to be found."""
        return self.candidates > self.n

    @property
    def greedy(self) -> bool:
        """Whether every choice takes the most likely tokens, without random numbers, so that all are the same."""
        return self.temperature == 0.0 and not self.choice_params

    def of_choice(self, j: int) -> ChoiceParams:
        """What choice j is drawn with: its own values, and the request's where it has none. A seed is its own only.

        Where the request draws nothing at all, with max_tokens 0, a choice has no number of its own: None.
        """
        own = self.choice_params[j] if self.choice_params else ChoiceParams()
        return ChoiceParams(
            max_tokens=(self.max_tokens or None) if own.max_tokens is None else own.max_tokens,
            temperature=self.temperature if own.temperature is None else own.temperature,
            top_p=self.top_p if own.top_p is None else own.top_p,
            top_k=self.top_k if own.top_k is None else own.top_k,
            min_p=self.min_p if own.min_p is None else own.min_p,
            seed=own.seed,
        )

    def resolve(self, model_temperature: float | None) -> SamplingParams:
        """These params with the temperature that counts: the caller's, else the model's, else 1 (FAN-7)."""
        if self.temperature is not None:
            return self
        return attrs.evolve(self, temperature=DEFAULT_TEMPERATURE if model_temperature is None else model_temperature)

    @property
    def seeded(self) -> bool:
        """Whether the caller chose the seeds. -1 means no, for every choice of the request."""
        return self.seed is not None and self.seed != -1


@attrs.frozen(kw_only=True)
class Limits:
    """The server's bounds on what one request may ask."""

    max_n: int = 128
    """Choices per prompt, and candidates of best_of."""
    max_choices: int = 1024
    """Prompts times n, or times best_of."""
    greedy_n: Literal["reject", "replicate"] = "reject"
    """What n > 1 means with temperature 0."""

    def check(self, params: SamplingParams, prompts: int) -> None:
        """Raise ParamError if a request of ``prompts`` prompts with these params is over a bound."""
        _check_int("n", params.n, 1, self.max_n)
        _check_optional_int("best_of", params.best_of, params.n, self.max_n)
        count, name = params.candidates, "best_of" if params.ranked else "n"
        if params.greedy and count > 1 and self.greedy_n == "reject":
            raise ParamError(f"{name} must be 1 when using greedy sampling, got {count}.", name)
        if prompts * count > self.max_choices:
            raise ParamError(
                f"A request may have at most {self.max_choices} choices, got {prompts} prompts times {name} = {count}.",
                name if prompts == 1 else "prompt",
            )
        wanted = None if params.stop_when is None else params.stop_when.finished or params.stop_when.agree
        if wanted is not None and wanted > prompts * count:
            raise ParamError(
                f"stop_when asks for {wanted} choices, but the request has {prompts * count}.", "stop_when"
            )
