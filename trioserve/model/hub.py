"""Fetches model files from Hugging Face.

Owns: which files of a repo are a model's, and what the library's errors mean. Must not know: the cache's layout.
huggingface_hub is imported when it is needed: a start from the cache never needs it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs

from trioserve.abc import Progress
from trioserve.errors import ModelError
from trioserve.model.cache import watching
from trioserve.model.files import fault, shown

_MODEL_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "model*.safetensors",
)


@attrs.frozen
class RepoFiles:
    """The files of a repo at one commit."""

    commit: str
    sizes: Mapping[str, int]
    """File name -> bytes."""


class Hub(Protocol):
    """A server of model repos. Both methods block, and raise ModelError."""

    def files(self, repo: str) -> RepoFiles: ...

    def download(self, repo: str, commit: str, names: Sequence[str], folder: Path) -> None:
        """Put files into ``folder``, under their own names; go on with what an interrupted download left there."""
        ...


class HuggingFaceHub:
    """The Hub of Hugging Face, through its own library.

    ``endpoint`` is the address of another server with the same protocol; None: what the library is set up for.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def files(self, repo: str) -> RepoFiles:
        from huggingface_hub import HfApi

        with _translated(repo):
            info = HfApi(endpoint=self._endpoint).model_info(repo, files_metadata=True)
            sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        return RepoFiles(info.sha or "main", sizes)

    def download(self, repo: str, commit: str, names: Sequence[str], folder: Path) -> None:
        from huggingface_hub import snapshot_download

        with _translated(repo), _without_bars():
            snapshot_download(
                repo, revision=commit, local_dir=folder, allow_patterns=list(names), endpoint=self._endpoint
            )


def download_repo(hub: Hub, repo: str, file: str | None, folder: Path, progress: Progress) -> None:
    """Put a model of a repo into ``folder``: the one GGUF file named, or config, tokenizer and safetensors.

    Raises:
        ModelError: there is no such repo or file, it is not open to this user, or can't be fetched completely.
    """
    found = hub.files(repo)
    names = _model_files(repo, found.sizes) if file is None else [file]
    if missing := [name for name in names if name not in found.sizes]:
        raise ModelError(f"{shown(missing[0])} is neither here nor in the Hugging Face repo {shown(repo)}")
    with watching(folder, sum(found.sizes[name] for name in names), progress):
        hub.download(repo, found.commit, names, folder)
    for name in names:
        # the library takes what it finds for the whole when its server stops answering
        if not (folder / name).is_file() or (folder / name).stat().st_size != found.sizes[name]:
            raise fault(folder / name, f"was not fetched completely from {shown(repo)}")
    # the library's notes on how to go on with an interrupted download
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _model_files(repo: str, sizes: Mapping[str, int]) -> list[str]:
    names = [name for name in sizes if any(fnmatch.fnmatchcase(name, pattern) for pattern in _MODEL_FILES)]
    names = sorted(name for name in names if "/" not in name)
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return names
    ggufs = sorted(name for name in sizes if name.endswith(".gguf") and "/" not in name)
    hint = f"; name one of its GGUF files: {repo}/{ggufs[0]}" if ggufs else ""
    raise ModelError(f"the Hugging Face repo {shown(repo)} has no config.json with model*.safetensors{hint}")


@contextlib.contextmanager
def _translated(repo: str) -> Iterator[None]:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"the Hugging Face repo {shown(repo)} is gated: accept its terms on its page, then run 'hf auth login'"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"there is no Hugging Face repo {shown(repo)}; if it is a private one, run 'hf auth login'"
        ) from error
    # the library's transport has been replaced more than once, and its errors have no base class in common
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ModelError(f"{shown(repo)} can't be fetched: {type(error).__name__}: {reason}") from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of the library's own; a Progress shows them."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
