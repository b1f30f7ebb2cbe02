"""OpenVINO GenAI as a worker: an order per line of stdin, what it took per line of stdout. Runs in its environment.

python openvino_worker.py MODEL THREADS CACHE_GIB
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai

# more than the widest comparison
MAX_SEQUENCES = 256
# tokens of one step: a whole prompt of the comparison, so that it is not cut into pieces
BATCH_TOKENS = 1024


def main(model: str, threads: str, cache_gib: str) -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = int(cache_gib)
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = MAX_SEQUENCES
    scheduler.max_num_batched_tokens = BATCH_TOKENS
    pipeline = openvino_genai.LLMPipeline(
        model,
        "CPU",
        scheduler_config=scheduler,
        INFERENCE_NUM_THREADS=int(threads),
        # decode as fast as possible, not as many requests as possible side by side
        PERFORMANCE_HINT="LATENCY",
    )
    say({"ready": f"{openvino_genai.__version__}, OpenVINO {openvino.__version__}"})
    for line in sys.stdin:
        order = json.loads(line)
        config = openvino_genai.GenerationConfig(
            max_new_tokens=order["tokens"],
            num_return_sequences=order["n"],
            do_sample=True,
            ignore_eos=True,
            **order["sampling"],
        )
        prompt = openvino.Tensor(np.array([order["prompt"]], dtype=np.int64))
        started, cpu = time.perf_counter(), time.process_time()
        result = pipeline.generate(prompt, config)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        say({"seconds": seconds, "cpu": cpu_seconds, "lengths": [len(tokens) for tokens in result.tokens]})


def say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
