"""The ``llm`` command, with the server as one of its extra models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., str]


@pytest.fixture
def call(url: str, model: str, tmp_path: Path) -> Call:
    """Runs the command for a user who has the server in extra-openai-models.yaml, and returns what it prints."""
    entry = {
        "model_id": "mine",
        "model_name": model,
        "api_base": f"{url}/v1",
        "supports_schema": True,
        "supports_tools": True,
    }
    # JSON is YAML
    (tmp_path / "extra-openai-models.yaml").write_text(
        json.dumps([entry, {**entry, "model_id": "text", "completion": True}])
    )
    variables = os.environ | {"LLM_USER_PATH": str(tmp_path)}

    def call(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("llm")), *arguments]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return call


def test_a_prompt_streamed_and_not(call: Call) -> None:
    options = ["-m", "mine", "-o", "max_tokens", "8", "-o", "seed", "3", "Name a colour."]
    said = call(*options)
    assert said.strip()
    assert call("--no-stream", *options) == said


def test_the_log_knows_what_it_cost(call: Call) -> None:
    call("-m", "mine", "-o", "max_tokens", "8", "-s", "Be brief.", "Name a colour.")
    (entry,) = json.loads(call("logs", "--json"))
    assert entry["input_tokens"] > 0
    assert 0 < entry["output_tokens"] <= 8


def test_a_conversation_goes_on(call: Call) -> None:
    call("-m", "mine", "-o", "max_tokens", "8", "Name a colour.")
    call("-c", "-o", "max_tokens", "8", "And another one.")
    last = json.loads(call("logs", "--json", "-n", "1"))[0]
    assert last["prompt"] == "And another one."


def test_a_completion(call: Call) -> None:
    assert call("-m", "text", "-o", "max_tokens", "8", "The sky is").strip()


def test_a_schema(call: Call) -> None:
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    said = call("-m", "mine", "--schema", json.dumps({**schema, "additionalProperties": False}), "Is red warm?")
    assert isinstance(json.loads(said)["warm"], bool)


def test_tools_are_offered(call: Call) -> None:
    # whether this model calls one is up to it
    call(
        "-m",
        "mine",
        "-o",
        "max_tokens",
        "64",
        "--functions",
        "def now() -> str:\n  'The time.'\n  return '12:00'\n",
        "What time is it?",
    )
