"""The list of clients that are tried against the server, and what is said of them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent / "clients"
LISTED = tomllib.loads((HERE / "clients.toml").read_text())


def test_every_client_is_listed_and_has_tests() -> None:
    assert {f"test_{name}.py" for name in LISTED["python"]} == {path.name for path in HERE.glob("test_*.py")}
    assert list((HERE / "node").glob("*.test.mjs"))


def test_a_run_installs_the_same_today_and_tomorrow() -> None:
    lists = [*LISTED["python"].values(), LISTED["environment"]["common"], LISTED["node"]["common"]]
    assert [pin for pins in lists for pin in pins if not re.search(r"==[\d.]+$", pin)] == []
    package = json.loads((HERE / "node" / "package.json").read_text())
    assert [name for name, pin in package["dependencies"].items() if not re.fullmatch(r"[\d.]+", pin)] == []
    locked = json.loads((HERE / "node" / "package-lock.json").read_text())["packages"]
    assert {f"node_modules/{name}" for name in package["dependencies"]} <= set(locked)
    # so that the registry is the one of whoever runs it
    assert [name for name, entry in locked.items() if "resolved" in entry] == []


def test_the_manual_has_a_section_for_every_client() -> None:
    manual = (HERE.parents[1] / "docs" / "clients.rst").read_text().lower()
    titles = {re.sub("[ -]", "_", title) for title in re.findall(r"^(.+)\n-+$", manual, re.MULTILINE)}
    assert {name for name in LISTED["python"] if not any(title.startswith(name) for title in titles)} == set()
