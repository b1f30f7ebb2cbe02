"""All automation: ``nox -l`` lists the sessions. ``nox -s serve`` and ``nox -s tests`` need nothing but nox."""

from __future__ import annotations

import itertools
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False

# The release that everything here was measured with. Installed first and by its exact number, so that pip takes
# the build that fits the machine instead of the newest release there is.
TORCH = "torch==2.13.0"
PYPROJECT = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str) -> None:
    """Install the project in place and the named dependency groups."""
    session.install(TORCH)
    session.install("--editable", ".", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def serve(session: nox.Session) -> None:
    """Fetch the default model and serve it; arguments after -- go to ``trioserve serve``."""
    install(session)
    session.run("trioserve", "serve", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- go to pytest."""
    install(session, "tests")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, also of the C++, ruff and flake8-async."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("flake8", "trioserve", "kernels", "tests", "noxfile.py")
    native = [
        str(path)
        for path in (*Path("kernels").rglob("*.[ch]*"), *Path("tests").rglob("*.cpp"))
        if path.suffix in (".h", ".cpp")
    ]
    session.run("clang-format", "--dry-run", "--Werror", *native)


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict."""
    install(session, "types")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the manual into docs/_build/html; warnings are errors."""
    install(session, "docs")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def oracle(session: nox.Session) -> None:
    """Make the expected data of the tests again, with the libraries they are compared to."""
    install(session, "tests", "oracle")
    for script in sorted(Path("tests").glob("*/make_*.py")):
        session.run("python", str(script))


@nox.session
@nox.parametrize("sanitizers", ["address,undefined", "thread"], ids=["address", "thread"])
def kernels(session: nox.Session, sanitizers: str) -> None:
    """Build the CPU kernels with sanitizers, and run their tests on them; arguments after -- go to pytest."""
    install(session, "tests")
    session.install("cmake>=3.20", "ninja")
    build = Path(session.create_tmp()).absolute() / sanitizers.partition(",")[0]
    configuration = [f"-DTRIOSERVE_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    session.run("cmake", "-G", "Ninja", "-S", "kernels", "-B", str(build), *configuration)
    session.run("cmake", "--build", str(build))
    # Python itself was built without them, so their runtime has to be there before everything else
    runtimes = ["libtsan.so" if sanitizers == "thread" else "libasan.so", "libstdc++.so"]
    found = [session.run("c++", f"-print-file-name={name}", silent=True, external=True) for name in runtimes]
    environment = {
        "LD_PRELOAD": " ".join(str(path).strip() for path in found),
        # Python frees little at its end
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
    tests = session.posargs or [
        *sorted(map(str, Path("tests/kernels").glob("test_cpu_*.py"))),
        *sorted(map(str, Path("tests/device").glob("test_cpu*.py"))),
    ]
    library = build / "cpu" / "libtrioserve_cpu.so"
    # uncaptured, or the report of what ends the process is lost
    session.run("pytest", "-s", "--cpu-library", str(library), "-m", "not model", *tests, env=environment)


@nox.session
def arm(session: nox.Session) -> None:
    """Build the CPU kernels for 64-bit ARM too, and see under qemu that they give the same bits."""
    session.install("cmake>=3.20", "ninja")
    session.run("python", "tests/arm/run.py", *session.posargs)


@nox.session
def mutation(session: nox.Session) -> None:
    """Break the fan-out contract line by line, and see that its tests notice; arguments after -- select."""
    install(session, "tests")
    session.run("python", "tests/mutation/run.py", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Clients that do their worst against a real server; after --: --requests 20000."""
    install(session, "tests")
    session.run("python", "tests/chaos/run.py", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Requests of all kinds, made from the server's own description of itself; after --: --seconds 60."""
    install(session, "fuzz")
    session.run("python", "tests/fuzz/run.py", *session.posargs)


@nox.session
def clients(session: nox.Session) -> None:
    """Real clients against a real server, each in an environment of its own; after --: which of them."""
    install(session)
    session.run("python", "tests/clients/run.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks, or those named after --, with any options; nothing else should run beside them.

    Those called vs_* run only when they are named: they install other servers, and take long.
    """
    install(session, "tests")
    named = list(itertools.takewhile(lambda argument: not argument.startswith("-"), session.posargs))
    options = session.posargs[len(named) :]
    if not named:
        found = sorted(path.stem for path in Path("tests/benchmarks").glob("[a-z]*.py"))
        named = [name for name in found if not name.startswith("vs_")]
    for name in named:
        session.run("python", f"tests/benchmarks/{name}.py", *options)
