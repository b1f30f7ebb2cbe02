"""The planner: what the next step computes, and who gives up pages for it.

Owns: the policy. Must not know: results, arrays.

A step is filled in this order:

1. Decodes: every running sequence, oldest first, computes its last token and draws the next. If there are more
   than may decode at once, they take turns. If they are few, some compute a draft too, and draw several tokens.
2. Chunks: residents that have more tokens to compute, prompts mostly, take what the budget has left.
3. Starts: waiting sequences become resident while there are slots, budget and pages. First those of groups that were
   admitted before, strictly in their order; nothing new starts beside one that doesn't fit. Then new groups (see
   waiting.py for who goes first). One that does not fit is passed over, and so is one for whose prompt a page is being
   computed that the prefix cache will have: to start now would be to compute it twice. Neither happens to aged ones.

Pages that are short are taken in this order: cached pages, least recently used first; paused sequences; then the
youngest resident, as long as it is younger than the sequence in need and not in this step already; last, the
pinned prompt of that sequence's own group, if nothing else is resident. Age is counted from admission, so a new group
takes pages from nobody but the paused, whoever has overtaken it.

What is preempted is a sequence, not a group: its siblings share the prompt's pages with it, so those are held
anyway, and dropping the siblings' own pages too would cost their recomputation for memory that nobody asked for.
The youngest sequence of the youngest group goes first, so a group shrinks from its end.

Drafts get what nobody else needs: rows that the decodes leave, and pages that are free or cached while nobody waits
for pages. They are given back when the step is over.

Why something always moves: the oldest sequence that is not paused can take pages from everybody, and a sequence
is never longer than the pool (see SchedulerState.submit), so it finishes; then another one is the oldest. The
pages that a start has to leave for those that run are none when nothing runs. A new group waits only for so many to
overtake it, and then for those that were admitted before.
"""

from __future__ import annotations

from trioserve.sched.flight import Draft, Flight
from trioserve.sched.lookup import Drafter
from trioserve.sched.prefix import NextPage
from trioserve.sched.roster import Roster
from trioserve.sched.sequence import Order, Sequence
from trioserve.sched.waiting import by_order


