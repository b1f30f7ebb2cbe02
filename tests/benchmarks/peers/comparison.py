"""What was measured, side by side: rounds, medians, ratios, the table and the JSON.

Owns: figures and what is made of them. Must not know: how they were measured, and of whom.

Contestants are measured in turn, round by round, and compared within a round: what else the machine does changes from
minute to minute, and then changes both sides of a ratio.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Two tables of reStructuredText, which read well as they are: tokens/s, and CPU time per token.

    Medians. Beside each peer is how many times better ours is, with the lowest and the highest of all rounds.
    """
    rates = _side_by_side(comparisons, ours, Comparison.rate, Comparison.ratio, "{:.0f}")
    cpu_ms = _side_by_side(comparisons, ours, Comparison.cpu_ms, Comparison.cpu_ratio, "{:.2f}")
    return f"Tokens per second\n\n{simple_table(rates)}\n\nCPU milliseconds per token\n\n{simple_table(cpu_ms)}"


def _side_by_side(
    comparisons: Sequence[Comparison],
    ours: str,
    figure: Callable[[Comparison, str], Spread],
    ratio: Callable[[Comparison, str, str], Spread],
    written: str,
) -> list[list[str]]:
    names = comparisons[0].contestants
    head = ["work"]
    for name in names:
        head += [name] if name == ours else [name, "ratio"]
    rows = [head]
    for each in comparisons:
        row = [each.work]
        for name in names:
            row.append(written.format(figure(each, name).median))
            if name != ours:
                times = ratio(each, ours, name)
                row.append(f"{times.median:.2f} ({times.low:.2f}-{times.high:.2f})")
        rows.append(row)
    return rows


def summary(comparison: Comparison, ours: str) -> str:
    """One comparison while others are still to come."""
    parts = [f"{name} {comparison.rate(name).median:.0f}" for name in comparison.contestants]
    ratios = [f"{comparison.ratio(ours, name).median:.2f}" for name in comparison.contestants if name != ours]
    chosen = "".join(f"; {name}: {setup}" for name, setup in comparison.setup.items())
    return f"{comparison.work}: {', '.join(parts)} tok/s, ratio {', '.join(ratios)}{chosen}"


def simple_table(rows: Sequence[Sequence[str]]) -> str:
    """A reStructuredText simple table; the first row is its head. All columns but the first are set to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = "  ".join("=" * width for width in widths)

    def aligned(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells)

    return "\n".join([rule, aligned(rows[0]), rule, *(aligned(row) for row in rows[1:]), rule])


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
