"""How many threads a device gets when nobody says.

Owns: default_threads, and where Linux tells what a process may use. Must not know: devices, flags.
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


def _quotas(root: Path) -> Iterator[float]:
    """The bounds, in CPUs, of the cgroup that the process is in and of those around it."""
    yield float("inf")
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        path = PurePosixPath(group.lstrip("/"))
        for inside in (path, *path.parents):
            if not controllers:
                quota, _, period = _read(root / "sys/fs/cgroup" / inside / "cpu.max").partition(" ")
            elif "cpu" in controllers.split(","):
                folder = root / "sys/fs/cgroup" / controllers / inside
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            else:
                continue
            # "max" and "-1" are no bound
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
