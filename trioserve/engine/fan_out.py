"""From the prompts of a request to its choices, and to the groups that the scheduler is given.

Owns: indices, uids (FAN-12), seeds (FAN-14), and what each choice is drawn with (FAN-33).
Must not know: nurseries, when anything runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import attrs

from trioserve.abc import DeviceInfo, Tokenizer
from trioserve.engine.choice import Choice, Place, PromptUsage
from trioserve.engine.options import EngineOptions
from trioserve.engine.prompts import resolve_max_tokens
from trioserve.engine.ranking import Ranking
from trioserve.engine.ticket import Mailbox, Ticket
from trioserve.engine.verdict import Verdict
from trioserve.engine.watch import RequestWatch
from trioserve.errors import ParamError
from trioserve.params import ChoiceParams, Pooling, SamplingParams
from trioserve.sched.group import ChoiceSpec, Group, Uid
from trioserve.sched.outbox import Outbox
from trioserve.sched.seeds import child_seed, seed_key
from trioserve.step import Matcher
from trioserve.text.output import ChoiceOutput
from trioserve.text.parser import OutputFormat
from trioserve.text.pipeline import ChoiceText


@attrs.define(eq=False)
class FanOut:
    """The choices of one request, in index order, and a group for each prompt.

    With best_of these are the candidates, and ``ranking`` makes choices of them; without, it is None.
    """

    request_id: str
    params: SamplingParams
    options: EngineOptions
    prompts: list[array[int]]
    usage: list[PromptUsage]
    prediction: array[int] | None = None
    """"i" token ids that the answers may repeat."""
    matcher: Matcher | None = None
    """What every choice must be, at its start."""
    output: OutputFormat | None = None
    """How thoughts and calls are told from text; None: all of it is text."""
    pooling: Pooling | None = None
    """How each prompt becomes a vector; None: it doesn't."""
    choices: list[Choice] = attrs.field(factory=list, init=False)
    groups: list[Group] = attrs.field(factory=list, init=False)
    ranking: Ranking | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.params.ranked:
            self.ranking = Ranking(self.params.n, self.params.candidates, len(self.prompts))

    @property
    def replicates(self) -> bool:
        """Greedy choices are all the same: they are decoded once for each prompt (FAN-6)."""
        return self.params.greedy and self.params.candidates > 1 and self.options.limits.greedy_n == "replicate"

    def places(self) -> list[Place]:
        """Index, seed and shared tokens of every choice, prompt-major: index = p * n + j (FAN-4)."""
        count = self.params.candidates
        return [
            Place(p * count + j, seed, usage.prompt_tokens if j else 0)
            for p, usage in enumerate(self.usage)
            for j, seed in enumerate(self._seeds())
        ]

    def build(
        self,
        tokenizer: Tokenizer,
        info: DeviceInfo,
        default_max_tokens: int | None,
        mailbox: Mailbox,
        verdict: Verdict,
        watch: RequestWatch,
    ) -> None:
        """Make ``choices`` and ``groups``.

        Raises:
            ParamError: a prompt and the tokens requested for it are over the context, or there is no such token.
        """
        params, count, places = self.params, self.params.candidates, self.places()
        lookup = self.options.looks_up(info) if self.params.prompt_lookup is None else self.params.prompt_lookup
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_ids)
        spelled = {} if self.output is None else self.output.spelled(tokenizer)
        for p, prompt in enumerate(self.prompts):
            specs: list[ChoiceSpec] = []
            most_tokens = resolve_choices(params, default_max_tokens, len(prompt), info)
            for j in range(1 if self.replicates else count):
                own, max_tokens = self.params.of_choice(j), most_tokens[j]
                first = p * count + j
                mine = tuple(places[first : first + count] if self.replicates else places[first : first + 1])
                ticket = Ticket(self._uid(p, j), mailbox, Outbox(self.options.max_backlog))
                text = self._text(tokenizer, spelled, len(mine))
                own_watch = watch.choice(len(prompt), max_tokens, copies=len(mine))
                self.choices.append(
                    Choice(self.request_id, mine, ticket, params, text, self.usage[p], verdict, own_watch, self.ranking)
                )
                specs.append(self._spec(ticket.uid, own, mine[0].seed, max_tokens, stop_ids, info.vocab_size))
            self.groups.append(
                Group(
                    id=f"{self.request_id}-{p}",
                    prompt=prompt,
                    choices=tuple(specs),
                    prompt_lookup=lookup,
                    prediction=self.prediction,
                    prompt_logprobs=_wanted(params.prompt_logprobs, info.vocab_size),
                    pooling=self.pooling,
                    ranked=params.ranked,
                    priority=params.priority,
                    cache_salt=(params.cache_salt or "").encode(),
                )
            )

    def _text(self, tokenizer: Tokenizer, spelled: Mapping[int, bytes], copies: int) -> ChoiceText | ChoiceOutput:
        params = self.params
        text = ChoiceText(
            tokenizer,
            params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop,
            skip_special=params.skip_special_tokens,
            spelled=spelled,
        )
        return text if self.output is None else ChoiceOutput(text, [self.output.parser() for _ in range(copies)])

    def _seeds(self) -> list[int]:
        """The seeds of one more prompt's choices; j counts inside it. Seeded or not is decided before the offset.

        Without a seed each prompt gets another, or prompts that are the same would get the same answers.
        """
        base = self.params.seed if self.params.seeded else None
        if base is None:
            base = self.options.pick_seed()
        seeds = [child_seed(base, j) for j in range(self.params.candidates)]
        for j, own in enumerate(self.params.choice_params):
            if own.seed is not None:
                seeds[j] = self.options.pick_seed() if own.seed == -1 else own.seed
        return seeds

    def _uid(self, prompt: int, j: int) -> Uid:
        if len(self.prompts) > 1:
            return Uid(f"{j}_{self.request_id}-{prompt}")
        return Uid(self.request_id if self.params.candidates == 1 else f"{j}_{self.request_id}")

    def _spec(
        self, uid: Uid, own: ChoiceParams, seed: int, max_tokens: int, stop_ids: frozenset[int], vocab_size: int
    ) -> ChoiceSpec:
        params = self.params
        # Engine.generate has resolved the temperature, and the rest has defaults
        assert own.temperature is not None
        assert own.top_p is not None
        assert own.top_k is not None
        assert own.min_p is not None
        return ChoiceSpec(
            uid=uid,
            seed=seed_key(seed),
            temperature=own.temperature,
            top_p=own.top_p,
            top_k=own.top_k,
            min_p=own.min_p,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            min_tokens=params.min_tokens,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            biases=params.logit_bias,
            matcher=self.matcher,
            logprobs=_wanted(params.logprobs, vocab_size) or params.ranked,
        )


