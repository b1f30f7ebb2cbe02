"""The roster: every live choice, and where its sequences are.

Owns: which choices are live, which sequences wait and which are resident (hold pages), and the totals.
Must not know: steps, budgets.

A sequence lives as long as a choice needs it. So ``end`` is the one way out, for choices that finish and for
choices that are aborted in whatever state they are, and it leaves nothing behind (FAN-27).
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from itertools import pairwise

import attrs

from trioserve.errors import InvariantError
from trioserve.sched.group import Group, Uid
from trioserve.sched.lookup import PromptLookup
from trioserve.sched.memory import Memory
from trioserve.sched.pooling import PromptPool
from trioserve.sched.scores import PromptScores
from trioserve.sched.sequence import NEW, Choice, LiveGroup, Sequence
from trioserve.sched.waiting import Waiting, by_order


@attrs.define(eq=False)
class Totals:
    """Counts since the start; SchedulerStatistics, which repeats them, says what they mean."""

    groups: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    tokens_recomputed: int = 0
    tokens_generated: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    draft_tokens_accepted: int = 0


class Roster:
    """Every live choice, found by its uid, and the sequences, oldest first."""

    def __init__(self, memory: Memory, max_overtaken_s: float) -> None:
        self.memory = memory
        self.choices: dict[Uid, Choice] = {}
        self.paused_choices = 0
        self.waiting = Waiting(memory.tree, max_overtaken_s)
        self.residents: list[Sequence] = []
        self.totals = Totals()

    def __repr__(self) -> str:
        return f"<Roster {len(self.choices)} choices, {self.residents} resident, {len(self.waiting)} waiting>"

    def add(self, group: Group, max_length: int, now: float) -> None:
        """Queue a new group. No choice gets longer than ``max_length`` tokens, those of the prompt included."""
        prompt_tokens = len(group.prompt)
        pool = None if group.pooling is None else PromptPool(group.pooling, prompt_tokens)
        whole = group.prompt_logprobs > 0 or (pool is not None and pool.needs_all)
        match = self.memory.tree.match(group.prompt, group.cache_salt, whole=whole)
        live = LiveGroup(
            self.totals.groups,
            group.prompt,
            prompt_tokens // self.memory.page_size,
            match,
            now,
            priority=group.priority,
            salt=group.cache_salt,
            pool=pool,
        )
        if group.prompt_logprobs:
            live.scores = PromptScores(group.prompt_logprobs)
        if group.prompt_lookup or group.prediction:
            live.lookup = PromptLookup(group.prompt, ngrams=group.prompt_lookup, prediction=group.prediction)
        self.totals.groups += 1
        prompt = Sequence(live, NEW, array("i"), [])
        for index, spec in enumerate(group.choices):
            end = min(prompt_tokens + spec.max_tokens, max_length)
            choice = Choice(spec, index, end, prompt, spec.matcher)
            prompt.choices.append(choice)
            self.choices[spec.uid] = choice
        self.waiting.add(prompt)

    def branch(self, choice: Choice, token_id: int) -> None:
        """The choice's first token was drawn from its prompt: it goes on in a sequence of its own."""
        prompt = choice.sequence
        choice.sequence = Sequence(
            prompt.group,
            (prompt.order[0], choice.index),
            array("i", [token_id]),
            [choice],
            parent=prompt,
            reached=prompt.computed,
            paused=choice.paused,
        )
        self.waiting.add(choice.sequence)

    def start(self, sequence: Sequence, spare: int, copies: array[int]) -> bool:
        """Make a waiting sequence resident. False: ``spare`` pages would not stay available."""
        prompt = sequence.parent
        if prompt is None:
            if not self.memory.load(sequence, spare):
                return False
        else:
            if not self.memory.fork(sequence, prompt, spare, copies):
                return False
            sequence.parent = None
            prompt.choices.remove(sequence.choices[0])
            if not prompt.choices:
                self.residents.remove(prompt)
            else:
                self._update_paused(prompt)
        self.waiting.remove(sequence)
        insort(self.residents, sequence, key=by_order)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take a resident's pages away. It waits and is computed again later, as are the choices of a pinned prompt."""
        self.totals.preemptions += 1
        self.residents.remove(sequence)
        is_pinned = sequence.behind == 0
        self.memory.free(sequence)
        if not is_pinned:
            self.waiting.add(sequence)
            return
        for choice in sequence.choices:
            choice.sequence.parent = None
        sequence.choices.clear()

    def pause(self, choice: Choice, paused: bool) -> None:
        """Let a choice rest, or go on."""
        self.paused_choices += paused - choice.paused
        choice.paused = paused
        for sequence in (choice.sequence, choice.sequence.parent):
            if sequence is not None:
                self._update_paused(sequence)

    def end(self, choice: Choice) -> None:
        """Forget a choice, and release the sequences that nobody else needs."""
        del self.choices[choice.spec.uid]
        self.paused_choices -= choice.paused
        choice.ended = True
        for sequence in (choice.sequence, choice.sequence.parent):
            if sequence is not None:
                sequence.choices.remove(choice)
                if sequence.choices:
                    self._update_paused(sequence)
                else:
                    self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Release a sequence without choices; if a step in flight uses it, the commit of that step has to."""
        if sequence.in_flight:
            return
        if sequence.pages:
            self.residents.remove(sequence)
            self.memory.free(sequence)
        else:
            self.waiting.remove(sequence)

    def check(self) -> None:
        """Raise InvariantError if sequences, choices and pages contradict each other."""
        self.memory.pool.check(sequence.pages for sequence in self.residents)
        self.memory.tree.check()
        self.waiting.check()
        if any(one.order >= other.order for one, other in pairwise(self.residents)):
            raise InvariantError("sequences are out of order")
        users = Counter(page for sequence in self.residents for page in sequence.pages)
        for sequence in self.residents:
            self._check_resident(sequence)
            # a page that is still written to belongs to one sequence, and not to the prefix tree
            for page in sequence.pages[sequence.computed // self.memory.page_size :]:
                if users[page] > 1 or self.memory.pool.is_kept(page):
                    raise InvariantError(f"page {page} of {sequence} is shared, but not full")
        for sequence in self.waiting:
            self._check_waiting(sequence)
        known = {id(sequence): sequence for sequence in (*self.residents, *self.waiting)}
        for sequence in known.values():
            if any(self.choices.get(choice.spec.uid) is not choice for choice in sequence.choices):
                raise InvariantError(f"{sequence} is kept for a choice that has ended")
        if self.paused_choices != sum(choice.paused for choice in self.choices.values()):
            raise InvariantError(f"{self.paused_choices} choices are not the paused ones")
        for choice in self.choices.values():
            for needed in (choice.sequence, choice.sequence.parent):
                if needed is not None and (id(needed) not in known or choice not in needed.choices):
                    raise InvariantError(f"{choice} needs {needed}, which is gone")

    def _check_resident(self, sequence: Sequence) -> None:
        pages_for = self.memory.pages_for
        if not 0 <= sequence.computed <= sequence.length:
            raise InvariantError(f"{sequence} has more tokens computed than known")
        most = pages_for(sequence.length + sequence.drafted)
        if not pages_for(max(1, sequence.computed)) <= len(sequence.pages) <= most:
            raise InvariantError(f"{sequence} has the wrong number of pages")
        if sequence.drafted and not sequence.in_flight:
            raise InvariantError(f"{sequence} has drafts outside of a step")
        if not sequence.choices and not sequence.in_flight:
            raise InvariantError(f"{sequence} holds pages that nobody needs")

    @staticmethod
    def _check_waiting(sequence: Sequence) -> None:
        if sequence.pages or sequence.computed or sequence.in_flight or not sequence.choices:
            raise InvariantError(f"{sequence} waits, but is not as waiting sequences are")

    @staticmethod
    def _update_paused(sequence: Sequence) -> None:
        sequence.paused = all(choice.paused for choice in sequence.choices)
