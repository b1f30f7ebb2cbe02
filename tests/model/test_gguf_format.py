"""The GGUF reader: against the ``gguf`` package, and against broken files."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trioserve.errors import ModelError
from trioserve.model.dequantise import SUPPORTED_KINDS
from trioserve.model.gguf_format import KINDS, GgufFile, read_gguf
from trioserve.testing.gguf_writer import GgufTensor, encode_tensor, write_gguf

ONES = encode_tensor("F32", np.ones((2, 8), dtype=np.float32))  # 64 bytes


def header(tensors: int, keys: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor_info(
    name: bytes, dimensions: tuple[int, ...] = (8, 2), kind: int = 0, offset: int = 0, count: int | None = None
) -> bytes:
    count = len(dimensions) if count is None else count
    form = f"<I{len(dimensions)}QIQ"
    return string(name) + struct.pack(form, count, *dimensions, kind, offset)


def padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 32) * 32, b"\0")


def one_key(value_type: int, value: bytes) -> bytes:
    return header(0, 1) + string(b"key") + struct.pack("<I", value_type) + value


# --- files that are fine


def test_metadata_of_every_type_reads_as_the_gguf_package_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "Grüße, 世界")
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -0.25])
    writer.add_array("booleans", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with read_gguf(path) as file:
        values = dict(file.metadata)

    arrays = {key: values.pop(key).tolist() for key in ("integers", "floats", "booleans")}
    assert arrays == {"integers": [1, -2, 3], "floats": [0.5, -0.25], "booleans": [True, False]}
    assert values == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "Grüße, 世界",
        "strings": ("a", "", "ü"),
    }
    assert values["yes"] is True


def assert_same_tensors(file: GgufFile, oracle: gguf.GGUFReader) -> None:
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
    for theirs in oracle.tensors:
        ours = file.tensors[theirs.name]
        assert ours.kind == theirs.tensor_type.name
        assert ours.shape == tuple(theirs.shape.tolist()[::-1])
        assert (ours.start, ours.stop) == (theirs.data_offset, theirs.data_offset + theirs.n_bytes)


def test_tensors_lie_where_the_gguf_package_finds_them(tiny_gguf: Path) -> None:
    oracle = gguf.GGUFReader(tiny_gguf)

    with read_gguf(tiny_gguf) as file:
        assert_same_tensors(file, oracle)
        for tensor in oracle.tensors:
            assert bytes(file.tensors[tensor.name].raw().data) == tensor.data.tobytes()


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 64), (3, 1)])
def test_versions_and_alignments(tmp_path: Path, version: int, alignment: int) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"general.alignment": alignment}, {"a": ONES, "b": ONES}, version=version, alignment=alignment)

    with read_gguf(path) as file:
        assert file.version == version
        assert [tensor.float32().tolist() for tensor in file.tensors.values()] == [[[1.0] * 8] * 2] * 2


def test_a_file_without_tensors_may_end_at_its_last_key(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(one_key(4, struct.pack("<I", 7)))

    with read_gguf(path) as file:
        assert dict(file.metadata) == {"key": 7}
        assert file.tensors == {}


def test_kinds_have_the_sizes_of_the_gguf_package() -> None:
    for number, (name, weights, size) in KINDS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, weights, size)


def test_closing_ends_the_mapping_and_views_of_it_stay_valid(tiny_gguf: Path) -> None:
    file = read_gguf(tiny_gguf)
    tensor = file.tensors["output_norm.weight"]
    raw, before = tensor.raw(), tensor.float32()

    file.file.close()
    file.file.close()

    np.testing.assert_array_equal(np.frombuffer(raw.data, "<f4"), before)
    with pytest.raises(ValueError, match="is closed"):
        tensor.raw()


# --- files that are broken

BROKEN = {
    "other magic": (header(0, 0, magic=b"GGML"), "is not a GGUF file"),
    "too short for a header": (b"GGUF\3\0\0", "its header goes on after its end"),
    "version 1": (header(0, 0, version=1), "is of GGUF version 1, which is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
    "absurd tensor count": (header(2**63, 0), f"claims {2**63} tensors"),
    "absurd key count": (header(0, 2**40), f"claims {2**40} metadata keys"),
    "more keys than bytes": (header(0, 60_000), "its header goes on after its end"),
    "key of absurd length": (header(0, 1) + struct.pack("<Q", 2**62) + b"key", "has a name of"),
    "key not UTF-8": (header(0, 1) + string(b"\xff") + struct.pack("<IB", 0, 0), "not UTF-8"),
    "key twice": (header(0, 2) + 2 * (string(b"k") + struct.pack("<IB", 0, 1)), "the metadata key 'k' twice"),
    "unknown value type": (one_key(13, b"\0" * 8), "'key' has the unknown type 13"),
    "boolean of 2": (one_key(7, b"\2"), "'key' is a boolean with the value 2"),
    "string beyond the end": (one_key(8, struct.pack("<Q", 2**63) + b"text"), "its header goes on after its end"),
    "string not UTF-8": (one_key(8, string(b"\xc3")), "not UTF-8"),
    "array of arrays": (one_key(9, struct.pack("<IQ", 9, 1) + b"\0" * 16), "'key' is an array of arrays"),
    "array of unknown type": (one_key(9, struct.pack("<IQ", 99, 1)), "'key' is an array of the unknown type 99"),
    "array of absurd length": (one_key(9, struct.pack("<IQ", 0, 2**60)), f"claims {2**60} elements in 'key'"),
    "array beyond the end": (one_key(9, struct.pack("<IQ", 10, 2**20)), "its header goes on after its end"),
    "strings beyond the end": (one_key(9, struct.pack("<IQ", 8, 2**20)), "its header goes on after its end"),
    "one string beyond the end": (one_key(9, struct.pack("<IQQ", 8, 1, 2**63)), "its header goes on after its end"),
    "strings not UTF-8": (one_key(9, struct.pack("<IQ", 8, 1) + string(b"\x80")), "not UTF-8"),
    "array of booleans of 3": (one_key(9, struct.pack("<IQ", 7, 2) + b"\1\3"), "array of booleans with other values"),
    "no dimensions": (header(1, 0) + tensor_info(b"t", (), count=0), "'t' has 0 dimensions"),
    "five dimensions": (header(1, 0) + tensor_info(b"t", (1,) * 5), "'t' has 5 dimensions"),
    "dimension of 0": (header(1, 0) + tensor_info(b"t", (8, 0)), "'t' is empty"),
    "unknown kind": (header(1, 0) + tensor_info(b"t", kind=4), "'t' has the unknown kind 4"),
    "part of a block": (header(1, 0) + tensor_info(b"t", (33,), kind=8), "rows of 33, which are not whole blocks"),
    "misaligned": (header(1, 0) + tensor_info(b"t", offset=16), "'t' starts at 16, which is not a multiple of 32"),
    "tensor not in the file": (header(1, 0) + tensor_info(b"t"), "is truncated: "),
    "product beyond 64 bits": (header(1, 0) + tensor_info(b"t", (2**63, 2**63)), "is truncated: "),
    "offset beyond the end": (padded(header(1, 0) + tensor_info(b"t", offset=2**40)) + bytes(64), "is truncated: "),
    "tensor twice": (
        padded(header(2, 0) + tensor_info(b"t") + tensor_info(b"t", offset=64)) + bytes(128),
        "has the tensor 't' twice",
    ),
    "overlap": (
        padded(header(2, 0) + tensor_info(b"a") + tensor_info(b"b", offset=32)) + bytes(128),
        "the tensors 'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_names_it(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)

    with pytest.raises(ModelError) as caught:
        read_gguf(path)

    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize("alignment", [0, 3, 48, True, "32"])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, alignment: int | str) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"general.alignment": alignment}, {"t": ONES})

    with pytest.raises(ModelError, match=r"general\.alignment is .* not a power of two"):
        read_gguf(path)


def test_line_breaks_in_names_do_not_break_the_message(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {}, {"evil\nname\x1b[2J" + 500 * "x": GgufTensor("F32", (3, 0), b"")})

    with pytest.raises(ModelError) as caught:
        read_gguf(path)

    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_claims_of_a_small_file_allocate_nothing_large(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(one_key(9, struct.pack("<IQ", 8, 2**22)))

    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000


def small_file(folder: Path) -> bytes:
    """A file with some of everything, in 500 bytes or so, each of which matters."""
    path = folder / "small.gguf"
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "strings": ["a", "bc"],
        "numbers": np.array([1, 2, 3], dtype=np.int32),
        "flags": np.array([True, False]),
        "yes": True,
        "f": 1.5,
    }
    write_gguf(path, metadata, {"a": ONES, "b": encode_tensor("Q8_0", np.ones((1, 32), dtype=np.float32))})
    return path.read_bytes()


def check_reading(path: Path) -> None:
    """Read a file the way a loader does; only a ModelError of one line may come out of it."""
    message = f"{path}: "
    try:
        with read_gguf(path) as file:
            for tensor in file.tensors.values():
                if tensor.kind in SUPPORTED_KINDS:
                    tensor.float32()
    except ModelError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = small_file(tmp_path)
    path = tmp_path / "cut.gguf"
    # the tensors end before the padding behind the last one
    end = len(data.rstrip(b"\0"))
    for size in range(end):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            read_gguf(path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_mutation_raises_anything_but_model_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(small_file(folder))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.sampled_from([0, 1, 8, 9, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path = folder / "mutated.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])

    check_reading(path)


@settings(max_examples=200, deadline=None)
@given(tail=st.binary(max_size=200), tensors=st.integers(0, 3), keys=st.integers(0, 3))
@example(tail=b"", tensors=0, keys=0)
def test_no_garbage_raises_anything_but_model_error(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, tensors: int, keys: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.gguf"
    path.write_bytes(header(tensors, keys) + tail)

    check_reading(path)


@pytest.mark.model
def test_the_default_model_reads_as_the_gguf_package_reads_its_tensors(default_model_path: Path) -> None:
    # the package's own reader takes seconds for the vocabulary; the tiny file covers metadata
    with read_gguf(default_model_path) as file:
        assert file.version == 3
        assert len(file.tensors) == 272
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        assert file.tensors["token_embd.weight"].shape == (49152, 576)
        assert file.tensors["blk.29.ffn_down.weight"].kind == "Q4_1"
        last = max(tensor.stop for tensor in file.tensors.values())
        assert last == file.file.size
