"""lm-eval's local-completions, on tasks made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LINES = [
    {"question": "The sky is", "choices": ["blue", "an onion made of stone"], "answer": 0},
    {"question": "Two and two are", "choices": ["seventeen purple", "four"], "answer": 1},
    {"question": "The capital of France is", "choices": ["Paris", "a spoon"], "answer": 0},
]
COMMON = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}", "num_fewshot": 0}
CHOOSING = {
    **COMMON,
    "task": "choosing",
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}
SAYING = {
    **COMMON,
    "task": "saying",
    "output_type": "generate_until",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match"}],
}

Evaluate = Callable[..., Any]


@pytest.fixture
def evaluate(url: str, model: str, tmp_path: Path) -> Evaluate:
    """Evaluates a task, and returns its results."""

    def evaluate(task: dict[str, Any], *, batch: int = 1, **arguments: object) -> Any:
        data = tmp_path / "data.jsonl"
        data.write_text("\n".join(map(json.dumps, LINES)))
        # JSON is YAML
        (tmp_path / "task.yaml").write_text(json.dumps({**task, "dataset_kwargs": {"data_files": {"test": str(data)}}}))
        settings = {"model": model, "base_url": f"{url}/v1/completions", **arguments}
        command = [str(Path(sys.executable).with_name("lm_eval")), "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in settings.items())]
        command += ["--tasks", task["task"], "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
        command += ["--log_samples", "--batch_size", str(batch)]
        variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr
        (results,) = (tmp_path / "out").rglob("results_*.json")
        (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
        return json.loads(results.read_text())["results"][task["task"]], [
            json.loads(line) for line in samples.read_text().splitlines()
        ]

    return evaluate


@pytest.mark.parametrize("at_once", [1, 4])
def test_texts_are_generated(evaluate: Evaluate, at_once: int) -> None:
    results, samples = evaluate(SAYING, tokenizer_backend="None", num_concurrent=at_once)
    assert 0 <= results["exact_match,none"] <= 1
    assert len(samples) == 3
    assert all("\n" not in text for sample in samples for (text,) in sample["resps"])


@pytest.mark.parametrize("batch", [1, 4])
def test_likelihoods_choose_what_makes_sense(evaluate: Evaluate, batch: int) -> None:
    # the tokenizer is the server's own, over HTTP
    results, samples = evaluate(CHOOSING, tokenizer_backend="remote", batch=batch)
    assert results["acc,none"] == 1
    likelihoods = [float(response[0]) for sample in samples for response in sample["filtered_resps"]]
    assert len(likelihoods) == 6
    assert all(likelihood < 0 for likelihood in likelihoods)
