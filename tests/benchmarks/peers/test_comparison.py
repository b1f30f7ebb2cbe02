"""What the comparisons with peers make of their figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peers.comparison import Comparison, Figures, Spread, report, simple_table, summary, table, take_turns, write_json

ROUNDS = [
    {"ours": Figures(100.0, 2.0), "peer": Figures(50.0, 8.0)},
    {"ours": Figures(300.0, 4.0), "peer": Figures(60.0, 8.0)},
    {"ours": Figures(120.0, 1.0), "peer": Figures(40.0, 8.0)},
]
COMPARISON = Comparison("n = 1", ROUNDS, {"peer": "-np 1"})


def test_a_spread_has_the_median_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_a_ratio_is_taken_within_each_round() -> None:
    # 2, 5 and 3; the ratio of the medians would be 2.4
    assert COMPARISON.rate("ours").median / COMPARISON.rate("peer").median == pytest.approx(2.4)
    assert COMPARISON.ratio("ours", "peer") == Spread(3.0, 2.0, 5.0)


def test_less_cpu_time_is_a_ratio_above_one() -> None:
    assert COMPARISON.cpu_ratio("ours", "peer") == Spread(4.0, 2.0, 8.0)


def test_everybody_is_first_in_turn() -> None:
    assert [take_turns("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_the_table_is_valid_and_says_how_many_times_faster() -> None:
    assert table([COMPARISON], "ours").splitlines()[2:7] == [
        "=====  ====  ====  ================",
        "work   ours  peer             ratio",
        "=====  ====  ====  ================",
        "n = 1   120    50  3.00 (2.00-5.00)",
        "=====  ====  ====  ================",
    ]


def test_a_table_refuses_rows_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="zip"):
        simple_table([["work", "ours"], ["n = 1", "1", "2"]])


def test_a_summary_names_the_flags_that_were_chosen() -> None:
    assert summary(COMPARISON, "ours") == "n = 1: ours 120, peer 50 tok/s, ratio 3.00; peer: -np 1"


def test_the_report_keeps_every_round(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, report([COMPARISON], "ours", benchmark="vs"))
    content = json.loads(path.read_text())
    assert content["benchmark"] == "vs"
    (each,) = content["comparisons"]
    assert [figures["ours"]["rate"] for figures in each["rounds"]] == [100.0, 300.0, 120.0]
    assert each["ratios"] == {"peer": {"median": 3.0, "low": 2.0, "high": 5.0}}
