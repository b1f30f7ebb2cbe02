"""Do the tests of the fan-out contract fail when the behaviour is removed?

    python tests/mutation/run.py [WORD ...]

Each mutation of mutations.py breaks one line in a copy of the tree; then the tests that should notice are run there,
and have to fail. With WORDs, only mutations whose law or name contains one of them. Exits with 1 if any survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("trioserve", "kernels", "tests", "pyproject.toml")
LIMIT_SECONDS = 120
# A package that was installed in place must not be found before the copy. Python runs this file at its start.
SITECUSTOMIZE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
"""


def broken(source: str, mutation: Mutation) -> str:
    """The file's text with the mutation's line broken; the line must be there exactly once."""
    count = source.count(mutation.old)
    if count != 1:
        raise SystemExit(f"{mutation.law} {mutation.name}: found {count} times in {mutation.path}: {mutation.old!r}")
    return source.replace(mutation.old, mutation.new)


def is_caught(tree: Path, mutation: Mutation) -> bool:
    """Whether the mutation's tests fail. Hanging is failing, too."""
    path = tree / mutation.path
    original = path.read_text()
    path.write_text(broken(original, mutation))
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)
    # 1 is "tests failed"; anything else but 0 would be a mistake in the list
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{mutation.law} {mutation.name}: pytest exited with {done.returncode}\n{done.stdout.decode()}"
        )
    return done.returncode == 1


def main() -> None:
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if not words or any(word in f"{m.law} {m.name}" for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tree / name)
        (tree / "sitecustomize.py").write_text(SITECUSTOMIZE)
        for mutation in chosen:
            begin = time.monotonic()
            caught = is_caught(tree, mutation)
            survivors += not caught
            verdict = "caught  " if caught else "SURVIVED"
            print(f"{verdict} {time.monotonic() - begin:5.1f} s  {mutation.law:7} {mutation.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
