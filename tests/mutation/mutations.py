"""The behaviours of the fan-out contract, each with a line whose change removes it.

A line that is not found any more is an error: whoever changes it says here what breaks the behaviour now.
"""

from __future__ import annotations

import attrs

SCHED = ("tests/sched/test_fan_out.py", "tests/sched/test_planner.py", "tests/sched/test_state.py")
GENERATION = ("tests/engine/test_generation.py",)
LIFETIME = ("tests/engine/test_lifetime.py",)
EXTENSIONS = ("tests/engine/test_extensions.py",)
ROUTES = ("tests/web/test_routes.py",)
WIRE = ("tests/wire",)
ORDER = ("tests/sched/test_waiting.py", "tests/sched/test_admission.py")
GROUPLESS = ("tests/engine/test_groupless.py",)


@attrs.frozen
class Mutation:
    law: str
    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


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
        "Place(p * n + j, seed,",
        "Place(j * len(self.usage) + p, seed,",
        GENERATION,
    ),
    Mutation(
        "FAN-6",
        "greedy choices are decoded once",
        "trioserve/engine/fan_out.py",
        "for j in range(1 if self.replicates else n):",
        "for j in range(n):",
        EXTENSIONS,
    ),
    Mutation(
        "FAN-8",
        "a prompt is computed once for all choices",
        "trioserve/sched/flight.py",
        "            for choice in sequence.choices:\n                self._add_row",
        "            for choice in sequence.choices[:1]:\n                self._add_row",
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
        "FAN-13",
        "siblings wait for a token of the first choice, not for its admission",
        "trioserve/engine/groupless.py",
        "                gate.admitted.set()\n",
        "                gate.admitted.set()\n                gate.open()\n",
        GROUPLESS,
    ),
    Mutation(
        "FAN-13",
        "no sibling is submitted if the first choice fails",
        "trioserve/engine/gate.py",
        "            self.error = error\n            self._parked.unpark_all()",
        "            self.open()",
        GROUPLESS,
    ),
    Mutation(
        "FAN-13",
        "if the first choice is cancelled the next goes first",
        "trioserve/engine/gate.py",
        "        elif not self.is_open:\n            self._parked.unpark_all()",
        "        elif not self.is_open:\n            self.open()",
        GROUPLESS,
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
        'return self._last(piece.text, piece.token_ids, "stop", piece.stop)',
        'return self._last(piece.text, progress.token_ids, "stop", piece.stop)',
        (*GENERATION, "tests/text/test_pipeline.py"),
    ),
    Mutation(
        "FAN-23",
        "a failed choice ends its siblings",
        "trioserve/engine/choice.py",
        "        raise ChoiceFailedError(message, self.request_id, self.places[0].index) from error",
        "        return last",
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
        "FAN-25",
        "a choice is aborted in an engine without groups too",
        "trioserve/engine/groupless.py",
        "                member.aborted.cancel()\n",
        "",
        GROUPLESS,
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
    Mutation(
        "order",
        "the best cached group starts first",
        "trioserve/sched/waiting.py",
        "sorted(ready[aged:], key=self._share, reverse=True)",
        "ready[aged:]",
        ORDER,
    ),
    Mutation(
        "order",
        "a group is overtaken for a while only",
        "trioserve/sched/waiting.py",
        "return self._max_overtaken_s == 0 or (",
        "return self._max_overtaken_s == 0 and (",
        ORDER,
    ),
    Mutation(
        "order",
        "nothing new starts beside an aged group that does not fit",
        "trioserve/sched/planner.py",
        "elif is_aged or roster.memory",
        "elif roster.memory",
        ORDER,
    ),
    Mutation(
        "order",
        "groups with the same prompt that wait together compute it once",
        "trioserve/sched/planner.py",
        "if not is_aged and match.next_page in coming",
        "if is_aged and match.next_page in coming",
        ORDER,
    ),
    Mutation(
        "order",
        "age counts from admission",
        "trioserve/sched/waiting.py",
        "prompt.order = (self._admissions, PROMPT_INDEX)",
        "prompt.order = (prompt.group.number, PROMPT_INDEX)",
        ORDER,
    ),
    Mutation(
        "order",
        "a match follows an eviction",
        "trioserve/sched/prefix.py",
        "            self._version += 1\n            evicted",
        "            evicted",
        ("tests/sched/test_prefix.py",),
    ),
)
