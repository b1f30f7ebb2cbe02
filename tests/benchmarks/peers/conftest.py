"""The benchmarks are scripts: when they run, their folder is the first on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
