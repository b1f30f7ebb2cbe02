"""Do the levels of 64-bit ARM give the same bits as those of this machine?

    python tests/arm/run.py [--folder PATH]

Builds the native kernels twice, for this machine and for ARM, and runs digests.cpp with both: that for ARM under qemu,
once as a processor with FEAT_DotProd and once as one without. Every level must be found where its instructions are, and
every piece of work must have one digest. Needs CMake, Ninja, a C++ compiler, one for ARM, its objdump, and qemu; on
Debian those are the packages g++-aarch64-linux-gnu and qemu-user-static.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = "aarch64-linux-gnu"
PROCESSORS = {"max": ["dotprod", "neon", "portable"], "cortex-a72": ["neon", "portable"]}
"""What qemu can be, and the levels that must be found there."""
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
DOT_PRODUCT = re.compile(r"\t[su]dot\b")

Command = Sequence[str | Path]
Digests = dict[str, dict[str, str]]
"""Piece of work -> level -> digest."""


def find(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        sys.exit(f"This needs {names[0]}.")
    return found


def build(folder: Path, compiler: str, *settings: str) -> tuple[Path, Path]:
    """The library and the program, made in a folder by a compiler."""
    settings = (f"-DCMAKE_CXX_COMPILER={compiler}", *settings)
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT / "kernels", "-B", folder, *settings], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    library, program = folder / "cpu" / "libtrioserve_cpu.so", folder / "digests"
    flags = ["-std=c++20", "-O2", "-I", ROOT / "kernels" / "cpu", f"-Wl,-rpath,{library.parent}"]
    source = ROOT / "tests" / "arm" / "digests.cpp"
    subprocess.run([compiler, *flags, source, library, "-o", program], check=True)
    return library, program


def digests(command: Command) -> Digests:
    """What the program prints."""
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: Digests = {}
    for line in output.splitlines():
        level, piece, digest = line.split()
        found.setdefault(piece, {})[level] = digest
    return found


def functions_with_dot_products(library: Path) -> Iterator[str]:
    command = [find(f"{TARGET}-objdump"), "--disassemble", "--demangle", "--no-show-raw-insn", library]
    function = ""
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        if match := FUNCTION.match(line):
            function = match[1]
        elif DOT_PRODUCT.search(line):
            yield function


def compare(folder: Path) -> list[str]:
    """What is wrong."""
    compiler, emulator = find(f"{TARGET}-g++"), find("qemu-aarch64-static", "qemu-aarch64")
    _, program = build(folder / "here", find("c++", "g++", "clang++"))
    expected = digests([program])
    library, program = build(folder / "arm", compiler, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    faults = []
    owners = {name.partition("dotprod::")[1] for name in functions_with_dot_products(library)}
    if owners != {"dotprod::"}:
        faults.append("instructions of FEAT_DotProd must be in the level dotprod, and nowhere else")
    for processor, levels in PROCESSORS.items():
        found = digests([emulator, "-L", f"/usr/{TARGET}", "-cpu", processor, program])
        for piece, own in expected.items():
            print(f"{processor:12} {piece:12} {own} {found[piece]}")
            if list(found[piece]) != levels:
                faults.append(f"{processor} has the levels {', '.join(found[piece])}, not {', '.join(levels)}")
            if len({*own.values(), *found[piece].values()}) > 1:
                faults.append(f"{piece} differs on {processor}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to build, and to keep what was built")
    arguments = parser.parse_args()
    if arguments.folder:
        faults = compare(arguments.folder.absolute())
    else:
        with tempfile.TemporaryDirectory() as folder:
            faults = compare(Path(folder))
    print("\n".join(faults) or "All levels give the same bits.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
