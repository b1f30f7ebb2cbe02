"""The folder that fetched models are kept in.

Owns: where it is, its layout, and that a model is either there in whole or not at all. Must not know: where models
come from.

Layout, with "/" in a name written as "--"::

    models/NAME/     the files of a model
    partial/NAME/    a download that is going on, or was interrupted
    locks/NAME       held by the process that downloads NAME

A download goes to partial/ and is renamed to models/ when it is complete. A model that is there never changes until
it is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from trioserve.abc import Progress, no_progress
from trioserve.errors import ModelError
from trioserve.model.files import fault, shown

_WATCH_INTERVAL_S: Final = 0.2
_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*){0,2}", re.ASCII)


@attrs.frozen
class CachedModel:
    """A model in the cache."""

    name: str
    """What it was fetched as: an alias, "org/name" or "org/name/file.gguf"."""
    path: Path
    """Its folder."""
    size: int
    """Of all its files, in bytes."""


def default_cache_dir() -> Path:
    """Where models are kept if nobody says otherwise: ~/.cache/trioserve.

    Raises:
        ModelError: this user has no home folder.
    """
    try:
        return Path.home() / ".cache" / "trioserve"
    except RuntimeError as error:
        raise ModelError("there is no home folder to keep models in: set TRIOSERVE_CACHE") from error


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where models are kept: TRIOSERVE_CACHE, or trioserve in XDG_CACHE_HOME, or the default."""
    if chosen := environ.get("TRIOSERVE_CACHE"):
        return Path(chosen)
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    # the XDG specification wants relative paths to be ignored
    return base / "trioserve" if base.is_absolute() else default_cache_dir()


def find_cached(name: str, cache: Path) -> Path | None:
    """The folder of a model in the cache, or None.

    Raises:
        ModelError: the cache can't be read.
    """
    folder = cache / "models" / _key(name)
    with _reading(cache):
        return folder if folder.is_dir() else None


def list_cached(cache: Path) -> tuple[CachedModel, ...]:
    """The models in the cache, by name.

    Raises:
        ModelError: the cache can't be read.
    """
    with _reading(cache):
        try:
            # not glob(), which takes a folder that it can't read for an empty one
            folders = sorted(path for path in (cache / "models").iterdir() if path.is_dir())
        except FileNotFoundError:
            folders = []
    return tuple(CachedModel("/".join(path.name.split("--", 2)), path, folder_bytes(path)) for path in folders)


def remove(name: str, cache: Path) -> int:
    """Delete a model, and what an interrupted download left of it. Returns the bytes freed.

    A server that has it loaded goes on: the files stay until it ends.

    Raises:
        ModelError: it is not in the cache, or can't be deleted.
    """
    folders = [cache / part / _key(name) for part in ("models", "partial")]
    with _writing(cache), _locked(name, cache, no_progress):
        present = [folder for folder in folders if folder.is_dir()]
        freed = sum(folder_bytes(folder) for folder in present)
        for folder in present:
            shutil.rmtree(folder)
    if not present:
        raise ModelError(f"{shown(name)} is not in the cache ({cache})")
    return freed


def fetch(name: str, cache: Path, download: Callable[[Path], None], progress: Progress) -> Path:
    """The folder of a model in the cache; ``download`` fills a new one if it isn't there.

    Of several processes that want the same model one downloads it and the others wait. ``download`` gets a folder
    that may hold what an interrupted download left there; it must clean up whatever a later one can't build on.

    Raises:
        ModelError: the cache can't be written. What ``download`` raises passes through.
    """
    folder = cache / "models" / _key(name)
    with _writing(cache), _locked(name, cache, progress):
        if not folder.is_dir():
            partial = cache / "partial" / _key(name)
            partial.mkdir(parents=True, exist_ok=True)
            try:
                download(partial)
            except BaseException:
                with contextlib.suppress(OSError):
                    partial.rmdir()  # if there is nothing in it to go on from
                raise
            folder.parent.mkdir(exist_ok=True)
            partial.rename(folder)
    return folder


def folder_bytes(folder: Path) -> int:
    """The size of all regular files under a folder; files that vanish meanwhile don't count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


@contextlib.contextmanager
def watching(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Report how a folder grows to ``total`` bytes while the body fills it.

    The programs that download for us don't tell how far they are, at least not all versions and in the same way.
    """
    done = threading.Event()

    def report() -> None:
        while not done.wait(_WATCH_INTERVAL_S):
            progress("downloading", min(folder_bytes(folder), total), total)

    progress("downloading", 0, total)
    thread = threading.Thread(target=report, name="trioserve download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    progress("downloading", total, total)


@contextlib.contextmanager
def _locked(name: str, cache: Path, progress: Progress) -> Iterator[None]:
    path = cache / "locks" / _key(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that downloads it", 0, None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _reading(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise fault(cache, f"can't be read: {error}") from error


@contextlib.contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise fault(cache, f"can't be written: {error}") from error


def _key(name: str) -> str:
    # whatever is removed or written must lie inside the cache
    if not _NAME.fullmatch(name):
        raise ModelError(f"{shown(name)} is no name of a model in the cache")
    return name.replace("/", "--")
