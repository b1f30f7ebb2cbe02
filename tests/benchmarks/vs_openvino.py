"""trioserve beside OpenVINO GenAI: library against library, on the same machine in the same run.

    python tests/benchmarks/vs_openvino.py --rounds 3 --json out.json

The peer is ``LLMPipeline`` with a ``SchedulerConfig``, that is, continuous batching with prefix caching, on the Q4_0
file, which it reads as GGUF; installed into an environment of its own on first use. trioserve is ``open_engine`` on the
default file. Each runs in a process of its own.

How it is measured:

- Each is measured once per round, in turn, and stopped (SIGSTOP) while the other is measured.
- Every prompt is a new one, given as token ids. It is answered with one token first, so that it is in the prefix cache
  of both; then n choices of it are drawn, and tokens/s are all their tokens in the time of that second call. Nothing
  is streamed: neither of them has to hand over single tokens.
- Prefill is the time of a call for one token after a new prompt.
- CPU time is that of the whole process, all threads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import click
from peers.comparison import Comparison, Figures, report, summary, table, take_turns, write_json
from peers.llama import Llama
from peers.options import PREFILLS, SAMPLING, SINGLE_ANSWER, Common, common_options
from peers.process import Process, describe_machine, end_children_on_sigterm, environment_of
from peers.prompts import Encode, encoder_of, fresh_prompt

_OURS: Final = "trioserve"
_PEER: Final = "OpenVINO GenAI"
_WORKERS: Final = Path(__file__).parent / "peers"


@attrs.frozen
class Work:
    """What is asked for: ``n`` choices of ``tokens`` tokens; or, with n = 0, no more than to read prompts."""

    name: str
    n: int
    prompt_tokens: int
    tokens: int


@attrs.frozen
class Worker:
    """A process that has a model and takes orders."""

    process: Process
    version: str

    def order(self, prompt: Sequence[int], n: int, tokens: int) -> tuple[float, float]:
        """The seconds and CPU seconds that an answer took."""
        content = {"prompt": prompt, "n": n, "tokens": tokens, "sampling": SAMPLING}
        self.process.stdin.write(json.dumps(content) + "\n")
        self.process.stdin.flush()
        answer = read_line(self.process)
        if answer["lengths"] != [tokens] * n:
            raise ValueError(f"{self.process}: wanted {n} choices of {tokens} tokens, got {answer['lengths']}")
        return answer["seconds"], answer["cpu"]


def read_line(process: Process) -> dict:
    """The next line that is JSON: libraries print other things, too."""
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    process.wait()
    process.check()
    raise ChildProcessError(f"{process} closed its output")


@contextlib.contextmanager
def started(command: Sequence[object], log: Path) -> Iterator[Worker]:
    """A block with a worker that is ready, and paused."""
    with Process([str(part) for part in command], log, lines=True) as process:
        worker = Worker(process, read_line(process)["ready"])
        process.pause()
        yield worker


def works_of(common: Common) -> list[Work]:
    """Everything that can be compared."""
    return [
        Work("n = 1", 1, common.prompt_tokens, common.tokens * SINGLE_ANSWER),
        *(Work(f"n = {n}", n, common.prompt_tokens, common.tokens) for n in common.choices),
        Work(f"prefill of {common.prefill_tokens}", 0, common.prefill_tokens, 1),
    ]


def measure(worker: Worker, work: Work, encode: Encode, seed: int) -> Figures:
    """One contestant's part of one round; it is stopped afterwards."""
    with worker.process.running():
        worker.order(fresh_prompt(encode, 0, 16), 1, 8)
        if work.n == 0:
            prompts = [fresh_prompt(encode, seed * PREFILLS + k, work.prompt_tokens) for k in range(PREFILLS)]
            times = [worker.order(prompt, 1, 1) for prompt in prompts]
            seconds, cpu = (sum(each) for each in zip(*times, strict=True))
            tokens = work.prompt_tokens * PREFILLS
        else:
            prompt = fresh_prompt(encode, seed * PREFILLS, work.prompt_tokens)
            worker.order(prompt, 1, 1)
            seconds, cpu = worker.order(prompt, work.n, work.tokens)
            tokens = work.n * work.tokens
        return Figures(tokens / seconds, cpu * 1e3 / tokens)


def compare(work: Work, workers: dict[str, Worker], encode: Encode, rounds: int, seeds: Iterator[int]) -> Comparison:
    """All rounds of one kind of work, after one that does not count."""
    measured = []
    for number in range(-1, rounds):
        seed = next(seeds)
        figures = {name: measure(workers[name], work, encode, seed) for name in take_turns(list(workers), number)}
        if number >= 0:
            measured.append({name: figures[name] for name in workers})
    return Comparison(work.name, measured)


def run(common: Common, peers_model: Path, cache_gib: int) -> None:
    """Compare everything that was asked for, and report."""
    model = common.model_file()
    encode = encoder_of(model)
    works = common.selected(works_of(common), lambda work: work.name)
    python = environment_of(common.peers_folder / "openvino", "openvino-genai")
    ours = [sys.executable, _WORKERS / "trioserve_worker.py", model, common.device, common.threads]
    peer = [python, _WORKERS / "openvino_worker.py", peers_model, common.threads, cache_gib]
    machine = describe_machine()
    comparisons: list[Comparison] = []
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs_openvino-")))
        workers = {
            _OURS: stack.enter_context(started(ours, logs / "trioserve.log")),
            _PEER: stack.enter_context(started(peer, logs / "openvino.log")),
        }
        about = {
            "benchmark": "vs_openvino",
            "machine": machine,
            "versions": {name: worker.version for name, worker in workers.items()},
            "settings": {**common.described(), "peers_model": peers_model.name, "peers_cache_gib": cache_gib},
            "sampling": SAMPLING,
        }
        seeds = itertools.count(1)
        for work in works:
            comparisons.append(compare(work, workers, encode, common.rounds, seeds))
            click.echo(summary(comparisons[-1], _OURS))
            if common.json:
                write_json(common.json, report(comparisons, _OURS, **about))
    click.echo("\n" + table(comparisons, _OURS))


@click.command(help=__doc__)
@common_options
@click.option(
    "--peers-model",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What OpenVINO serves.  [default: the model in Q4_0, as vs_llama makes it]",
)
@click.option("--peers-cache", default=2, show_default=True, help="GiB of its KV cache.")
def main(peers_model: Path | None, peers_cache: int, **settings: object) -> None:
    end_children_on_sigterm()
    common = Common(**settings)
    if peers_model is None:
        llama = Llama.installed(common.peers_folder / "llama")
        peers_model = llama.requantised(common.model_file(), "Q4_0", common.peers_folder)
    run(common, peers_model, peers_cache)


if __name__ == "__main__":
    main()
