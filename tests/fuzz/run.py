"""Requests made from ``/openapi.json`` by schemathesis, for a server of a tiny model.

    python tests/fuzz/run.py [--seconds 600] [--seed N]

All checks are on: no answer may be a 5xx, each must have a documented status and fit its schema (the events of streams
too), and what the schema forbids must be refused. In the end the server must be idle, and have logged no error.
Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from trioserve.testing.checkpoints import TinyLlama, write_tiny_gguf
from trioserve.testing.process import serving_process

HERE = Path(__file__).parent
MODEL = TinyLlama(seed=1, head_dim=16)
KEY = "fuzz"
FLAGS = ("--max-n", "8", "--max-choices", "16", "--max-body-size", "1000000", "--pooling", "mean")
LOG_CHARACTERS = 10_000
SPARE_SECONDS = 120
"""That schemathesis may take more than it was told to."""


@click.command()
@click.option("--seconds", default=600, show_default=True, type=click.IntRange(1), help="How long to go on.")
@click.option("--seed", type=int, help="Decides what is sent; random if not given.")
def main(seconds: int, seed: int | None) -> None:
    """Send requests of all kinds, and look whether every answer is as documented."""
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_gguf(Path(folder) / "tiny.gguf", MODEL)
        with serving_process(str(model), Path(folder) / "server.log", *FLAGS, key=KEY) as server:
            passed = fuzz(server.url, seconds, seed)
            faults = server.faults()
            log = server.log.read_text(errors="replace")
    for fault in faults:
        click.echo(f"the server: {fault}")
    if faults:
        click.echo(f"the end of its log:\n{log[-LOG_CHARACTERS:]}")
    sys.exit(0 if passed and not faults else 1)


def fuzz(url: str, seconds: int, seed: int) -> bool:
    """Run schemathesis, and tell whether it found nothing."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
    options = [
        "--header",
        f"Authorization: Bearer {KEY}",
        "--checks",
        "all",
        "--max-time",
        str(seconds),
        "--seed",
        str(seed),
    ]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    run = [*command, "run", f"{url}/openapi.json", *options]
    return subprocess.run(run, env=variables, timeout=seconds + SPARE_SECONDS, check=False).returncode == 0


if __name__ == "__main__":
    main()
