"""Opening files and reading values: every fault names the file and, where there is one, the key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trioserve.errors import ModelError
from trioserve.model.fields import Fields
from trioserve.model.files import MappedFile, fault, naming, read_json, read_text

PATH = Path("config.json")


def test_a_mapped_file_gives_views_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    file = MappedFile(tmp_path / "a")

    assert file.size == 10
    assert bytes(file.view(2, 5)) == b"234"
    assert repr(file) == f"<MappedFile '{tmp_path / 'a'}', 10 bytes>"

    file.close()
    assert repr(file) == f"<MappedFile '{tmp_path / 'a'}', closed>"


@pytest.mark.parametrize("open_file", [MappedFile, lambda path: read_text(path, 100)])
def test_what_is_no_readable_file_is_refused(tmp_path: Path, open_file: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    faults = {
        "pipe": "is not a file",
        "folder": "is not a file",
        "nothing": "can't be read: No such file or directory",
    }
    for name, text in faults.items():
        with pytest.raises(ModelError) as caught:
            open_file(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {text}"


def test_an_empty_file_can_not_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    with pytest.raises(ModelError, match="is empty"):
        MappedFile(tmp_path / "a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{} " + b" " * 100, "has 103 bytes, which is more than such a file may have (100)"),
        (b"\xff", "is not UTF-8 text"),
        (b"", "is not valid JSON: "),
        (b"{", "is not valid JSON: "),
        (b"[" * 100, "is not valid JSON: "),
        (b'{"a": 1' + b"0" * 90 + b"}}", "is not valid JSON: "),
        (b"3", "is not a JSON object"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "has the key 'c' twice"),
        (b"version https://git-lfs.example/spec/v1", "is a Git LFS pointer"),
    ],
)
def test_broken_json_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(data)

    with pytest.raises(ModelError) as caught:
        read_json(tmp_path / "a.json", 100)

    assert str(caught.value).startswith(f"{tmp_path / 'a.json'}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_is_one_line_whatever_is_in_it() -> None:
    assert str(fault(PATH, "one\ntwo\r\nthree")) == "config.json: one two three"


def test_a_fault_is_given_the_name_of_its_file_once() -> None:
    for text in ("9 heads", "config.json: 9 heads"):
        with pytest.raises(ModelError, match=r"^config\.json: 9 heads$"), naming(PATH):
            raise ModelError(text)


# --- fields


def test_values_of_the_right_type_come_out_as_they_are() -> None:
    fields = Fields(PATH, {"i": 3, "f": 0.5, "b": False, "t": "x", "s": {"i": 4}, "null": None})

    assert fields.integer("i") == 3
    assert (fields.number("f"), fields.number("i"), fields.positive("f")) == (0.5, 3.0, 0.5)
    assert isinstance(fields.number("i"), float)
    assert fields.boolean("b") is False
    assert fields.text("t") == "x"
    section = fields.section("s")
    assert section is not None
    assert section.integer("i") == 4
    assert fields.value("s") == {"i": 4}


@pytest.mark.parametrize("key", ["null", "nothing"])
def test_a_null_is_as_good_as_nothing(key: str) -> None:
    fields = Fields(PATH, {"null": None})

    assert fields.integer(key, 7) == 7
    assert fields.text(key, None) is None
    assert fields.positive(key, 2.0) == 2.0
    assert fields.section(key) is None
    assert fields.has("null")
    assert not fields.has("nothing")
    with pytest.raises(ModelError, match=f"^config.json: {key} is missing$"):
        fields.integer(key)


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (Fields.integer, "3", "k is '3', not an integer"),
        (Fields.integer, 3.0, "k is 3.0, not an integer"),
        (Fields.integer, True, "k is True, not an integer"),
        (Fields.number, True, "k is True, not a number"),
        (Fields.number, [1], "k is [1], not a number"),
        (Fields.number, float("nan"), "k is nan, which is not a finite number"),
        (Fields.number, 10**400, "k is 1000"),
        (Fields.positive, 0, "k is 0.0, which is not a positive number"),
        (Fields.positive, -1.5, "k is -1.5, which is not a positive number"),
        (Fields.boolean, 1, "k is 1, not a boolean"),
        (Fields.text, 1, "k is 1, not a string"),
        (Fields.section, [1], "k is not an object"),
    ],
)
def test_a_value_of_another_type_is_refused(read: Callable[[Fields, str], object], value: object, message: str) -> None:
    fields = Fields(PATH, {"outer": {"k": value}}).section("outer")
    assert fields is not None

    with pytest.raises(ModelError) as caught:
        read(fields, "k")

    assert str(caught.value).startswith(f"config.json: outer.{message}")


def test_keys_that_nobody_asked_for_are_known() -> None:
    fields = Fields(PATH, {"a.x": 1, "a.y": 2, "b.z": 3})
    fields.integer("a.y")

    assert fields.unread("a.") == ["a.x"]