class Planner:
    """Chooses steps of ``max_batch_tokens`` tokens at most, with ``slots`` choices that decode.

    Decodes and drafts together have ``lookup_rows`` rows at most if there are any drafts, which have ``lookup_tokens``
    tokens at most.
    """

    def __init__(
        self, roster: Roster, *, slots: int, max_batch_tokens: int, lookup_rows: int, lookup_tokens: int
    ) -> None:
        self._roster = roster
        self._slots = slots
        self._max_batch_tokens = max_batch_tokens
        self._lookup_rows = lookup_rows
        self._lookup_tokens = lookup_tokens
        self._last_turn: Order = (-1, -1)

    def plan(self, number: int, now: float) -> Flight | None:
        """The next step, or None if nothing can run. No step may be in flight."""
        flight = Flight(number, self._roster.memory.page_size, self._max_batch_tokens, scorable=self._slots)
        self._add_decodes(flight)
        self._add_chunks(flight)
        self._start_waiting(flight, now)
        return flight if flight.spans else None

    def _add_decodes(self, flight: Flight) -> None:
        decodes = self._grow_decodes()
        spare = self._lookup_rows - len(decodes)
        for place, sequence in enumerate(decodes):
            if spare <= 0:
                flight.add(sequence)
                continue
            # an even share, of which the next ones get what it leaves
            draft = self._draft(sequence, -(-spare // (len(decodes) - place)))
            spare -= len(draft)
            flight.add(sequence, draft)

    def _grow_decodes(self) -> list[Sequence]:
        """Those that decode in this step, oldest first, with room for their next token."""
        ready = [sequence for sequence in self._roster.residents if sequence.behind == 1 and not sequence.paused]
        decodes: list[Sequence] = []
        # once, but for the case that all whose turn it is had to give their pages to older ones
        while ready and not decodes:
            for sequence in self._take_turns(ready):
                # its pages may have been taken for an older one just now
                if sequence.pages and self._grow(sequence):
                    # the younger ones can't take them any more
                    sequence.in_flight = True
                    decodes.append(sequence)
            ready = [sequence for sequence in ready if sequence.pages]
        return decodes

    def _draft(self, sequence: Sequence, most: int) -> Draft:
        """What the next tokens of a decode may be; there is room for them. ``most`` at most, and none past its end."""
        lookup = sequence.group.lookup
        if lookup is None or sequence.is_prompt:
            return ()
        (choice,) = sequence.choices
        if choice.matcher is not None:
            return ()  # what may follow a drafted token is known when that is drawn, and not before
        # one token is drawn after the last of the draft
        most = min(most, self._lookup_tokens, choice.end - sequence.length - 1)
        if most <= 0:
            return ()
        if sequence.drafter is None:
            sequence.drafter = Drafter(lookup, self._lookup_tokens)
        draft = sequence.drafter.draft(sequence.generated, most)
        # pages go to those who wait for them first
        take = len(self._roster.waiting) == 0
        return draft[: self._roster.memory.stretch(sequence, len(draft), take=take)] if draft else ()

    def _take_turns(self, ready: list[Sequence]) -> list[Sequence]:
        """Those of ``ready`` that decode in this step, oldest first."""
        if len(ready) <= self._slots:
            return ready
        after = [sequence for sequence in ready if sequence.order > self._last_turn]
        turn = (after + ready)[: self._slots]
        self._last_turn = turn[-1].order
        return sorted(turn, key=by_order)

    def _add_chunks(self, flight: Flight) -> None:
        for sequence in self._roster.residents:
            if flight.budget == 0:
                return
            if sequence.behind > 1 and not sequence.paused and flight.room(sequence) > 0:
                flight.add(sequence)

    def _start_waiting(self, flight: Flight, now: float) -> None:
        waiting = self._roster.waiting
        active = sum(sequence.behind > 0 and not sequence.paused for sequence in self._roster.residents)
        while flight.budget > 0 and active < self._slots and (sequence := waiting.first()) is not None:
            if flight.room(sequence) == 0 or not self._start(sequence, flight, spare=active):
                return
            active += 1
            flight.add(sequence)
        if flight.budget > 0 and active < self._slots:
            self._start_new(flight, active, now)

    def _start_new(self, flight: Flight, active: int, now: float) -> None:
        roster = self._roster
        candidates = roster.waiting.candidates(now)
        coming = self._coming() if candidates else set()
        for prompt in candidates:
            if flight.budget == 0 or active == self._slots:
                return
            is_aged = roster.waiting.is_aged(prompt, now)
            match = prompt.group.match
            if flight.room(prompt) == 0:
                if is_aged:
                    return
                continue
            if not is_aged and match.next_page in coming and len(match.pages) < match.most_pages:
                continue
            if self._start(prompt, flight, spare=active):
                active += 1
                self._admit(prompt, flight, now)
                flight.add(prompt)
                coming.add(roster.memory.coming(prompt))
            elif is_aged or roster.memory.available <= active:
                return  # any start takes a page

    def _coming(self) -> set[NextPage | None]:
        """The pages that those in prefill will put in the prefix cache next."""
        memory, residents = self._roster.memory, self._roster.residents
        return {
            memory.coming(sequence)
            for sequence in residents
            if sequence.computed < len(sequence.group.prompt) and not sequence.paused
        }

    def _start(self, sequence: Sequence, flight: Flight, spare: int) -> bool:
        # a page is left for each that runs, or the newcomer would be preempted when the first of them grows
        while True:
            prompt = sequence.parent
            if self._roster.start(sequence, spare, flight.copies):
                break
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._roster.preempt(victim)
        if prompt is not None and prompt.pages:
            flight.hold(prompt)
        if sequence.is_prompt:
            self._roster.totals.prompt_tokens_cached += sequence.reach()
        return True

    def _admit(self, prompt: Sequence, flight: Flight, now: float) -> None:
        group = prompt.group
        self._roster.waiting.admit(prompt, now)
        group.cached_tokens = prompt.computed
        group.waited_s = now - group.submitted
        flight.admitted.append(prompt)

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for a running sequence's next token. False: it was preempted itself."""
        while not self._roster.memory.grow(sequence):
            victim = self._victim(sequence) or sequence
            self._roster.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _victim(self, needy: Sequence) -> Sequence | None:
        """The resident that has to give up its pages for ``needy``; None if none has to."""
        if needy.is_new and not self._roster.paused_choices:
            return None  # as what follows would find out, if not as soon
        others = [sequence for sequence in self._roster.residents if sequence is not needy]
        free_to_go = [sequence for sequence in others if not sequence.in_flight]
        paused = [sequence for sequence in free_to_go if sequence.paused]
        if paused:
            return paused[-1]
        if not free_to_go:
            return None
        youngest = free_to_go[-1]
        if youngest.order > needy.order:
            return youngest
        is_own_pinned = youngest.group is needy.group and youngest.behind == 0
        return youngest if is_own_pinned and len(others) == 1 else None