def resolve_choices(
    params: SamplingParams, default_max_tokens: int | None, prompt_tokens: int, info: DeviceInfo
) -> list[int]:
    """How many tokens each candidate may have after a prompt of ``prompt_tokens``.

    Raises:
        ParamError: the prompt and the tokens requested for it are over the context, or there is no token with an id.
    """
    _check_ids(params, info)
    most_tokens: list[int] = []
    for j in range(params.candidates):
        own = params.choice_params
        param = f"choice_params.{j}.max_tokens" if own and own[j].max_tokens is not None else "max_tokens"
        requested = 0 if params.max_tokens == 0 else params.of_choice(j).max_tokens
        most = resolve_max_tokens(requested, default_max_tokens, prompt_tokens, info, param)
        if params.min_tokens > most:
            raise ParamError(
                f"min_tokens must be at most the tokens of a choice, {most}, got {params.min_tokens}.", "min_tokens"
            )
        most_tokens.append(most)
    return most_tokens


def _wanted(likeliest: int | None, vocab_size: int) -> int:
    """As RowArrays.logprobs has it. There are no more likeliest tokens than tokens."""
    return 0 if likeliest is None else 1 + min(likeliest, vocab_size)


def _check_ids(params: SamplingParams, info: DeviceInfo) -> None:
    for name, ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", [token_id for token_id, _ in params.logit_bias]),
    ):
        for token_id in ids:
            if token_id >= info.vocab_size:
                raise ParamError(
                    f"{name}: token id {token_id} is out of the vocabulary (0 to {info.vocab_size - 1}).", name
                )
