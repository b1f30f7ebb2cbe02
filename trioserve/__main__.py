"""``python -m trioserve``."""

from trioserve.cli import main

main()
