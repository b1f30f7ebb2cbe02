"""The cache: a model is there in whole or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trioserve.abc import no_progress
from trioserve.errors import ModelError
from trioserve.model.cache import (
    CachedModel,
    cache_dir,
    default_cache_dir,
    fetch,
    find_cached,
    list_cached,
    remove,
    watching,
)


def one_file(folder: Path) -> None:
    (folder / "weights").write_bytes(b"12345")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TRIOSERVE_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"TRIOSERVE_CACHE": "", "XDG_CACHE_HOME": "/c"}, Path("/c/trioserve")),
        ({"XDG_CACHE_HOME": "relative"}, default_cache_dir()),
        ({}, default_cache_dir()),
    ],
)
def test_the_cache_is_where_the_environment_says(environ: dict[str, str], expected: Path) -> None:
    assert cache_dir(environ) == expected


def test_a_fetched_model_is_found_listed_and_not_fetched_again(tmp_path: Path) -> None:
    assert find_cached("org/name", tmp_path) is None
    assert list_cached(tmp_path) == ()

    folder = fetch("org/name", tmp_path, one_file, no_progress)
    again = fetch("org/name", tmp_path, lambda folder: pytest.fail("fetched twice"), no_progress)

    assert folder == again == find_cached("org/name", tmp_path)
    assert (folder / "weights").read_bytes() == b"12345"
    assert list_cached(tmp_path) == (CachedModel("org/name", folder, 5),)


def test_a_stray_file_is_no_model(tmp_path: Path) -> None:
    folder = fetch("org/name", tmp_path, one_file, no_progress)
    (tmp_path / "models" / ".DS_Store").write_text("")
    assert [model.path for model in list_cached(tmp_path)] == [folder]


def test_a_cache_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to("models")  # a loop, which not even root can follow
    with pytest.raises(ModelError, match=r"can't be read: .*symbolic links"):
        list_cached(tmp_path)


def test_names_survive_the_way_to_a_folder_and_back(tmp_path: Path) -> None:
    names = ["alias", "org/name", "org/name/file--Q8_0.gguf"]
    for name in names:
        fetch(name, tmp_path, one_file, no_progress)

    assert [model.name for model in list_cached(tmp_path)] == names


def test_a_failed_download_leaves_no_model_and_the_next_goes_on_from_it(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ModelError("no network")

    with pytest.raises(ModelError, match="no network"):
        fetch("org/name", tmp_path, fail, no_progress)
    assert find_cached("org/name", tmp_path) is None
    assert list_cached(tmp_path) == ()

    folder = fetch("org/name", tmp_path, one_file, no_progress)
    assert sorted(path.name for path in folder.iterdir()) == ["half", "weights"]


def test_a_download_that_failed_at_once_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise ModelError("no network")

    with pytest.raises(ModelError, match="no network"):
        fetch("org/name", tmp_path, fail, no_progress)

    assert list((tmp_path / "partial").iterdir()) == []


def test_a_killed_download_leaves_no_model_and_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from trioserve.abc import no_progress\n"
        "from trioserve.model.cache import fetch\n"
        "def die(folder):\n"
        "    (folder / 'half').touch()\n"
        "    os._exit(9)\n"
        "fetch('org/name', pathlib.Path(sys.argv[1]), die, no_progress)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9

    assert list_cached(tmp_path) == ()
    stages: list[str] = []
    fetch("org/name", tmp_path, one_file, lambda stage, *_: stages.append(stage))
    assert stages == []  # it waited for nobody


def test_two_that_want_the_same_model_download_it_once(tmp_path: Path) -> None:
    second_waits = threading.Event()
    downloads: list[str] = []
    found: list[Path] = []

    def download(folder: Path) -> None:
        downloads.append(threading.current_thread().name)
        second = threading.Thread(target=run, args=(lambda *_: second_waits.set(),))
        second.start()
        threads.append(second)
        assert second_waits.wait(10)
        assert found == []
        one_file(folder)

    def run(progress: object) -> None:
        found.append(fetch("m", tmp_path, download, progress))

    threads: list[threading.Thread] = []
    run(no_progress)
    for thread in threads:
        thread.join(10)

    assert len(downloads) == 1
    assert found == [tmp_path / "models" / "m"] * 2


def test_removing_frees_the_model_and_what_is_left_of_a_download(tmp_path: Path) -> None:
    fetch("org/name", tmp_path, one_file, no_progress)
    leftover = tmp_path / "partial" / "org--name"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"123")

    assert remove("org/name", tmp_path) == 8

    assert find_cached("org/name", tmp_path) is None
    assert not leftover.exists()
    with pytest.raises(ModelError, match=r"'org/name' is not in the cache \("):
        remove("org/name", tmp_path)


@pytest.mark.parametrize("name", ["..", "../models", "org/..", "/", "", "."])
def test_no_name_leads_out_of_the_cache(tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    fetch("m", cache, one_file, no_progress)

    with pytest.raises(ModelError, match="is no name of a model in the cache"):
        remove(name, cache)

    assert (cache / "models" / "m" / "weights").exists()


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "file"
    cache.touch()

    with pytest.raises(ModelError, match=rf"^{cache}: can't be written: "):
        fetch("m", cache, one_file, no_progress)


def test_a_growing_folder_is_reported_as_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    some = threading.Event()

    def progress(stage: str, done: int, total: int | None) -> None:
        seen.append((stage, done, total))
        if done == 5:
            some.set()

    with watching(tmp_path, 20, progress):
        one_file(tmp_path)
        assert some.wait(10)

    assert seen[0] == ("downloading", 0, 20)
    assert seen[-1] == ("downloading", 20, 20)


def test_a_failed_download_is_not_reported_as_complete(tmp_path: Path) -> None:
    seen: list[int] = []

    with pytest.raises(ModelError), watching(tmp_path, 20, lambda _, done, total: seen.append(done)):
        raise ModelError("no network")

    assert 20 not in seen
    assert "trioserve download progress" not in {thread.name for thread in threading.enumerate()}
