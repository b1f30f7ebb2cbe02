"""Whether the vectors of texts are right.

Owns: check_vectors(). Must not know: why they were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from details import require
from world import EMBEDDING_DIM

from trioserve.testing.device import fake_hidden


def check_vectors(prompts: Sequence[tuple[int, ...]], answer: dict[str, Any]) -> None:
    """An answer about texts, of which the tokens are given."""
    tokens = sum(map(len, prompts))
    require(answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}, f"usage {answer['usage']}")
    require([item["index"] for item in answer["data"]] == list(range(len(prompts))), "indices out of order")
    for prompt, item in zip(prompts, answer["data"], strict=True):
        states = [fake_hidden(prompt[: place + 1], EMBEDDING_DIM) for place in range(len(prompt))]
        total = [sum(column) for column in zip(*states, strict=True)]
        norm = math.hypot(*total) or 1.0
        near = [math.isclose(x, y / norm, abs_tol=1e-6) for x, y in zip(item["embedding"], total, strict=True)]
        require(all(near), f"a text of {len(prompt)} tokens is {item['embedding']}, not {total} / {norm}")
