"""The architecture as a test: who may import whom (docs/architecture.rst)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "trioserve"

# Lower layers never import higher ones.
LAYERS = {
    "abc": 0,
    "errors": 0,
    "events": 0,
    "params": 0,
    "rendering": 0,
    "step": 0,
    "structure": 0,
    "tools": 0,
    "version": 0,
    "sched": 1,
    "text": 1,
    "wire": 1,
    "model": 2,
    "device": 3,
    "engine": 4,
    "web": 5,
    "cli": 6,
    "__main__": 7,
}
# Pieces of the third-party world, and the layers that may touch them.
ALLOWED = {
    "torch": {"model", "device"},
    "trio": {"engine", "web", "cli", "testing", ""},
    "quart": {"web", "testing"},
    "quart_trio": {"web", "testing"},
    "hypercorn": {"web", "testing"},
    "h11": {"web", "testing"},
    "prometheus_client": {"web"},
    "opentelemetry": {"web"},
    "click": {"cli"},
    "rich": {"cli"},
    "numpy": {"model", "device", "testing"},
    "tokenizers": {"text", "testing"},
    "jinja2": {"text"},
    "llguidance": {"text"},
    "msgspec": {"text", "wire", "model", "web"},
    "huggingface_hub": {"model"},
    "safetensors": set(),
    "asyncio": set(),
    "transformers": set(),
}
# The pure layers have no clock, no files, no threads and no log.
IMPURE = {"time", "os", "pathlib", "threading", "logging", "structlog", "socket", "subprocess", "random", "secrets"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The package (or L0 module) a file belongs to; "" for trioserve/__init__.py."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem.replace("__init__", "")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is relative; imports are absolute here"
            yield (node.module or "", node.lineno)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_its_own_package_and_lower_layers_only(path: Path) -> None:
    own = part(path)
    for name, line in imports(path):
        pieces = name.split(".")
        if pieces[0] != "trioserve" or len(pieces) == 1 or own == "":
            continue
        other = pieces[1]
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        if own == other:
            continue
        if own == "testing":
            assert other != "cli", where
            continue
        assert other != "testing", where
        # the modules of L0 are one layer of small files
        assert LAYERS[other] < LAYERS[own] or LAYERS[own] == 0 == LAYERS[other], where


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_third_party_package_is_used_only_where_it_belongs(path: Path) -> None:
    own = part(path)
    for name, line in imports(path):
        allowed = ALLOWED.get(name.split(".")[0])
        if allowed is not None:
            assert own in allowed, f"{path.relative_to(ROOT)}:{line} imports {name}"


@pytest.mark.parametrize(
    "path", [p for p in sources() if part(p) in {"sched", "text", "wire"}], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_pure_layers_touch_nothing_outside(path: Path) -> None:
    for name, line in imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path.relative_to(ROOT)}:{line} imports {name}"
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, (ast.AsyncFunctionDef, ast.Await)), f"{path}:{node.lineno} is asynchronous"


def test_only_the_command_line_reads_the_environment() -> None:
    for path in sources():
        if part(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr not in {"environ", "getenv"}, f"{path}:{node.lineno} reads the environment"


def test_only_the_opening_of_an_engine_imports_devices() -> None:
    for path in sources():
        if part(path) in {"device", "testing"} or path == PACKAGE / "engine" / "open.py":
            continue
        for name, line in imports(path):
            assert not name.startswith("trioserve.device"), f"{path}:{line} imports {name}"


def test_the_kernels_know_nothing_of_trioserve() -> None:
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        for name, line in imports(path):
            assert name.split(".")[0] != "trioserve", f"{path}:{line} imports {name}"


def test_our_own_code_has_no_async_generator() -> None:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                inner = [n for n in ast.walk(node) if isinstance(n, (ast.Yield, ast.YieldFrom))]
                assert not inner, f"{path}:{node.lineno} {node.name} is an async generator"
