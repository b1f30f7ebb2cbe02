"""Opens the files of a model: maps them, reads JSON, and turns every fault into one line.

Owns: MappedFile, read_json and the sizes they accept. Must not know: what the files mean.

Other programs wrote these files, and some of them are broken or hostile. So nothing here trusts a length, and
every error is a ModelError that names the file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

from trioserve.errors import ModelError

MIB: Final = 1024 * 1024
_LFS_PREFIX: Final = b"version https://git-lfs"


def fault(path: Path, text: str) -> ModelError:
    """The error that ``path`` is unusable because of ``text``, which ends up on one line whatever is in it."""
    return ModelError(" ".join(f"{path}: {text}".splitlines()))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put ``path`` in front of a ModelError of the body that doesn't name it."""
    try:
        yield
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise fault(path, str(error)) from error


def shown(value: object) -> str:
    """``value`` as an error may print it: quoted, and never longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def file_size(path: Path) -> int:
    """Bytes of a regular file.

    Raises:
        ModelError: there is no such file, or it is something else: a folder, a pipe.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise fault(path, f"can't be read: {_reason(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise fault(path, "is not a file")
    return status.st_size


class MappedFile:
    """A file in memory, read-only. Its pages come from the disk when they are touched.

    A file that another program makes shorter while it is mapped ends the process: that is how mapping works.

    Raises:
        ModelError: the file can't be opened, is empty, or is a Git LFS pointer instead of the file itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = file_size(path)
        if size == 0:
            raise fault(path, "is empty")
        try:
            with path.open("rb") as file:
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise fault(path, f"can't be read: {_reason(error)}") from error
        self.size = size
        """In bytes."""
        if self.map[: len(_LFS_PREFIX)] == _LFS_PREFIX:
            self.close()
            raise _lfs_pointer(path)

    def __repr__(self) -> str:
        return f"<MappedFile {str(self.path)!r}, {'closed' if self._map is None else f'{self.size} bytes'}>"

    @property
    def map(self) -> mmap.mmap:
        """The mapping itself; slices of it are copies."""
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._map

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes ``start`` to ``stop``, not copied."""
        return memoryview(self.map)[start:stop]

    def close(self) -> None:
        """Unmap the file, or, while somebody still has a view of it, leave that to the end of the last view."""
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                del mapping


def read_text(path: Path, limit: int) -> str:
    """The text of a UTF-8 file of at most ``limit`` bytes.

    Raises:
        ModelError: it can't be read, is too large, is not UTF-8 or is a Git LFS pointer.
    """
    size = file_size(path)
    if size > limit:
        raise fault(path, f"has {size} bytes, which is more than such a file may have ({limit})")
    try:
        data = path.read_bytes()
        if data.startswith(_LFS_PREFIX):
            raise _lfs_pointer(path)
        return data.decode("utf-8")
    except OSError as error:
        raise fault(path, f"can't be read: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise fault(path, "is not UTF-8 text") from error


def read_json(path: Path, limit: int) -> dict[str, object]:
    """The JSON object in a file of at most ``limit`` bytes.

    Raises:
        ModelError: as read_text, or it is not one JSON object, or a key is there twice.
    """
    return parse_json(read_text(path, limit), lambda text: fault(path, text))


def parse_json(text: str, error: Callable[[str], ModelError]) -> dict[str, object]:
    """The JSON object in ``text``; what is wrong with it is raised as ``error(what)``."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) != len(pairs):
            keys = [key for key, _ in pairs]
            raise error(f"has the key {shown(next(key for key in keys if keys.count(key) > 1))} twice")
        return values

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as cause:
        raise error(f"is not valid JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise error("is not a JSON object")
    return cast("dict[str, object]", value)


def _lfs_pointer(path: Path) -> ModelError:
    return fault(path, "is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
