"""Do the tests of the fan-out contract fail when the behaviour is removed?

    python tests/mutation/run.py [WORD ...]

Each mutation of mutations.py breaks one line in a copy of the tree; then the tests that should notice are run there,
and have to fail. Before, all of these tests have to pass in the copy as it is, and both packages have to be imported
from it. With WORDs, only mutations whose law or name contains one of them. Exits with 1 if any survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("trioserve", "kernels", "tests", "pyproject.toml")
PACKAGES = {"trioserve": "trioserve", "trioserve_kernels": "kernels"}
"""What is imported, and the folder of the tree that it must come from."""
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


def copy_tree(tree: Path) -> None:
    """Put into ``tree`` what the tests need, so that Python finds it there and nowhere else."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    for package, folder in PACKAGES.items():
        if package != folder:
            # as an installation names it; without it, one that is installed would be imported
            (tree / package).symlink_to(folder, target_is_directory=True)
    (tree / "sitecustomize.py").write_text(SITECUSTOMIZE)


def run_python(tree: Path, *arguments: str, limit: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``limit``, in seconds.
    """
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )


def run_tests(tree: Path, *tests: str, limit: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests in the copy, up to the first that fails."""
    return run_python(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, limit=limit)


def check_copy(tree: Path, chosen: Sequence[Mutation]) -> None:
    """Exit unless the copy is what is imported, every line is found in it, and nothing fails in it yet.

    Else what the tests say of a mutation would mean nothing.
    """
    for package, folder in PACKAGES.items():
        done = run_python(tree, "-c", f"import {package}; print({package}.__file__)")
        found = Path(done.stdout.strip()).resolve()
        if found != (tree / folder / "__init__.py").resolve():
            raise SystemExit(f"{package} is imported from {found}, not from the copy {tree}\n{done.stderr}")
    for mutation in chosen:
        broken((tree / mutation.path).read_text(), mutation)
    tests = dict.fromkeys(test for mutation in chosen for test in mutation.tests)
    done = run_tests(tree, *tests)
    if done.returncode != 0:
        raise SystemExit(f"Tests fail without any mutation:\n{done.stdout}")


def build_library(tree: Path) -> None:
    """Make the native library from the sources of the copy, as far as they have changed."""
    build = tree / "build"
    for command in (
        ["cmake", "-S", "kernels", "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(build)],
        ["cmake", "--install", str(build), "--prefix", str(build / "installed")],
    ):
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    (library,) = (build / "installed" / "trioserve_kernels" / "cpu").glob("libtrioserve_cpu.*")
    shutil.copy(library, tree / "kernels" / "cpu")


def is_caught(tree: Path, mutation: Mutation) -> bool:
    """Whether the mutation's tests fail. Hanging is failing, too."""
    path = tree / mutation.path
    original = path.read_text()
    path.write_text(broken(original, mutation))
    try:
        if mutation.is_native:
            build_library(tree)
        done = run_tests(tree, *mutation.tests, limit=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)
        if mutation.is_native:
            build_library(tree)
    # 1 is "tests failed"; anything else but 0 would be a mistake in the list
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutation.law} {mutation.name}: pytest exited with {done.returncode}\n{done.stdout}")
    return done.returncode == 1


def main() -> None:
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if not words or any(word in f"{m.law} {m.name}" for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        if any(mutation.is_native for mutation in chosen):
            build_library(tree)
        check_copy(tree, chosen)
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
