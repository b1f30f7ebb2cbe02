"""The names of choices, which are those of their tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from trioserve.params import SamplingParams
from trioserve.testing.engine import open_fake_engine


def choice_names(task: trio.lowlevel.Task) -> Iterator[str]:
    """What the tasks of choices below a task are called."""
    if task.name.startswith("choice "):
        yield task.name.removeprefix("choice ")
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from choice_names(child)


@pytest.mark.parametrize(
    ("prompts", "n", "names"),
    [
        (["a"], 1, {"id"}),
        (["a"], 3, {"0_id", "1_id", "2_id"}),
        (["a", "b"], 2, {"0_id-0", "1_id-0", "0_id-1", "1_id-1"}),
    ],
)
async def test_a_choice_is_named_after_its_place_and_its_request(prompts: list[str], n: int, names: set[str]) -> None:
    # FAN-12
    block, _ = open_fake_engine()
    async with block as engine:
        async with engine.generate(prompts, SamplingParams(n=n), request_id="id", alias="another"):
            assert set(choice_names(trio.lowlevel.current_task())) == names
