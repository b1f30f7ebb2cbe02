"""The ``trioserve`` command. It alone reads the environment, writes to the terminal and ends the process."""

from trioserve.cli.main import main

__all__ = ["main"]
