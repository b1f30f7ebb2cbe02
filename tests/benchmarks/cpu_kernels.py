"""The CPU kernels against the limits of the machine, measured in the same run.

    python tests/benchmarks/cpu_kernels.py [--threads N] [--json PATH]

The limits are what a thread can read from memory and how many multiply-adds it can start, of int8 and of float32; both
are measured by loops that do nothing else. The kernels run on data in the first-level cache, as many threads at once as
are asked for. Best of 15 runs, since a shared machine only ever makes a run slower. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trioserve_kernels.cpu.library import levels

ROOT = Path(__file__).parents[2]
FLAGS = {
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c",
    "avx2": "-mavx2 -mfma -mf16c",
    "dotprod": "-DLEVEL_IS_DOTPROD -march=armv8.2-a+dotprod",
    "neon": "-DLEVEL_IS_NEON",
    "portable": "",
}
Figures = dict[str, dict[int, float]]


def build(level: str, folder: Path) -> Path:
    """Compile the measuring program for a level."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("This benchmark needs a C++ compiler.")
    program, kernels = folder / "limits", ROOT / "kernels" / "cpu"
    sources = [ROOT / "tests" / "benchmarks" / "native" / "limits.cpp", kernels / "memory.cpp"]
    flags = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", f"-DLEVEL={level}", *FLAGS[level].split()]
    subprocess.run([compiler, *flags, "-w", "-I", kernels, *sources, "-pthread", "-o", program], check=True)
    return program


def measure(program: Path, threads: int) -> Figures:
    """Name -> threads -> 1e9 a second."""
    output = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
    figures: Figures = {}
    for line in output.splitlines():
        name, count, value = line.split()
        figures.setdefault(name, {})[int(count)] = float(value)
    return figures


def show(figures: Figures) -> None:
    counts = sorted(next(iter(figures.values())))
    print(f"{'':24}" + "".join(f"{f'{count} threads':>26}" for count in counts))
    for name, values in figures.items():
        limit = {"int": "int8_multiply_adds", "att": "float_multiply_adds"}.get(name[:3])
        cells = []
        for count in counts:
            rate, unit = values[count], "G/s"
            if name.startswith("sampled"):
                rate, unit = count / values[count] / 1e3, "us a row"
            share = "" if limit in (None, name) or limit not in figures else f"{rate / figures[limit][count]:6.0%}"
            cells.append(f"{rate:12.1f} {unit:<8}{share:>5}")
        print(f"{name:24}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", choices=levels(), default=levels()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(build(arguments.level, Path(folder)), arguments.threads)
    show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps({"level": arguments.level, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
