"""The behaviours of the fan-out contract, each with a line whose change removes it.

A line that is not found any more is an error: whoever changes it says here what breaks the behaviour now.
"""

from __future__ import annotations

import attrs

SCHED = ("tests/sched/test_fan_out.py", "tests/sched/test_planner.py", "tests/sched/test_state.py")
GENERATION = ("tests/engine/test_generation.py",)
LIFETIME = ("tests/engine/test_lifetime.py",)
EXTENSIONS = ("tests/engine/test_extensions.py",)
BEST_OF = ("tests/engine/test_ranking.py", "tests/engine/test_best_of.py")
ROUTES = ("tests/web/test_routes.py",)
WIRE = ("tests/wire",)
DRAFTS = ("tests/sched/test_drafts.py",)
SAMPLER = ("tests/kernels/test_sampler.py",)
NATIVE_SAMPLER = ("tests/kernels/test_native_sampler.py",)
REFERENCE = ("tests/device/test_reference.py",)


@attrs.frozen
class Mutation:
    law: str
    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """It breaks what the native library is made of."""
        return self.path.endswith((".cpp", ".h"))


MUTATIONS = (
    Mutation(
        "FAN-2",
        "n has an upper bound",
        "trioserve/params.py",
        '_check_int("n", params.n, 1, self.max_n)',
        '_check_int("n", params.n, 1)',
        GENERATION,
    ),
    Mutation(
        "FAN-4",
        "indices of prompt lists are prompt-major",
        "trioserve/engine/fan_out.py",
        "Place(p * count + j, seed,",
        "Place(j * len(self.usage) + p, seed,",
        GENERATION,
    ),
    Mutation(
        "FAN-6",
        "greedy choices are decoded once",
        "trioserve/engine/fan_out.py",
        "for j in range(1 if self.replicates else count):",
        "for j in range(count):",
        EXTENSIONS,
    ),
    Mutation(
        "FAN-8",
        "a prompt is computed once for all choices",
        "trioserve/sched/flight.py",
        "            for choice in sequence.choices:\n                self.draws",
        "            for choice in sequence.choices[:1]:\n                self.draws",
        SCHED,
    ),
    Mutation(
        "FAN-9",
        "each choice has its own text",
        "trioserve/engine/fan_out.py",
        "                text = ChoiceText(tokenizer, self.params.stop)",
        "                text = self.choices[0].text if self.choices else ChoiceText(tokenizer, self.params.stop)",
        (*GENERATION, *ROUTES),
    ),
    Mutation(
        "FAN-10",
        "a request of several groups is taken whole or not at all",
        "trioserve/engine/scheduler.py",
        "                for uid in taken:\n                    self._state.abort(uid)\n",
        "",
        LIFETIME,
    ),
    Mutation(
        "FAN-11",
        "the last partial page is copied before it is written to",
        "trioserve/sched/memory.py",
        "            copy = self.pool.own(pages[-1])",
        "            copy = None",
        SCHED,
    ),
    Mutation(
        "FAN-14",
        "choice j has the seed s + j",
        "trioserve/sched/seeds.py",
        "return (seed + j + 2**63)",
        "return (seed + 2**63)",
        GENERATION,
    ),
    Mutation(
        "FAN-15",
        "the random number's counter is the absolute position",
        "trioserve/sched/flight.py",
        "rows.counters.append(position)",
        "rows.counters.append(len(self.draws))",
        SCHED,
    ),
    Mutation(
        "FAN-15",
        "a position has its own random number",
        "kernels/reference/sampler.py",
        "return pick(weights, uniform(seed, position))",
        "return pick(weights, uniform(seed, 0))",
        SAMPLER,
    ),
    Mutation(
        "FAN-15",
        "a position has its own random number, in native code too",
        "kernels/cpu/sampler.h",
        "uniform(row.seed, row.counter)",
        "uniform(row.seed, 0)",
        NATIVE_SAMPLER,
    ),
    Mutation(
        "FAN-15",
        "of a draft only what was drawn is kept",
        "trioserve/sched/commit.py",
        " and drawn[kept - 1] == draft[kept - 1]:",
        ":",
        DRAFTS,
    ),
    Mutation(
        "FAN-15",
        "what was computed for a wrong draft is not taken for the sequence's own, nor cached",
        "trioserve/sched/commit.py",
        "    sequence.reach()\n    if finish is None:",
        "    sequence.computed += len(draft) + 1 - kept\n    sequence.reach()\n    if finish is None:",
        DRAFTS,
    ),
    Mutation(
        "FAN-15",
        "a draft stops before the end of its choice",
        "trioserve/sched/planner.py",
        "most = min(most, self._lookup_tokens, choice.end - sequence.length - 1)",
        "most = min(most, self._lookup_tokens)",
        DRAFTS,
    ),
    Mutation(
        "drafts",
        "drafts have the rows that decodes leave",
        "trioserve/sched/planner.py",
        "spare = self._lookup_rows - len(decodes)",
        "spare = self._lookup_rows",
        DRAFTS,
    ),
    Mutation(
        "drafts",
        "a draft takes no page while somebody waits for pages",
        "trioserve/sched/planner.py",
        "take = len(self._roster.waiting) == 0",
        "take = True",
        DRAFTS,
    ),
    Mutation(
        "drafts",
        "no draft makes another sequence give up its pages",
        "trioserve/sched/memory.py",
        "taken = min(missing, self.available) if take else 0",
        "taken = missing if take else 0",
        DRAFTS,
    ),
    Mutation(
        "drafts",
        "the pages of a wrong draft are given back",
        "trioserve/sched/commit.py",
        "        roster.memory.trim(sequence)",
        "        pass",
        DRAFTS,
    ),
    Mutation(
        "drafts",
        "wrong drafts become rare",
        "trioserve/sched/lookup.py",
        "self._width = max(right, self._width // 2)",
        "pass",
        ("tests/sched/test_lookup.py",),
    ),
    Mutation(
        "FAN-21",
        "what was drafted right after the end of a text is not counted as accepted",
        "trioserve/engine/choice.py",
        "self.drafted += Drafted(-lost, lost)",
        "pass",
        ("tests/engine/test_drafts.py",),
    ),
    Mutation(
        "FAN-19",
        "the finish is a chunk of its own",
        "trioserve/wire/tally.py",
        '"finish_reason": event.reason,',
        '"finish_reason": None,',
        WIRE,
    ),
    Mutation(
        "FAN-20",
        "other chunks have usage null",
        "trioserve/wire/chunks.py",
        "return b',\"usage\":null'",
        'return b""',
        WIRE,
    ),
    Mutation(
        "FAN-21",
        "cached tokens are counted once per prompt",
        "trioserve/engine/choice.py",
        "cached_tokens=0 if place.shared_tokens else self.prompt.cached_tokens,",
        "cached_tokens=self.prompt.cached_tokens,",
        GENERATION,
    ),
    Mutation(
        "FAN-21",
        "a token decoded after a stop string is not counted",
        "trioserve/engine/choice.py",
        'return self._last(piece.text, piece.token_ids, progress.logprobs, "stop", piece.stop)',
        'return self._last(piece.text, progress.token_ids, progress.logprobs, "stop", piece.stop)',
        (*GENERATION, "tests/text/test_pipeline.py"),
    ),
    Mutation(
        "FAN-23",
        "a failed choice ends its siblings",
        "trioserve/engine/choice.py",
        "            raise ChoiceFailedError(message, self.request_id, self.places[0].index) from error",
        '            return self._finish("error", None, message)',
        LIFETIME,
    ),
    Mutation(
        "FAN-23",
        "an engine that failed says why",
        "trioserve/engine/ticket.py",
        "return EngineClosedError() if self.fault is None else EngineFailedError(self.fault)",
        "return EngineClosedError()",
        LIFETIME,
    ),
    Mutation(
        "FAN-24",
        "a request fails when all its choices have",
        "trioserve/engine/verdict.py",
        'return self.params.choice_errors == "isolate" and self._failed < self.choices',
        'return self.params.choice_errors == "isolate"',
        EXTENSIONS,
    ),
    Mutation(
        "FAN-25",
        "leaving a generation aborts its choices",
        "trioserve/engine/ticket.py",
        "        if not self.ended:\n            self.mailbox.post(Abort(self.uid))",
        "        if self.ended:\n            self.mailbox.post(Abort(self.uid))",
        LIFETIME,
    ),
    Mutation(
        "FAN-25",
        "a disconnect cancels the exchange",
        "trioserve/web/exchange.py",
        "        self._client_left = True\n        self.nursery.cancel_scope.cancel()",
        "        self._client_left = True",
        ROUTES,
    ),
    Mutation(
        "FAN-26",
        "a refused or unread request is forgotten",
        "trioserve/engine/generation.py",
        "            self._release()\n            self._engine.leave(self)\n",
        "            self._release()\n",
        GENERATION,
    ),
    Mutation(
        "FAN-27",
        "no ticket outlives its choice",
        "trioserve/engine/scheduler.py",
        "            self._state.abort(mail.uid)\n",
        "",
        LIFETIME,
    ),
    Mutation(
        "FAN-28",
        "a stream that fails ends with an error event",
        "trioserve/web/pump.py",
        "            await wire.send(error_event(error))",
        "            pass",
        ROUTES,
    ),
    Mutation(
        "FAN-29",
        "a choice that nobody reads is paused",
        "trioserve/engine/scheduler.py",
        "                self._state.pause(ticket.uid)",
        "                pass",
        LIFETIME,
    ),
    Mutation(
        "FAN-30",
        "a plan names the choices that share pages",
        "trioserve/sched/flight.py",
        "                    triples.extend((span - 1, 2, len(pages)))",
        "                    pass",
        SCHED,
    ),
    Mutation(
        "FAN-31",
        "a request ends when enough choices have finished",
        "trioserve/engine/verdict.py",
        "            self.end_request()",
        "            pass",
        EXTENSIONS,
    ),
    Mutation(
        "FAN-32",
        "the likeliest candidates are the choices",
        "trioserve/engine/ranking.py",
        "return _TIERS[ending.reason], -mean, ending.index",
        "return _TIERS[ending.reason], mean, ending.index",
        BEST_OF,
    ),
    Mutation(
        "FAN-32",
        "a candidate is as likely as its tokens in the mean",
        "trioserve/engine/choice.py",
        "mean_logprob = self._logprob_sum / self.completion_tokens if is_scored else None",
        "mean_logprob = self._logprob_sum if is_scored else None",
        BEST_OF,
    ),
    Mutation(
        "FAN-32",
        "tokens after a stop string are not in the mean",
        "trioserve/engine/choice.py",
        "for logprob in logprobs[: len(ids)]:",
        "for logprob in logprobs:",
        BEST_OF,
    ),
    Mutation(
        "FAN-32",
        "tokens that wait keep their log-probabilities",
        "trioserve/sched/outbox.py",
        "        self._logprobs.extend(delivery.logprobs)",
        '        self._logprobs = array("d", delivery.logprobs)',
        ("tests/sched/test_outbox.py",),
    ),
    Mutation(
        "FAN-32",
        "a log-probability is that of the drawn token",
        "trioserve/sched/commit.py",
        "tuple(result.logprobs[row : row + len(token_ids)])",
        "tuple(result.logprobs[: len(token_ids)])",
        SCHED,
    ),
    Mutation(
        "FAN-32",
        "the usage counts the candidates that are no choices",
        "trioserve/wire/tally.py",
        "sum(cost.completion_tokens for cost in costs) + discarded_tokens",
        "sum(cost.completion_tokens for cost in costs)",
        (*WIRE, *ROUTES),
    ),
    Mutation(
        "FAN-32",
        "what is not known before all candidates have finished can't be streamed",
        "trioserve/wire/options.py",
        "if streaming.stream and params.ranked:",
        "if False:",
        WIRE,
    ),
    Mutation(
        "FAN-32",
        "a log-probability is that of the raw logits",
        "kernels/reference/sampler.py",
        "return float(differences[token_id] - np.log(np.cumsum(np.exp(differences))[-1]))",
        "return float(differences[token_id])",
        (*SAMPLER, *REFERENCE),
    ),
    Mutation(
        "FAN-33",
        "a choice's own parameters count",
        "trioserve/params.py",
        "own = self.choice_params[j] if self.choice_params else ChoiceParams()",
        "own = ChoiceParams()",
        EXTENSIONS,
    ),
    Mutation(
        "FAN-34",
        "a cancelled choice is told so",
        "trioserve/engine/scheduler.py",
        '            self._deliver(Delivery(uid=uid, finish="cancelled"))',
        "            self._tickets.pop(uid).end()",
        LIFETIME,
    ),
)
