"""The fan-out contract (docs/fanout.rst) and the tests that cite its lines know of each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"^\*\*FAN-(\d+): (.*?)(?=^\*\*FAN-|\Z)", re.MULTILINE | re.DOTALL)
CITED = re.compile(r"FAN-(\d+)")

CONTRACT = {int(line[1]): line[2] for line in LINE.finditer((ROOT / "docs" / "fanout.rst").read_text())}
CITATIONS = {
    str(path.relative_to(ROOT)): {int(number) for number in CITED.findall(path.read_text())}
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path != Path(__file__)
}


def test_the_contract_has_every_line_once_and_in_order() -> None:
    assert list(CONTRACT) == list(range(1, 36))


def test_every_number_that_is_cited_is_a_line_of_the_contract() -> None:
    for folder in ("tests", "trioserve", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            assert {int(number) for number in CITED.findall(path.read_text())} <= CONTRACT.keys(), path


@pytest.mark.parametrize("line", CONTRACT)
def test_a_line_names_tests_that_cite_it(line: int) -> None:
    named = re.findall(r"``(tests/[\w/]+\.py)``", CONTRACT[line])
    assert named
    for path in named:
        assert line in CITATIONS[path], path
