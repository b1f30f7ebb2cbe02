"""trioserve beside llama.cpp's llama-server: the same model on the same machine in the same run, over HTTP, streamed.

    python tests/benchmarks/vs_llama.py --rounds 3 --json out.json

The peer twice: with the same file, and with the quantisation of that file for which its own kernels are fastest. It
is compiled for this machine on first use, which takes some minutes and is kept (--peers), or taken from --llama-server.

How it is measured:

- One client for all, which only keeps bytes while an answer streams (peers/stream.py). Every prompt is a new one, given
  as token ids; both go on past end-of-sequence tokens, and draw in the same way (peers/options.py).
- In every round each server is measured once, in turn. The others are stopped (SIGSTOP) meanwhile. Each is warmed up
  by a short request first, and by one whole unmeasured run before the rounds.
- n choices are one request with "n" on both: llama-server computes the prompt once, too, and copies its state.
- Text that repeats its prompt is drawn greedily: a passage stands twice in the prompt, and the model copies it again.
  It is compared twice: to llama-server as it is, and to its fastest way to draft tokens by lookup.
- llama-server is started anew for each kind of work, with as many slots as there are choices. Where several flags may
  be the best (unified KV or not, ways to draft), all are tried and the fastest is the one compared.
- tokens/s of decoding are those after the first token of each choice; those of prefill are the prompt's tokens until
  the first token. CPU time is that of the server's process, all threads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs
import click
from peers.comparison import Comparison, Figures, report, summary, table, take_turns, write_json
from peers.llama import Llama, Setup, setups
from peers.options import PREFILLS, SAMPLING, SINGLE_ANSWER, Common, common_options
from peers.process import Process, describe_machine, end_children_on_sigterm, free_port
from peers.prompts import Encode, encoder_of, fresh_prompt, repeating_prompt
from peers.stream import Streamed, stream

from trioserve.version import __version__

_OURS: Final = "trioserve"
_FASTEST: Final = "Q4_0"
"""The quantisation for which llama.cpp's kernels are fastest."""
_START_TIMEOUT_S: Final = 180.0


@attrs.frozen
class Work:
    """What is asked for."""

    name: str
    n: int
    prompt_tokens: int
    tokens: int
    """Of each choice."""
    kind: Literal["decode", "repeat", "prefill"] = "decode"
    lookup: bool = False
    """Whether the peer may draft tokens by lookup."""

    @property
    def requests(self) -> int:
        """In one round, one after the other."""
        return PREFILLS if self.kind == "prefill" else 1


@attrs.frozen
class Server:
    """A running server."""

    process: Process
    port: int
    model: str

    def ask(self, prompt: list[int], n: int, tokens: int, *, greedy: bool = False) -> Streamed:
        sampling = {"temperature": 0.0} if greedy else SAMPLING
        body = {"model": self.model, "prompt": prompt, "n": n, "max_tokens": tokens, "ignore_eos": True, **sampling}
        answer = stream(self.port, body, self.process.cpu)
        if list(answer.reasons.values()) != ["length"] * n:
            raise ConnectionError(f"{self.process}: wanted {n} choices of {tokens} tokens, got {answer.reasons}")
        return answer


def works_of(common: Common) -> list[Work]:
    """Everything that can be compared."""
    prompt, tokens = common.prompt_tokens, common.tokens
    single = tokens * SINGLE_ANSWER
    return [
        Work("n = 1", 1, prompt, single),
        Work("n = 1, repeating", 1, 2 * single, single, "repeat"),
        Work("n = 1, repeating, peer drafts", 1, 2 * single, single, "repeat", lookup=True),
        *(Work(f"n = {n}", n, prompt, tokens) for n in common.choices),
        Work(f"prefill of {common.prefill_tokens}", 1, common.prefill_tokens, 1, "prefill"),
    ]


def measure(server: Server, work: Work, encode: Encode, seed: int) -> Figures:
    """One contestant's part of one round; it is stopped afterwards."""
    with server.process.running():
        server.ask(fresh_prompt(encode, 0, 16), 1, 8)
        return figures_of(work, [ask_for(server, work, encode, seed * PREFILLS + k) for k in range(work.requests)])


@attrs.frozen
class Answered:
    """An answer, and for one that should repeat its prompt the share of its text that does."""

    answer: Streamed
    repeated: float | None = None


def ask_for(server: Server, work: Work, encode: Encode, seed: int) -> Answered:
    """One request of the work."""
    if work.kind != "repeat":
        return Answered(server.ask(fresh_prompt(encode, seed, work.prompt_tokens), work.n, work.tokens))
    prompt, rest = repeating_prompt(encode, seed, work.tokens)
    answer = server.ask(prompt, 1, work.tokens, greedy=True)
    text = answer.texts[0]
    repeated = next((i for i, (got, said) in enumerate(zip(text, rest, strict=False)) if got != said), len(rest))
    return Answered(answer, min(repeated, len(text)) / min(len(text), len(rest)))


def figures_of(work: Work, answers: Sequence[Answered]) -> Figures:
    """What the requests of one round come to."""
    streams = [each.answer for each in answers]
    first, total = sum(each.first for each in streams), sum(each.total for each in streams)
    cpu_first, cpu_total = sum(each.cpu_first for each in streams), sum(each.cpu_total for each in streams)
    details = {
        "first_token_s": first / len(streams),
        "client_cpu_share": sum(each.client_cpu for each in streams) / total,
    }
    if work.kind == "prefill":
        tokens = work.prompt_tokens * work.requests
        return Figures(tokens / first, cpu_first * 1e3 / tokens, details)
    if answers[0].repeated is not None:
        details["repeated_share"] = answers[0].repeated
    details["rate_with_prefill"] = work.n * work.tokens / total
    tokens = work.n * (work.tokens - 1)
    return Figures(tokens / (total - first), (cpu_total - cpu_first) * 1e3 / tokens, details)


