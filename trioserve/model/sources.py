"""From what a user calls a model to the files on this machine.

Owns: how names are understood. Must not know: what is in the files.

A name is, the first that fits: an alias; a file; a folder; ``org/name/file.gguf`` or ``org/name``, a Hugging Face
repo. A path wins over a repo of the same name; write "./smollm2" for a folder with the name of an alias.
"""

from __future__ import annotations

import functools
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from trioserve.abc import Progress, no_progress
from trioserve.errors import ModelError
from trioserve.model.aliases import ALIASES, Alias, download_alias
from trioserve.model.cache import fetch, find_cached
from trioserve.model.files import fault, file_size, shown
from trioserve.model.hub import Hub, HuggingFaceHub, download_repo

_REPO: Final = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(/(?P<file>\w[\w.-]*\.gguf))?", re.ASCII)
Kind = Literal["gguf", "huggingface"]


@attrs.frozen
class ResolvedModel:
    """A model on this machine."""

    id: str
    """What it is served as: the alias, the repo id, or the file's or folder's name."""
    path: Path
    """The GGUF file, or the folder."""
    kind: Kind


def resolve(
    model: str | Path,
    *,
    cache: Path,
    progress: Progress = no_progress,
    offline: bool = False,
    aliases: Mapping[str, Alias] = ALIASES,
    hub: Hub | None = None,
) -> ResolvedModel:
    """Find a model, and fetch it if it is not on this machine yet. Blocks, possibly for long.

    Args:
        model: a name as above, or the path of a GGUF file or a folder.
        cache: the folder to fetch to.
        progress: told about downloads.
        offline: never fetch.
        aliases: the aliases there are.
        hub: where repos come from; None: Hugging Face.

    Raises:
        ModelError: there is no such model, or it can't be fetched.
    """
    if isinstance(model, str) and model in aliases:
        return _resolve_alias(model, aliases[model], cache, progress, offline)
    if isinstance(model, Path) or _kind(model) is not None:
        return resolve_path(Path(model))
    repo = _REPO.fullmatch(model)
    # "folder/model.gguf" that is not there is a missing file, not a repo of that name
    if repo and not repo["repo"].endswith(".gguf"):
        return _resolve_repo(repo["repo"], repo["file"], cache, progress, offline, hub or HuggingFaceHub())
    if model.endswith(".gguf"):
        raise fault(Path(model), "there is no such file")
    known = f"an alias ({', '.join(aliases)}), a .gguf file, a folder, or a Hugging Face repo id"
    raise ModelError(f"unknown model {shown(model)}: not {known}")


def pull(
    name: str,
    *,
    cache: Path,
    progress: Progress = no_progress,
    aliases: Mapping[str, Alias] = ALIASES,
    hub: Hub | None = None,
) -> ResolvedModel:
    """As resolve, for names that are fetched: an alias or a Hugging Face repo.

    Raises:
        ModelError: as resolve, or the name is a path.
    """
    if name not in aliases and (_kind(name) is not None or not _REPO.fullmatch(name)):
        known = f"an alias ({', '.join(aliases)}) or a Hugging Face repo id"
        raise ModelError(f"{shown(name)} is nothing that can be fetched: not {known}")
    return resolve(name, cache=cache, progress=progress, aliases=aliases, hub=hub)


def _resolve_alias(name: str, alias: Alias, cache: Path, progress: Progress, offline: bool) -> ResolvedModel:
    folder = _cached_or_fetched(name, cache, offline, lambda target: download_alias(alias, target, progress), progress)
    path = folder / alias.file
    size = file_size(path)
    if size != alias.size:
        raise fault(path, f"has {size} bytes instead of {alias.size}: remove it with 'trioserve models rm {name}'")
    return ResolvedModel(name, path, "gguf")


def _resolve_repo(
    repo: str, file: str | None, cache: Path, progress: Progress, offline: bool, hub: Hub
) -> ResolvedModel:
    name = repo if file is None else f"{repo}/{file}"
    download = functools.partial(download_repo, hub, repo, file, progress=progress)
    folder = _cached_or_fetched(name, cache, offline, download, progress)
    if file is None:
        return ResolvedModel(name, folder, "huggingface")
    return ResolvedModel(name, folder / file, "gguf")


def _cached_or_fetched(
    name: str, cache: Path, offline: bool, download: Callable[[Path], None], progress: Progress
) -> Path:
    found = find_cached(name, cache)
    if found is not None:
        return found
    if offline:
        raise ModelError(f"{shown(name)} is not in the cache ({cache}), and fetching is off")
    return fetch(name, cache, download, progress)


def resolve_path(path: Path) -> ResolvedModel:
    """The model at a path: a GGUF file, or a folder with a config.json.

    Raises:
        ModelError: there is no such thing.
    """
    kind = _kind(path)
    if kind == "gguf":
        return ResolvedModel(path.stem, path, kind)
    if kind is None:
        raise fault(path, "is neither a file nor a folder")
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f": name its GGUF file instead: {ggufs[0]}" if ggufs else ""
        raise fault(path, f"has no config.json{hint}")
    return ResolvedModel(path.resolve().name, path, kind)


def _kind(path: str | Path) -> Kind | None:
    """What lies at a path; None: nothing, or nothing that can be a model."""
    try:
        mode = Path(path).stat().st_mode if path else 0  # Path("") would be the current folder
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(mode):
        return "huggingface"
    return "gguf" if stat.S_ISREG(mode) else None
