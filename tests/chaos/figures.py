"""What a chaos run counts, and what it found wrong.

Owns: Figures, their table and their JSON. Must not know: how any of it is measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

_MOST_SHOWN: Final = 20


@attrs.define(eq=False)
class Figures:
    """The counts of one run. Every count is of something that ended well; the rest are ``violations``."""

    seed: int
    requests: int = 0
    connections: int = 0
    outcomes: Counter[str] = attrs.field(factory=Counter)
    """Of requests, as their clients saw them."""
    disconnects: Counter[str] = attrs.field(factory=Counter)
    """Of clients that left: where the request was, and how they left."""
    statuses: Counter[int] = attrs.field(factory=Counter)
    """Of exchanges, as the server's access log has them."""
    aborted: Counter[str] = attrs.field(factory=Counter)
    """Choices that did not come to their end, by cause."""
    crashes: Counter[str] = attrs.field(factory=Counter)
    """What clients saw of engines whose device failed."""
    choices: int = 0
    """Answered, and equal to their replay; as are the following."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    pings: int = 0
    measured: dict[str, float | int] = attrs.field(factory=dict)
    """Whatever else was measured, by name."""
    violations: list[str] = attrs.field(factory=list)

    def violate(self, message: str) -> None:
        """Note something that must not be."""
        self.violations.append(message)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Name and value, for people."""
        yield "seed", str(self.seed)
        yield "requests", f"{self.requests:,} on {self.connections:,} connections"
        yield "choices equal to their replay", f"{self.choices:,}"
        yield "completion tokens in them", f"{self.completion_tokens:,}"
        yield "prompt tokens cached for them", f"{self.cached_tokens:,}"
        yield "pings", f"{self.pings:,}"
        for title, counter in (
            ("outcome", self.outcomes),
            ("client left", self.disconnects),
            ("status in the access log", self.statuses),
            ("choices aborted", self.aborted),
            ("engine whose device failed", self.crashes),
        ):
            for name, count in sorted(counter.items(), key=lambda item: str(item[0])):
                yield f"{title}: {name}", f"{count:,}"
        for name, value in self.measured.items():
            yield name, f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        yield "violations", str(len(self.violations))

    def table(self) -> str:
        """All figures, and the first violations."""
        rows = list(self.rows())
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value:>12}" for name, value in rows]
        lines += [f"VIOLATION {violation}" for violation in self.violations[:_MOST_SHOWN]]
        return "\n".join(lines)

    def write_json(self, path: Path) -> None:
        """All figures and all violations."""
        path.write_text(json.dumps(attrs.asdict(self), indent=1) + "\n")