@contextlib.contextmanager
def started(command: Sequence[str | Path], port: int, logs: Path) -> Iterator[Server]:
    """A block with a server that is ready, and paused."""
    with Process([str(part) for part in command], logs / f"{port}.log") as process:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _healthy(port):
            process.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{process} is not ready after {_START_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as response:
            model = json.load(response)["data"][0]["id"]
        process.pause()
        yield Server(process, port, model)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


class Arena:
    """Starts the contestants and measures them."""

    def __init__(self, common: Common, llama: Llama, serve_flags: Sequence[str], *, logs: Path, encode: Encode) -> None:
        self._common = common
        self._llama = llama
        self._serve_flags = serve_flags
        self._logs = logs
        self._encode = encode
        self._seeds = itertools.count(1)

    def serve(self, model: Path) -> contextlib.AbstractContextManager[Server]:
        """trioserve with a model."""
        port = free_port()
        command = [
            *(sys.executable, "-m", "trioserve", "serve", model, "--port", str(port)),
            *("--device", self._common.device, "--threads", str(self._common.threads)),
            *self._serve_flags,
        ]
        return started(command, port, self._logs)

    def peer(self, model: Path, setup: Setup) -> contextlib.AbstractContextManager[Server]:
        """llama-server with a model."""
        port = free_port()
        threads = self._common.threads
        command = self._llama.command(
            model, port=port, threads=threads, slots=setup.slots, cells=setup.cells, flags=setup.flags
        )
        return started(command, port, self._logs)

    def fastest(self, work: Work, model: Path, keep: contextlib.ExitStack) -> tuple[Server, Setup]:
        """llama-server with the setup that is fastest for this work, warmed up; ``keep`` ends it."""
        candidates = setups(work.n, work.prompt_tokens, work.tokens, lookup=work.lookup)
        if len(candidates) > 1:
            rates = {}
            for setup in candidates:
                with self.peer(model, setup) as server:
                    rates[setup.name] = measure(server, work, self._encode, next(self._seeds)).rate
            candidates.sort(key=lambda setup: rates[setup.name], reverse=True)
            tried = ", ".join(f"{name}: {rate:.0f}" for name, rate in rates.items())
            click.echo(f"  {work.name}, {model.name}, tok/s with {tried}")
        server = keep.enter_context(self.peer(model, candidates[0]))
        measure(server, work, self._encode, next(self._seeds))
        return server, candidates[0]

    def compare(self, work: Work, ours: dict[str, Server], files: dict[str, Path]) -> Comparison:
        """All rounds of one kind of work."""
        with contextlib.ExitStack() as keep:
            servers, chosen = dict(ours), {}
            for server in ours.values():
                measure(server, work, self._encode, next(self._seeds))
            for name, model in files.items():
                servers[name], setup = self.fastest(work, model, keep)
                chosen[name] = setup.name
            rounds = []
            for number in range(self._common.rounds):
                seed = next(self._seeds)
                figures = {
                    name: measure(servers[name], work, self._encode, seed) for name in take_turns(list(servers), number)
                }
                rounds.append({name: figures[name] for name in servers})
            return Comparison(work.name, rounds, chosen)


def run(common: Common, llama: Llama, serve_flags: Sequence[str], *, both: bool) -> None:
    """Compare everything that was asked for, and report."""
    model = common.model_file()
    requantised = llama.requantised(model, _FASTEST, common.peers_folder)
    works = common.selected(works_of(common), lambda work: work.name)
    about = {
        "benchmark": "vs_llama",
        "machine": describe_machine(),
        "versions": {"trioserve": __version__, "llama.cpp": llama.version()},
        "settings": {**common.described(), "serve_flags": serve_flags},
        "sampling": SAMPLING,
    }
    comparisons: list[Comparison] = []
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs_llama-")))
        arena = Arena(common, llama, serve_flags, logs=logs, encode=encoder_of(model))
        ours = {_OURS: stack.enter_context(arena.serve(model))}
        if both:
            ours[f"{_OURS}, {_FASTEST}"] = stack.enter_context(arena.serve(requantised))
        files = {"llama.cpp, same file": model, f"llama.cpp, {_FASTEST}": requantised}
        for work in works:
            comparisons.append(arena.compare(work, ours, files))
            click.echo(summary(comparisons[-1], _OURS))
            if common.json:
                write_json(common.json, report(comparisons, _OURS, **about))
    click.echo("\n" + table(comparisons, _OURS))


@click.command(help=__doc__)
@common_options
@click.option("--llama-server", type=click.Path(path_type=Path, exists=True), help="Use the build that this is from.")
@click.option("--both", is_flag=True, help="Measure trioserve with the peer's file, too.")
@click.option("--serve-flag", multiple=True, help="Give this to trioserve serve; can be given again.")
def main(llama_server: Path | None, both: bool, serve_flag: tuple[str, ...], **settings: object) -> None:
    end_children_on_sigterm()
    common = Common(**settings)
    llama = Llama.at(llama_server) if llama_server else Llama.installed(common.peers_folder / "llama")
    run(common, llama, serve_flag, both=both)


if __name__ == "__main__":
    main()
