"""The version of this package, from its installed metadata: pyproject.toml alone states it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trioserve")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
