"""What was measured, side by side: rounds, medians, ratios, the table and the JSON.

Owns: figures and what is made of them. Must not know: how they were measured, and of whom.

Contestants are measured in turn, round by round, and compared within a round: what else the machine does changes from
minute to minute, and then changes both sides of a ratio.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs


@attrs.frozen
class Figures:
    """Of one contestant in one round."""

    rate: float
    """Tokens per second."""
    cpu_ms: float
    """CPU milliseconds of its whole process, all threads, per token."""
    details: Mapping[str, float] = attrs.field(factory=dict)
    """Whatever else belongs in the JSON."""


@attrs.frozen
class Spread:
    """A median, and the lowest and highest of what it is the median of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        given = sorted(values)
        return cls(statistics.median(given), given[0], given[-1])


@attrs.frozen
class Comparison:
    """All rounds of one kind of work."""

    work: str
    rounds: Sequence[Mapping[str, Figures]]
    """Each has the figures of every contestant, in the same order."""
    setup: Mapping[str, str] = attrs.field(factory=dict)
    """What was chosen for a contestant for this work: its flags."""

    @property
    def contestants(self) -> list[str]:
        return list(self.rounds[0])

    def rate(self, contestant: str) -> Spread:
        """Tokens per second."""
        return Spread.of(figures[contestant].rate for figures in self.rounds)

    def cpu_ms(self, contestant: str) -> Spread:
        """CPU milliseconds per token."""
        return Spread.of(figures[contestant].cpu_ms for figures in self.rounds)

    def ratio(self, ours: str, peer: str) -> Spread:
        """How many times the peer's tokens per second ours are. The median of ratios, not the ratio of medians."""
        return Spread.of(figures[ours].rate / figures[peer].rate for figures in self.rounds)

    def cpu_ratio(self, ours: str, peer: str) -> Spread:
        """How many times our CPU time per token the peer's is."""
        return Spread.of(figures[peer].cpu_ms / figures[ours].cpu_ms for figures in self.rounds)


def take_turns(contestants: Sequence[str], round_number: int) -> list[str]:
    """The order of a round: each contestant is first in turn, so that none always runs in the wake of another."""
    first = round_number % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def table(comparisons: Sequence[Comparison], ours: str) -> str:
    """All comparisons as a table of reStructuredText, which reads well as it is.

    A peer's last columns: how many times its rate ours is, with the lowest and highest of all rounds, and how many
    times our CPU time its own is.
    """
    names = comparisons[0].contestants
    head = ["work"]
    for name in names:
        head += [f"{name}, tok/s", "CPU ms"]
        if name != ours:
            head += ["ratio", "CPU ratio"]
    rows = [head]
    for each in comparisons:
        row = [each.work]
        for name in names:
            row += [f"{each.rate(name).median:.0f}", f"{each.cpu_ms(name).median:.2f}"]
            if name != ours:
                ratio = each.ratio(ours, name)
                row += [
                    f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
                    f"{each.cpu_ratio(ours, name).median:.2f}",
                ]
        rows.append(row)
    return simple_table(rows)


def simple_table(rows: Sequence[Sequence[str]]) -> str:
    """A reStructuredText simple table; the first row is its head. All columns but the first are set to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = "  ".join("=" * width for width in widths)

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells)

    return "\n".join([rule, line(rows[0]), rule, *(line(row) for row in rows[1:]), rule])


def report(comparisons: Sequence[Comparison], ours: str, **about: object) -> dict[str, object]:
    """Everything, for JSON: ``about`` first, then the comparisons with all rounds and what follows from them."""

    def one(each: Comparison) -> dict[str, object]:
        peers = [name for name in each.contestants if name != ours]
        return {
            "work": each.work,
            "setup": dict(each.setup),
            "rates": {name: attrs.asdict(each.rate(name)) for name in each.contestants},
            "cpu_ms": {name: attrs.asdict(each.cpu_ms(name)) for name in each.contestants},
            "ratios": {name: attrs.asdict(each.ratio(ours, name)) for name in peers},
            "cpu_ratios": {name: attrs.asdict(each.cpu_ratio(ours, name)) for name in peers},
            "rounds": [
                {name: attrs.asdict(figures) for name, figures in each_round.items()} for each_round in each.rounds
            ],
        }

    return {**about, "ours": ours, "comparisons": [one(each) for each in comparisons]}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
