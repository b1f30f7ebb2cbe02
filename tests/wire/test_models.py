"""The bodies of the routes that tell what is served."""

from __future__ import annotations

import json

from openai.types import Model

from trioserve.wire.models import HEALTH, ModelCard, model_body, models_body, version_body

CARD = ModelCard(id="tiny-chat", created=1700000000, max_model_len=2048)
FIELDS = {
    "id": "tiny-chat",
    "object": "model",
    "created": 1700000000,
    "owned_by": "trioserve",
    "max_model_len": 2048,
}


def test_models_are_listed() -> None:
    assert json.loads(models_body([CARD])) == {"object": "list", "data": [FIELDS]}


def test_a_model_is_told_in_a_form_the_official_client_knows() -> None:
    assert json.loads(model_body(CARD)) == FIELDS
    assert Model.model_validate_json(model_body(CARD)).id == "tiny-chat"


def test_health_and_version_are_json() -> None:
    assert json.loads(HEALTH) == {"status": "ok"}
    assert json.loads(version_body("1.2")) == {"version": "1.2"}
