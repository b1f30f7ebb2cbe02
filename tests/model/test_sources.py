"""How a model's name is understood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from trioserve.abc import no_progress
from trioserve.errors import ModelError
from trioserve.model.aliases import Alias
from trioserve.model.cache import fetch
from trioserve.model.hub import RepoFiles
from trioserve.model.sources import ResolvedModel, pull, resolve

ALIASES = {"tiny": Alias(requirement="tiny==1", wheel_size=1, member="tiny/a.gguf", size=5, sha256="")}


@attrs.define(eq=False)
class FakeHub:
    """Repos as name -> file name -> content. ``lost`` names files that a download doesn't bring."""

    repos: dict[str, dict[str, bytes]]
    lost: set[str] = attrs.field(factory=set)
    downloads: int = 0

    def files(self, repo: str) -> RepoFiles:
        if repo not in self.repos:
            raise ModelError(f"there is no Hugging Face repo '{repo}'")
        return RepoFiles("c0ffee", {name: len(data) for name, data in self.repos[repo].items()})

    def download(self, repo: str, commit: str, names: Sequence[str], folder: Path) -> None:
        assert commit == "c0ffee"
        self.downloads += 1
        (folder / ".cache").mkdir()
        for name in set(names) - self.lost:
            (folder / name).write_bytes(self.repos[repo][name])


LLAMA_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"12345678",
}
OTHER_FILES = {
    "README.md": b"#",
    "consolidated.safetensors": b"again",
    "pytorch_model.bin": b"again",
    "original/config.json": b"{}",
    "onnx/model.safetensors": b"again",
    "models/old.safetensors": b"again",
}


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub({"org/llama": LLAMA_FILES | OTHER_FILES, "org/ggufs": {"a.gguf": b"GGUF", "b.gguf": b"GGUF2"}})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; relative paths start in an empty folder beside it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def test_an_alias_in_the_cache_is_served_under_its_name(cache: Path) -> None:
    folder = fetch("tiny", cache, lambda folder: (folder / "a.gguf").write_bytes(b"12345"), no_progress)

    found = resolve("tiny", cache=cache, aliases=ALIASES, offline=True)

    assert found == ResolvedModel("tiny", folder / "a.gguf", "gguf")


def test_an_alias_whose_file_has_another_size_is_not_used(cache: Path) -> None:
    fetch("tiny", cache, lambda folder: (folder / "a.gguf").write_bytes(b"123"), no_progress)

    with pytest.raises(ModelError, match="has 3 bytes instead of 5: remove it with 'trioserve models rm tiny'"):
        resolve("tiny", cache=cache, aliases=ALIASES)


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_file_is_served_under_its_stem(cache: Path, as_type: type) -> None:
    Path("My-Model.Q8_0.gguf").touch()

    found = resolve(as_type("My-Model.Q8_0.gguf"), cache=cache)

    assert found == ResolvedModel("My-Model.Q8_0", Path("My-Model.Q8_0.gguf"), "gguf")


@pytest.mark.parametrize("as_type", [str, Path])
@pytest.mark.parametrize("name", ["models/llama", "models/../models/llama/"])
def test_a_folder_is_served_under_its_name(cache: Path, as_type: type, name: str) -> None:
    Path("models/llama").mkdir(parents=True)
    Path("models/llama/config.json").touch()

    found = resolve(as_type(name), cache=cache)

    assert (found.id, found.kind) == ("llama", "huggingface")
    assert found.path.samefile("models/llama")


def test_a_path_wins_over_a_repo_and_an_alias_over_a_path(cache: Path, hub: FakeHub) -> None:
    Path("org").mkdir()
    Path("org/ggufs").touch()
    Path("tiny").touch()
    fetch("tiny", cache, lambda folder: (folder / "a.gguf").write_bytes(b"12345"), no_progress)

    assert resolve("org/ggufs", cache=cache, hub=hub).path == Path("org/ggufs")
    assert resolve("tiny", cache=cache, aliases=ALIASES).path == cache / "models" / "tiny" / "a.gguf"
    assert resolve("./tiny", cache=cache, aliases=ALIASES).path == Path("tiny")
    assert resolve(Path("tiny"), cache=cache, aliases=ALIASES).path == Path("tiny")


