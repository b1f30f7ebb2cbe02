"""Processes that only run while they are measured.

Owns: starting, pausing and ending them, the CPU time they used, environments of their own, and what the machine is.
Must not know: what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from trioserve.model.cache import default_cache_dir

# what a CPU kernel may be written for
_TELLING_FLAGS: Final = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")


class Process:
    """A child that is stopped (SIGSTOP) unless it is inside ``running``. Leaving its block kills it.

    Its output goes to a file, or, with ``lines``, stdin and stdout are pipes and only stderr goes there.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, lines: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command: Final = [str(part) for part in command]
        self.log: Final = log
        pipe = subprocess.PIPE if lines else None
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                self.command,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or output,
                stderr=output,
                text=True,
                env={**os.environ, **(environment or {})},
                # signals reach its children too
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<Process {self._child.pid}: {' '.join(self.command)}>"

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._signal(signal.SIGKILL)
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                # a line that the process did not take any more
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    @property
    def stdin(self) -> IO[str]:
        assert self._child.stdin is not None
        return self._child.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self._child.stdout is not None
        return self._child.stdout

    def wait(self) -> None:
        """Until it has ended."""
        self._child.wait()

    def check(self) -> None:
        """Raise ChildProcessError, with the end of its output, if it has ended."""
        status = self._child.poll()
        if status is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise ChildProcessError(f"{' '.join(self.command)} ended with status {status}:\n{tail}")

    def cpu(self) -> float:
        """CPU seconds that all its threads have used."""
        # the clock of another process, as clock_getcpuclockid() makes it; /proc counts in steps of 10 ms only
        return time.clock_gettime((~self._child.pid << 3) | 2)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A block in which it runs; it is paused afterwards."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


def end_children_on_sigterm() -> None:
    """Leave all blocks when SIGTERM comes, so that no child stays behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def default_peers_dir() -> Path:
    """Where peers and their files are kept unless an option says otherwise."""
    return default_cache_dir() / "peers"


def environment_of(folder: Path, package: str, **variables: str) -> Path:
    """The Python of a virtual environment with ``package`` in it, made on first use. That can take long.

    Args:
        folder: of the environment. One that is there is taken as it is.
        package: what pip installs.
        variables: environment variables for the installation.
    """
    python = folder / "bin" / "python"
    if python.exists() and _has(python, package):
        return python
    print(f"installing {package} into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([python, "-m", "pip", "install", package], check=True, env={**os.environ, **variables})
    return python


def _has(python: Path, package: str) -> bool:
    shown = subprocess.run([python, "-m", "pip", "show", "--quiet", package], check=False, capture_output=True)
    return shown.returncode == 0


def version_of(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def describe_machine() -> dict[str, object]:
    """What the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    fields = dict(line.split(":", 1) for line in cpuinfo.split("\n\n")[0].splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = fields.get("flags", fields.get("Features", "")).split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": fields.get("model name", platform.processor()),
        "family_model_stepping": "/".join(fields.get(name, "?") for name in ("cpu family", "model", "stepping")),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in _TELLING_FLAGS if flag in flags],
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_at_start": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
