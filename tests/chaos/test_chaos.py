"""A short chaos run, in a process of its own: it counts everything that is in its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def test_clients_that_do_their_worst_leave_nothing_behind(tmp_path: Path) -> None:  # FAN-22 FAN-23 FAN-25 FAN-27 FAN-29
    path = tmp_path / "figures.json"
    command = [sys.executable, str(RUN), "--requests", "150", "--seed", "1", "--json", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(path.read_text())
    assert figures["violations"] == []
    assert figures["requests"] >= 150
    # it has not been idle
    assert figures["choices"] > 100
    assert figures["outcomes"]["left"] > 10
    assert figures["aborted"]["left"] > 10
    assert figures["outcomes"]["best of more"] > 3
    assert figures["measured"]["draft tokens accepted"] > 10