def test_a_repo_is_fetched_once_with_the_files_that_matter(cache: Path, hub: FakeHub) -> None:
    found = resolve("org/llama", cache=cache, hub=hub)

    assert found == ResolvedModel("org/llama", cache / "models" / "org--llama", "huggingface")
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == LLAMA_FILES
    assert resolve("org/llama", cache=cache, hub=hub, offline=True) == found
    assert hub.downloads == 1


def test_one_gguf_file_of_a_repo(cache: Path, hub: FakeHub) -> None:
    found = resolve("org/ggufs/b.gguf", cache=cache, hub=hub)

    assert (found.id, found.kind) == ("org/ggufs/b.gguf", "gguf")
    assert found.path.read_bytes() == b"GGUF2"
    assert [path.name for path in found.path.parent.iterdir()] == ["b.gguf"]


def test_a_download_that_is_not_complete_is_no_model(cache: Path, hub: FakeHub) -> None:
    hub.lost = {"model.safetensors"}

    with pytest.raises(ModelError, match=r"model\.safetensors: was not fetched completely from 'org/llama'"):
        resolve("org/llama", cache=cache, hub=hub)
    with pytest.raises(ModelError, match="is not in the cache"):
        resolve("org/llama", cache=cache, hub=hub, offline=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nothing",
            "unknown model 'nothing': not an alias (tiny), a .gguf file, a folder, or a Hugging Face repo id",
        ),
        ("a/b/c/d", "unknown model 'a/b/c/d': not an alias"),
        ("", "unknown model '': not an alias"),
        ("org/..", "unknown model 'org/..': not an alias"),
        ("nothing.gguf", "nothing.gguf: there is no such file"),
        (Path("nothing"), "nothing: is neither a file nor a folder"),
        ("x" * 5000, "unknown model 'xxx"),
        ("nul\0byte", "unknown model 'nul\\x00byte'"),
        ("org/other", "there is no Hugging Face repo 'org/other'"),
        ("org/ggufs/c.gguf", "'c.gguf' is neither here nor in the Hugging Face repo 'org/ggufs'"),
        ("org/ggufs", "the Hugging Face repo 'org/ggufs' has no config.json with model*.safetensors; name one of its"),
    ],
)
def test_a_name_that_leads_nowhere(cache: Path, hub: FakeHub, name: str | Path, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name, cache=cache, aliases=ALIASES, hub=hub)

    assert str(caught.value).startswith(message)
    assert not (cache / "models").exists()


@pytest.mark.parametrize("name", ["tiny", "org/llama", "org/ggufs/a.gguf"])
def test_offline_nothing_is_fetched(cache: Path, hub: FakeHub, name: str) -> None:
    with pytest.raises(ModelError, match=rf"'{name}' is not in the cache \(.*\), and fetching is off"):
        resolve(name, cache=cache, aliases=ALIASES, hub=hub, offline=True)

    assert hub.downloads == 0


def test_a_folder_without_a_config_points_to_its_gguf_file(cache: Path) -> None:
    Path("folder").mkdir()
    with pytest.raises(ModelError, match=r"^folder: has no config\.json$"):
        resolve("folder", cache=cache)

    Path("folder/a.gguf").touch()
    with pytest.raises(ModelError, match=r"has no config\.json: name its GGUF file instead: folder/a\.gguf$"):
        resolve("folder", cache=cache)


def test_pull_fetches_what_is_not_there(cache: Path, hub: FakeHub) -> None:
    assert pull("org/llama", cache=cache, hub=hub).path.is_dir()
    assert pull("org/llama", cache=cache, hub=hub).id == "org/llama"
    assert hub.downloads == 1


@pytest.mark.parametrize("name", ["here.gguf", "nothing", "./org/llama"])
def test_pull_refuses_what_can_not_be_fetched(cache: Path, hub: FakeHub, name: str) -> None:
    Path("here.gguf").touch()

    with pytest.raises(ModelError, match=f"'{name}' is nothing that can be fetched: not an alias"):
        pull(name, cache=cache, aliases=ALIASES, hub=hub)


def test_a_missing_file_in_a_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        resolve("folder/none.gguf", cache=tmp_path)
