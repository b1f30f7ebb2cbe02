"""ServeOptions refuses what would not work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trioserve.errors import ParamError
from trioserve.web.options import ServeOptions

TIMES = ["keep_alive_timeout", "header_timeout", "body_timeout", "send_stall_timeout", "ping_interval"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("backlog", 0),
        ("max_connections", 0),
        ("max_head_size", 1023),
        ("max_headers", 0),
        ("max_body_size", -1),
        ("graceful_timeout", -0.1),
        ("graceful_timeout", math.nan),
        *((name, value) for name in TIMES for value in (0, -1.0, math.nan)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParamError, match=name) as raised:
        ServeOptions(**{name: value})
    assert raised.value.param == name


def test_the_extremes_are_accepted() -> None:
    ServeOptions(
        port=0,
        unix_socket=Path("/run/http.sock"),
        graceful_timeout=0,
        max_body_size=0,
        **dict.fromkeys(TIMES, math.inf),  # type: ignore[arg-type]
    )
