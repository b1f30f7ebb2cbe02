"""How many threads and how much memory a device gets, on machines that are made of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trioserve.device.machine import default_threads, usable_memory

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Makes a machine: hardware threads by core, and other files by path."""

    def make(cores: list[str], **files: str) -> Path:
        written = {path.replace("__", "/"): text for path, text in files.items()}
        for cpu, siblings in enumerate(cores):
            written[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
        for name, text in written.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return make


FOUR_CORES = ["0,4", "1,5", "2,6", "3,7"] * 2


def test_hardware_threads_of_one_core_count_once(machine: Machine) -> None:
    root = machine(FOUR_CORES)
    assert default_threads(root, range(8)) == 4
    assert default_threads(root, [0, 4]) == 1
    assert default_threads(root, [1, 2, 6]) == 2


def test_where_nothing_is_told_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert default_threads(tmp_path, range(3)) == 3


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max 100000", 4), ("200000 100000", 2), ("299999 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("", 4)],
)
def test_a_quota_is_a_bound_rounded_down(machine: Machine, quota: str, threads: int) -> None:
    root = machine(FOUR_CORES, proc__self__cgroup="0::/", **{"sys__fs__cgroup__cpu.max": quota})
    assert default_threads(root, range(8)) == threads


def test_the_groups_around_that_of_the_process_bound_it_too(machine: Machine) -> None:
    files = {
        "proc__self__cgroup": "0::/kubepods/pod1/main",
        "sys__fs__cgroup__kubepods__pod1__main__cpu.max": "max 100000",
        "sys__fs__cgroup__kubepods__pod1__cpu.max": "300000 100000",
        "sys__fs__cgroup__kubepods__cpu.max": "800000 100000",
        "sys__fs__cgroup__elsewhere__cpu.max": "100000 100000",
    }
    assert default_threads(machine(FOUR_CORES, **files), range(8)) == 3


def test_a_quota_of_the_first_version_of_cgroups_counts_as_well(machine: Machine) -> None:
    files = {
        "proc__self__cgroup": "9:name=systemd:/a:b\n3:cpuset:/\n2:cpu,cpuacct:/docker/x\n0::/",
        "sys__fs__cgroup__cpu,cpuacct__docker__x__cpu.cfs_quota_us": "200000",
        "sys__fs__cgroup__cpu,cpuacct__docker__x__cpu.cfs_period_us": "100000",
        "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_quota_us": "-1",
        "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_period_us": "100000",
    }
    assert default_threads(machine(FOUR_CORES, **files), range(8)) == 2


def test_this_machine_has_a_thread() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_memory_without_a_limit_is_what_the_machine_has(machine: Machine) -> None:
    assert usable_memory(machine([])) == PHYSICAL
    assert usable_memory(machine([], proc__self__cgroup="0::/", **{"sys__fs__cgroup__memory.max": "max"})) == PHYSICAL
    too_much = {"proc__self__cgroup": "5:memory:/x", "sys__fs__cgroup__memory__x__memory.limit_in_bytes": str(2**63)}
    assert usable_memory(machine([], **too_much)) == PHYSICAL
    assert 0 < usable_memory() <= PHYSICAL


def test_the_smallest_memory_limit_of_the_groups_around_counts(machine: Machine) -> None:
    files = {
        "proc__self__cgroup": "0::/kubepods/pod1/main",
        "sys__fs__cgroup__kubepods__pod1__main__memory.max": "max",
        "sys__fs__cgroup__kubepods__pod1__memory.max": "3000000",
        "sys__fs__cgroup__kubepods__memory.max": "8000000",
        "sys__fs__cgroup__elsewhere__memory.max": "1000",
    }
    assert usable_memory(machine([], **files)) == 3000000


def test_a_container_that_sees_only_its_own_group_finds_its_limit_at_the_top(machine: Machine) -> None:
    files = {
        "proc__self__cgroup": "4:cpu:/docker/x\n3:memory:/docker/x\n0::/docker/x",
        "sys__fs__cgroup__memory__memory.limit_in_bytes": "5000000",
    }
    assert usable_memory(machine([], **files)) == 5000000
