"""The safetensors reader: which files, and whether they are whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import ModelError
from trioserve.model.safetensors import INDEX, SINGLE, read_checkpoint
from trioserve.testing.checkpoints import TinyLlama, make_weights, write_tiny_llama

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MINIMAL = TinyLlama(layers=1, heads=2, kv_heads=1, head_dim=2, feed_forward_dim=2, vocab_size=259)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "sharded", MINIMAL, shards=2)


def values(folder: Path) -> dict[str, list[object]]:
    checkpoint = read_checkpoint(folder)
    try:
        return {name: tensor.float32().tolist() for name, tensor in checkpoint.tensors.items()}
    finally:
        checkpoint.close()


def expected(tiny: TinyLlama = MINIMAL) -> dict[str, list[object]]:
    return {name: array.tolist() for name, array in make_weights(tiny).items()}


def error(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def file_with(folder: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def edit_index(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


# --- files that are fine


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal((4,)).astype(np.float16),
        "scalar": np.array(2.5, dtype=np.float32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / SINGLE, metadata={"format": "np"})

    assert values(tmp_path) == {name: array.astype(np.float32).tolist() for name, array in arrays.items()}


def test_one_file_and_shards_hold_the_same(tmp_path: Path, sharded: Path) -> None:
    assert values(write_tiny_llama(tmp_path / "one", MINIMAL)) == expected()
    assert values(sharded) == expected()


def test_a_single_file_of_another_name_is_found(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, MINIMAL)
    (tmp_path / SINGLE).rename(tmp_path / "weights.safetensors")

    assert values(tmp_path) == expected()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_dtypes(tmp_path: Path, dtype: str) -> None:
    found = values(write_tiny_llama(tmp_path, MINIMAL, dtype=dtype))

    for name, array in make_weights(MINIMAL).items():
        np.testing.assert_allclose(found[name], array, rtol=2**-7, atol=1e-6)


# --- case safetensors-missing-shard


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / SECOND).unlink()

    assert error(sharded) == f"{sharded / SECOND}: is missing, but {INDEX} names it"


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    data = (sharded / SECOND).read_bytes()
    (sharded / SECOND).write_bytes(data[:-10])

    assert error(sharded) == f"{sharded / SECOND}: is truncated: {len(data) - 10} bytes instead of {len(data)}"


def test_a_shard_that_ends_inside_its_header_is_named(sharded: Path) -> None:
    (sharded / SECOND).write_bytes((sharded / SECOND).read_bytes()[:100])

    assert error(sharded).startswith(f"{sharded / SECOND}: is truncated")


def test_a_shard_with_bytes_at_its_end_is_refused(sharded: Path) -> None:
    with (sharded / FIRST).open("ab") as file:
        file.write(b"more")

    assert "has bytes after its last tensor" in error(sharded)


def test_a_tensor_that_the_index_expects_in_a_shard_is_named(sharded: Path) -> None:
    edit_index(sharded, lambda index: index["weight_map"].update({"model.extra.weight": SECOND}))

    assert error(sharded) == f"{sharded / SECOND}: has no tensor 'model.extra.weight', but {INDEX} says so"


def test_a_tensor_that_the_index_does_not_place_in_a_shard_is_named(sharded: Path) -> None:
    edit_index(sharded, lambda index: index["weight_map"].pop("model.norm.weight"))

    assert "has the tensor 'model.norm.weight', which" in error(sharded)


def test_a_stray_single_file_beside_shards_is_left_alone(sharded: Path) -> None:
    write_tiny_llama(sharded.parent / "stray", TinyLlama(seed=99, layers=1))
    (sharded.parent / "stray" / SINGLE).rename(sharded / SINGLE)

    assert values(sharded) == expected()


def test_a_folder_without_weights_is_refused(sharded: Path) -> None:
    for path in (sharded / INDEX, sharded / FIRST, sharded / SECOND):
        path.unlink()
    assert error(sharded) == f"{sharded}: has no .safetensors files"

    (sharded / "pytorch_model.bin").touch()
    assert error(sharded) == f"{sharded}: has no .safetensors files ('pytorch_model.bin' is another format)"


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()

    assert error(sharded) == f"{sharded}: has 2 .safetensors files, but no {INDEX} to say what is where"


@pytest.mark.parametrize("name", [FIRST, INDEX])
def test_a_git_lfs_pointer_is_named(sharded: Path, name: str) -> None:
    (sharded / name).write_text("version https://git-lfs.example/spec/v1\noid sha256:00\nsize 12345\n")

    assert error(sharded).startswith(f"{sharded / name}: is a Git LFS pointer")


# --- hostile files


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "has no weight_map object"),
        ({}, "has no weight_map object"),
        (["a"], "has no weight_map object"),
        ({"a": 1}, "puts 'a' into 1, which is not the name"),
        ({"a": "../secret.safetensors"}, "which is not the name of a .safetensors file"),
        ({"a": "/etc/passwd"}, "which is not the name of a .safetensors file"),
        ({"a": "model.bin"}, "which is not the name of a .safetensors file"),
    ],
)
def test_an_index_with_a_wrong_map_is_refused(sharded: Path, weight_map: object, message: str) -> None:
    edit_index(sharded, lambda index: index.update(weight_map=weight_map))

    assert message in error(sharded)


def described(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "its header is not valid JSON"),
        (b"[" * 100_000, "its header is not valid JSON"),
        (b"[]", "its header is not a JSON object"),
        (b"\xff{}", "its header is not UTF-8"),
        (b'{"t": {}, "t": {}}', "its header has the key 't' twice"),
        ({"t": []}, "'t' is not described by an object"),
        (described(dtype="F8_E4M3"), "'t' has the dtype 'F8_E4M3', which is not supported (supported: F32, F16, BF16)"),
        (described(dtype=None), "'t' has the dtype None"),
        (described(shape=[-2]), "'t' has the shape [-2]"),
        (described(shape="2"), "'t' has the shape '2'"),
        (described(shape=[2.0]), "'t' has the shape [2.0]"),
        (described(shape=[True, 2]), "'t' has the shape [True, 2]"),
        (described(shape=[1] * 9), "'t' has the shape [1, 1"),
        (described(shape=[2**62, 2**62]), "'t' has 8 bytes, which are not F32 of shape"),
        (described(shape=[3]), "'t' has 8 bytes, which are not F32 of shape [3]"),
        (described(data_offsets=[8, 0]), "'t' has the data_offsets [8, 0]"),
        (described(data_offsets=[0]), "'t' has the data_offsets [0]"),
        (described(data_offsets=[0, 10**30]), "'t' has the data_offsets"),
        (described(data_offsets=[4, 12]), "leaves a hole or an overlap at the tensor 't'"),
        (described() | {"u": described()["t"]}, "leaves a hole or an overlap at the tensor 'u'"),
        (described() | {"u": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "is truncated: "),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, header: object, message: str) -> None:
    text = error(file_with(tmp_path, header, bytes(8)))

    assert text.startswith(f"{tmp_path / SINGLE}: ")
    assert message in text


@pytest.mark.parametrize("length", [2**63, 100_000_001, 20])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", length) + b"{}")

    assert f"a header of {length} bytes" in error(tmp_path)


@pytest.mark.parametrize("data", [b"", b"1234567"])
def test_a_file_too_short_for_anything_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(data)

    assert error(tmp_path).startswith(f"{tmp_path / SINGLE}: is ")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_mutation_raises_anything_but_model_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    file_with(folder, described() | {"__metadata__": {"format": "pt"}}, bytes(8))
    content = bytearray((folder / SINGLE).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / SINGLE).write_bytes(content[: data.draw(st.integers(0, len(content)))])

    message = f"{folder / SINGLE}: "
    try:
        values(folder)
    except ModelError as fault:
        message = str(fault)
    assert message.startswith(f"{folder / SINGLE}: ")
