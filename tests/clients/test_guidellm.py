"""guidellm: a short benchmark with synthetic data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of the model that is served, in a folder, as guidellm reads it. A hub may be out of reach."""
    model = Path(os.environ["TRIOSERVE_MODEL_FILE"])
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("profile", ["kind=synchronous", "kind=concurrent,streams=4"])
def test_every_request_of_a_benchmark_is_answered_in_full(
    url: str, model: str, tokenizer: Path, tmp_path: Path, path: str, profile: str
) -> None:
    report = tmp_path / "report.json"
    options = {
        "--backend": f"kind=openai_http,target={url},model={model},request_format={path}",
        "--profile": profile,
        "--constraint": "kind=max_requests,count=6",
        "--tokenizer": f"kind=hf_auto,model={tokenizer}",
        "--data": "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "--output": f"kind=json,path={report}",
    }
    command = [str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console"]
    command += [word for option in options.items() for word in option]
    variables = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests: dict[str, list[Any]] = benchmark["requests"]
    assert (len(requests["successful"]), requests["errored"], requests["incomplete"]) == (6, [], [])
    # it asks for exactly as many tokens, past the end of the answer
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {8}
