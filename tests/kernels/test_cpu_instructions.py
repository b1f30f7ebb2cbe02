"""Nothing but the levels' own code holds instructions that not every machine has."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import pytest
from trioserve_kernels.cpu.library import library_path

LIBRARY = library_path()
pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason="there are no native kernels"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other machines have one level"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump"),
]

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
# of AVX and what came later: their registers, and the prefix of their mnemonics
WIDE = re.compile(r"%[yz]mm|\t(?:v[a-z]|k(?:mov|or|and|xor|test|unpck|shift)[a-z]*\s)")
LEVEL = re.compile(r"trioserve::(avx2|avx512|portable)::")


@pytest.fixture(scope="module")
def wide_functions() -> dict[str, set[str]]:
    """The functions that hold such an instruction: demangled name -> the widest registers it uses."""
    found: dict[str, set[str]] = defaultdict(set)
    for function, instruction in instructions():
        if WIDE.search(instruction):
            found[function] |= set(re.findall(r"%([xyz])mm", instruction))
    return found


def instructions() -> Iterator[tuple[str, str]]:
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(LIBRARY)]
    function = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := FUNCTION.match(line.rstrip()):
                function = match[1]
            else:
                yield function, line
    assert process.returncode == 0


def test_only_the_levels_of_avx_hold_its_instructions(wide_functions: dict[str, set[str]]) -> None:
    levels = {name: match and match[1] for name in wide_functions for match in [LEVEL.search(name)]}
    assert set(levels.values()) <= {"avx2", "avx512"}, [name for name, level in levels.items() if level is None]
    # or nothing would have been recognised
    assert "avx2" in levels.values()


def test_only_the_level_of_avx_512_holds_its_registers(wide_functions: dict[str, set[str]]) -> None:
    widest = {name for name, registers in wide_functions.items() if "z" in registers}
    assert {match[1] for name in widest if (match := LEVEL.search(name))} <= {"avx512"}
