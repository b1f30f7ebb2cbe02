"""The bodies of the routes that tell what is served: /v1/models, /v1/engine, /health, /version.

Owns: their JSON. Must not know: where a model comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from trioserve.wire.line import json_line

HEALTH: Final = b'{"status":"ok"}'
"""The body of /health while the engine runs."""


@attrs.frozen(kw_only=True)
class ModelCard:
    """A model that is served."""

    id: str
    created: int
    """Seconds since the epoch."""
    max_model_len: int
    """Tokens of prompt and answer together at most. Extends OpenAI's format."""
    owned_by: str = "trioserve"


def models_body(cards: Sequence[ModelCard]) -> bytes:
    """The body of /v1/models."""
    return json_line({"object": "list", "data": [_card_fields(card) for card in cards]})


def model_body(card: ModelCard) -> bytes:
    """The body of /v1/models/{id}."""
    return json_line(_card_fields(card))


def version_body(version: str) -> bytes:
    """The body of /version."""
    return json_line({"version": version})


def engine_body(snapshot: attrs.AttrsInstance) -> bytes:
    """The body of /v1/engine: the fields of the snapshot, and of what is inside it, by their own names."""
    return json_line({"object": "engine", **attrs.asdict(snapshot)})


def cancelled_body(name: str, index: int | None) -> bytes:
    """The answer to a DELETE that ended a request, or one choice of it (FAN-34)."""
    choice = {} if index is None else {"index": index}
    return json_line({"id": name, "object": "request.cancelled", **choice, "cancelled": True})


def _card_fields(card: ModelCard) -> dict[str, object]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.max_model_len,
    }
