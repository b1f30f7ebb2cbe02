"""What the end of one choice means for the rest of its request.

Owns: the counts of finished and failed choices, and the rules of stop_when and choice_errors (FAN-24, FAN-31).
Must not know: how choices run, how they are ended.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from trioserve.params import SamplingParams
from trioserve.text.agreement import Agreement


@attrs.define(eq=False)
class Verdict:
    """One for each request, told by its choices. ``end_request`` cancels the choices that still run."""

    params: SamplingParams
    choices: int
    end_request: Callable[[], None] = attrs.field(repr=False)
    _finished: int = attrs.field(default=0, init=False)
    _failed: int = attrs.field(default=0, init=False)
    _agreement: Agreement | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """
        Raises:
            ParamError: the pattern of stop_when is not valid.
        """
        rule = self.params.stop_when
        if rule is not None and rule.agree is not None:
            assert rule.pattern is not None
            self._agreement = Agreement(rule.pattern, rule.agree)

    @property
    def reads_text(self) -> bool:
        """Whether ``finished`` needs the whole text of a choice."""
        return self._agreement is not None

    def finished(self, text: str, *, copies: int = 1) -> None:
        """A choice, or several with the same text, ended by themselves."""
        rule = self.params.stop_when
        if rule is None:
            return
        self._finished += copies
        if self._agreement is None:
            enough = rule.finished is not None and self._finished >= rule.finished
        else:
            enough = self._agreement.vote(text, copies)
        if enough:
            self.end_request()

    def is_isolated(self, *, copies: int = 1) -> bool:
        """A choice failed. Whether the request goes on; it does not once every choice has failed."""
        self._failed += copies
        return self.params.choice_errors == "isolate" and self._failed < self.choices
