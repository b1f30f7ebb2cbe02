"""What this process may use of its machine: cores and memory.

Owns: where Linux tells it, also of the control groups that containers and services are in. Must not know: devices,
flags, models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath


def default_threads(root: Path = Path("/"), cpus: Collection[int] | None = None) -> int:
    """One thread for each physical core that this process may use, and at least one.

    The threads of a step wait for each other many times in it. One that shares its core, or that has used up its
    share of time, makes all of them wait; so more threads than there are cores are slower than fewer. What counts:

    - the CPUs of the process's affinity mask (``taskset``, ``docker --cpuset-cpus``);
    - of the hardware threads of one core, one;
    - the CPU quota of its cgroup, version 1 or 2, and of the groups around that (``docker --cpus``, limits of
      Kubernetes), rounded down.

    Args:
        root: where /proc and /sys are. What can't be read there sets no bound.
        cpus: the CPUs that the process may run on; None asks the system.
    """
    if cpus is None:
        cpus = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = len({_read(root / siblings.format(cpu)) or str(cpu) for cpu in cpus})
    return max(1, int(min(cores, *_quotas(root))))


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: what the machine has, or the limit of its cgroup, version 1 or 2, or
    of one of the groups around that (``docker --memory``, limits of Kubernetes), if that is less.

    Args:
        root: where /proc and /sys are. What can't be read there sets no bound.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = _cgroup_files(root, "memory", v1=("memory.limit_in_bytes",), v2=("memory.max",))
    # "max" is no bound; nor is what version 1 says for it, which is more than any machine has
    return min([memory, *(int(limit) for (limit,) in files if limit.isdecimal())])


def _quotas(root: Path) -> Iterator[float]:
    """The bounds, in CPUs, of the cgroup that the process is in and of those around it."""
    yield float("inf")
    for texts in _cgroup_files(root, "cpu", v1=("cpu.cfs_quota_us", "cpu.cfs_period_us"), v2=("cpu.max",)):
        quota, _, period = " ".join(texts).partition(" ")
        # "max" and "-1" are no bound
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def _cgroup_files(root: Path, controller: str, *, v1: tuple[str, ...], v2: tuple[str, ...]) -> Iterator[list[str]]:
    """What the files of a controller say, for the cgroup that the process is in and for each of those around it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        path = PurePosixPath(group.lstrip("/"))
        if controllers and controller not in controllers.split(","):
            continue
        for inside in (path, *path.parents):
            folder = root / "sys/fs/cgroup" / controllers / inside
            yield [_read(folder / name) for name in (v1 if controllers else v2)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
