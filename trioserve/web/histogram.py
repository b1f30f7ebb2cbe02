"""Histograms for Prometheus, and their buckets, which are those of vLLM.

Owns: Histogram. Must not know: what is observed.

prometheus_client has its own, which take a lock twice for each observation. These are written and read in the event
loop alone, once for every token of the server, and take a fifth of the time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
N_CHOICES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_counts(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to ``most``."""
    bounds = (digit * 10.0**exponent for exponent in range(len(str(most))) for digit in (1, 2, 5))
    return tuple(takewhile(lambda bound: bound <= most, bounds))


class Histogram:
    """Counts of observations, by bucket. A bucket holds what is at its bound or below, down to the bucket before."""

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self._documentation = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {self.name}: {sum(self._counts)} observations>"

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, label_names: Sequence[str], label_values: Sequence[str]) -> HistogramMetricFamily:
        """What Prometheus is told: how many observations are at or below each bound, and their sum."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=label_names)
        bounds = map(floatToGoString, (*self._bounds, math.inf))
        family.add_metric(label_values, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return family
