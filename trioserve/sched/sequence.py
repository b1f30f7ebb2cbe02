"""Sequences: tokens that are, or will be, computed into pages.

Owns: Choice, Sequence and LiveGroup, the books of live work. Must not know: who comes first, what is free.

The life of a group: its prompt is one sequence, with all choices. When that is computed, a first token is drawn
for each choice, and each choice that goes on gets a sequence of its own, which waits to be forked from the
prompt. The prompt is *pinned*, that is, it holds its pages, until the last of them has been forked.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

import attrs

from trioserve.sched.group import ChoiceSpec
from trioserve.sched.lookup import Drafter, PromptLookup
from trioserve.sched.pooling import PromptPool
from trioserve.sched.prefix import Match
from trioserve.sched.scores import PromptScores
from trioserve.step import Matcher

Order = tuple[int, int]
"""(groups admitted before, index of the choice). Lower is older and goes first; a prompt comes before its choices."""

PROMPT_INDEX: Final = -1
NEW: Final[Order] = (sys.maxsize, PROMPT_INDEX)
"""The order of a prompt whose group is not admitted yet: younger than all that are."""


@attrs.define(eq=False)
class LiveGroup:
    """What the sequences of one group have in common."""

    number: int
    """Counts the groups of one scheduler as they are submitted."""
    prompt: array[int]
    """[P] "i" token ids."""
    whole_pages: int
    """Pages that the prompt fills: those its choices can share while they write."""
    match: Match
    """What the prefix cache knows of the prompt; not always up to date."""
    submitted: float
    """When, in seconds."""
    overtaken: float | None = None
    """When a group that was submitted later was first admitted before it, in seconds; None: none was."""
    lookup: PromptLookup | None = None
    """Where drafts for its choices come from; None: it gets none."""
    priority: int = 0
    salt: bytes = b""
    """Part of what its pages hold, for the prefix cache."""
    scores: PromptScores | None = None
    """The log-probabilities of its prompt, as far as there are any; None: they are not wanted."""
    pool: PromptPool | None = None
    """The vector of its prompt, as far as it is computed; None: it is not wanted."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when the prompt was first scheduled; None before."""
    waited_s: float = 0.0
    """Seconds from its submission to then."""

    @property
    def place(self) -> tuple[int, int]:
        """In the line of new groups, the first one first."""
        return self.priority, self.number


@attrs.define(eq=False, repr=False)
class Choice:
    """One live choice."""

    spec: ChoiceSpec
    index: int
    """j: counts in its group."""
    end: int
    """Tokens, those of the prompt included, at which it ends."""
    sequence: Sequence
    """That of the prompt until its first token is drawn, then its own."""
    matcher: Matcher | None
    """Its own once it has a token, before that perhaps its siblings' too."""
    paused: bool = False
    ended: bool = False

    def __repr__(self) -> str:
        return f"<Choice {self.spec.uid}>"

    def advance(self, token_id: int) -> bool:
        """Tell its matcher of its next token. Whether it is complete with that."""
        if self.matcher is None:
            return False
        if self.sequence.is_prompt:
            self.matcher = self.matcher.copy()  # its siblings go other ways
        return self.matcher.advance(token_id)


@attrs.define(eq=False, repr=False)
class Sequence:
    """The prompt of a group, or the prompt and what was generated for one choice."""

    group: LiveGroup
    order: Order
    generated: array[int]
    """"i" token ids after the prompt's. The last one drawn is among them, so it may be not computed yet."""
    choices: list[Choice]
    """Those that need it: the prompt's are the ones without a computed token of their own. None left: it ends."""
    parent: Sequence | None = None
    """The pinned prompt it is to be forked from."""
    pages: array[int] = attrs.field(factory=lambda: array("i"))
    """"i" block table: the pages it uses, in sequence order. Empty while it waits. Only whole ones are shared."""
    computed: int = 0
    """Leading tokens whose keys and values are in its pages, as far as results have come."""
    reached: int = 0
    """The highest that ``computed`` ever was; tokens below are recomputed after a preemption."""
    cacheable: bool = True
    """Its pages may go to the prefix cache: it was not flushed since they were computed."""
    paused: bool = False
    """All its choices are."""
    in_flight: bool = False
    """A plan without a result computes it or copies from it, so it keeps its pages."""
    drafter: Drafter | None = None
    """Made when there is a first chance for a draft."""
    drafted: int = 0
    """Draft tokens after its own that the step in flight computes. They have places in its pages, which are its alone:
    what is written there is worth something only as far as the drafts turn out right."""
    is_prompt: bool = attrs.field(init=False)
    """Asked so often that it is no property: it never changes."""

    @is_prompt.default
    def _is_prompt(self) -> bool:
        return self.order[1] == PROMPT_INDEX

    def __repr__(self) -> str:
        name = f"of new group {self.group.number}" if self.is_new else self.order
        return f"<Sequence {name}: {self.computed} of {self.length} tokens in {len(self.pages)} pages>"

    @property
    def is_new(self) -> bool:
        """It is the prompt of a group that was not admitted yet."""
        return self.order is NEW

    @property
    def length(self) -> int:
        """Tokens known."""
        return len(self.group.prompt) + len(self.generated)

    @property
    def behind(self) -> int:
        """Tokens to compute before the next can be drawn: 1 in a decode, 0 for a pinned prompt."""
        return len(self.group.prompt) + len(self.generated) - self.computed

    @property
    def tokens(self) -> array[int]:
        """[length] "i" a copy of all its tokens."""
        return self.group.prompt + self.generated

    def reach(self) -> int:
        """How many of its computed tokens never were before; from now on they were."""
        new = max(0, self.computed - self.reached)
        self.reached += new
        return new
