"""What /metrics and /v1/engine say, on virtual time: a step takes 0.01 seconds, and nothing else takes any."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from trioserve.engine.engine import Engine
from trioserve.errors import ChoiceFailedError, InternalError, ParamError, error_row
from trioserve.params import SamplingParams
from trioserve.testing.device import Script
from trioserve.testing.engine import FAKE_OPTIONS, count_for_ever, open_fake_engine, say
from trioserve.testing.http import AsgiClient, HttpResponse
from trioserve.testing.tokenizer import ByteTokenizer
from trioserve.web.app import create_app
from trioserve.web.exchange import prepare_app
from trioserve.web.metrics import REFUSALS, Metrics
from trioserve.web.options import ServeOptions

MANUAL = Path(__file__).parents[2] / "docs" / "metrics.rst"
FEW_PLACES = attrs.evolve(FAKE_OPTIONS, max_running=1, max_queued=2)


class Scrape:
    """The samples of one answer of /metrics, by what is written in front of their values but for the model's name."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parse_text(text)}
        self.samples: dict[str, float] = {}
        for family in self.families.values():
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("model_name") == "tiny-chat"
                inside = ",".join(f"{name}={value}" for name, value in labels.items())
                self.samples[sample.name.removeprefix("trioserve_") + (f"{{{inside}}}" if inside else "")] = (
                    sample.value
                )

    def __getitem__(self, name: str) -> float:
        return self.samples[name]

    def histogram(self, name: str) -> tuple[float, object]:
        """How many observations, and about what their sum is."""
        return self[f"{name}_count"], pytest.approx(self[f"{name}_sum"])


@attrs.define(eq=False)
class Server:
    """An engine behind HTTP."""

    engine: Engine
    client: AsgiClient

    async def post(self, **fields: Any) -> HttpResponse:
        body = json.dumps({"model": "tiny-chat", "prompt": "go", **fields}).encode()
        return await self.client.request("POST", "/v1/completions", body=body)

    async def scrape(self) -> Scrape:
        response = await self.client.request("GET", "/metrics")
        assert response.status == 200
        return Scrape(response.body.decode())


@asynccontextmanager
async def serving(script: Script = count_for_ever, **settings: Any) -> AsyncIterator[Server]:
    block, _ = open_fake_engine(script, **settings)
    async with block as engine:
        app = create_app(engine)
        prepare_app(app, ServeOptions())
        yield Server(engine, AsgiClient(app))


async def test_three_choices_are_three_in_what_is_per_choice_and_one_in_what_is_per_request() -> None:  # FAN-35
    async with serving(say(["a", "bb", "cccc"])) as server:
        assert (await server.post(n=3, max_tokens=9)).status == 200
        told = await server.scrape()
    assert told.histogram("time_to_first_token_seconds") == (3, 0.03)
    assert told.histogram("inter_token_latency_seconds") == (7, 0.07)
    assert told.histogram("request_time_per_output_token_seconds") == (3, 0.03)
    assert told.histogram("e2e_request_latency_seconds") == (3, 0.02 + 0.03 + 0.05)
    assert told.histogram("request_queue_time_seconds") == (3, 0.0)
    assert told.histogram("request_prompt_tokens") == (3, 9)
    assert told.histogram("request_generation_tokens") == (3, 2 + 3 + 5)
    assert told.histogram("request_params_max_tokens") == (3, 27)
    assert told.histogram("request_params_n") == (1, 3)
    assert told.histogram("request_max_num_generation_tokens") == (1, 5)
    assert (told["request_params_n_bucket{le=2.0}"], told["request_params_n_bucket{le=5.0}"]) == (0, 1)
    assert told["request_success_total{finished_reason=stop}"] == 3
    # the prompt is counted once
    assert told["prompt_tokens_total"] == 3
    assert told["generation_tokens_total"] == 10
    assert told["engine_steps_total"] == 5


async def test_tokens_that_come_together_count_one_by_one() -> None:
    async with serving(say("a" * 40)) as server:
        async with server.engine.generate("go") as generation:
            await trio.sleep(0.2)
            async for _ in generation:
                pass
        told = await server.scrape()
    from_first_to_last = told["e2e_request_latency_seconds_sum"] - told["time_to_first_token_seconds_sum"]
    assert told.histogram("inter_token_latency_seconds") == (40, from_first_to_last)


async def test_computed_and_cached_tokens_are_told_apart() -> None:  # FAN-8
    async with serving(say("ok")) as server:
        for _ in range(2):
            await server.post(prompt="x" * 63, n=2)
        told = await server.scrape()
    assert told["prompt_tokens_total"] == told["prefix_cache_queries_total"] == 128
    assert told["prefix_cache_hits_total"] == told["prompt_tokens_by_source_total{source=local_cache_hit}"] == 48
    assert told["prompt_tokens_by_source_total{source=local_compute}"] == 80


async def test_drafts_are_counted_and_their_tokens_told_apart() -> None:
    async with serving(say("abcabcabcabx"), free_rows=8) as server:
        usage = json.loads((await server.post(max_tokens=30)).body)["usage"]
        told = await server.scrape()
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == told["generation_tokens_total"] == 13
    assert told["spec_decode_num_drafts_total"] > 1
    accepted = told["spec_decode_num_accepted_tokens_total"]
    assert details["accepted_prediction_tokens"] == accepted > 0
    rejected = told["spec_decode_num_draft_tokens_total"] - accepted
    assert details["rejected_prediction_tokens"] == rejected > 0
    # each token that was right has saved a step
    assert told["engine_steps_total"] == 13 - accepted


async def test_without_a_prefix_cache_nothing_is_looked_for() -> None:
    async with serving(say("ok"), options=attrs.evolve(FAKE_OPTIONS, prefix_cache=False)) as server:
        await server.post()
        told = await server.scrape()
    assert (told["prompt_tokens_total"], told["prefix_cache_queries_total"]) == (3, 0)


async def test_what_runs_and_waits_is_told_while_it_does() -> None:
    async with serving(options=FEW_PLACES, page_count=64) as server:
        async with server.engine.generate("x" * 40) as running, server.engine.generate("y", SamplingParams(n=2)):
            await running.receive()
            told = await server.scrape()
            now = server.engine.statistics().scheduler
        await trio.sleep(0.02)
        after = await server.scrape()
    assert told["num_open_requests"] == 2
    assert (told["num_requests_running"], told["num_requests_waiting"], told["num_requests_paused"]) == (1, 2, 0)
    assert told["kv_cache_usage_perc"] == now.pages_held / 64 > 0
    assert sum(told[f"kv_pages{{state={state}}}"] for state in ("free", "cached", "held")) == 64
    assert (after["num_open_requests"], after["num_requests_running"], after["num_requests_waiting"]) == (0, 0, 0)
    assert after["kv_cache_usage_perc"] == 0


async def test_choices_whose_reader_is_slow_are_paused() -> None:  # FAN-29
    async with serving(options=attrs.evolve(FAKE_OPTIONS, max_backlog=8)) as server:
        async with server.engine.generate("x", SamplingParams(n=2)):
            await trio.sleep(10)
            told = await server.scrape()
    assert (told["num_requests_running"], told["num_requests_paused"]) == (0, 2)


async def test_preemptions_and_what_they_cost_are_counted() -> None:
    async with serving(page_count=6) as server:
        await server.post(n=3, max_tokens=40)
        told = await server.scrape()
        statistics = server.engine.statistics().scheduler
    assert told["num_preemptions_total"] == statistics.preemptions > 0
    assert told["tokens_recomputed_total"] == statistics.tokens_recomputed > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.015, 0.5])
async def test_a_disconnect_at_any_moment_is_counted_as_abort(stream: bool, seconds: float) -> None:  # FAN-25
    body = json.dumps({"model": "tiny-chat", "prompt": "g" * 600, "n": 8, "max_tokens": 900, "stream": stream})
    async with serving() as server:
        async with server.client.open("POST", "/v1/completions", body=body.encode()) as exchange:
            await trio.sleep(seconds)
            # at once it may be gone before the engine has heard of it
            heard = server.engine.statistics().requests
            exchange.disconnect()
        told = await server.scrape()
    assert heard == (seconds > 0)
    assert told["num_aborts_total{cause=left}"] == told["request_success_total{finished_reason=abort}"] in (0, 8)
    if heard:
        assert told["num_aborts_total{cause=left}"] == 8
        assert told.histogram("request_params_n") == (1, 8)
    assert told["e2e_request_latency_seconds_count"] == 0
    assert told["num_open_requests"] == 0


class BrokenTokenizer(ByteTokenizer):
    """Fails for the byte "x", as a parser with a bug would."""

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id == ord("x"):
            raise ValueError("no x please")
        return super().token_bytes(token_id, skip_special=skip_special)


async def test_a_failed_choice_is_one_error_and_the_rest_are_aborts() -> None:  # FAN-23
    async with serving(say(["aaaa", "x", "aaaa"]), tokenizer=BrokenTokenizer()) as server:
        assert (await server.post(n=3)).status == 500
        told = await server.scrape()
    assert told["request_success_total{finished_reason=error}"] == 1
    assert told["num_aborts_total{cause=failed}"] == told["request_success_total{finished_reason=abort}"] == 2


async def test_deleted_choices_are_cancelled_and_no_aborts() -> None:  # FAN-34
    async with serving() as server:
        async with server.engine.generate("go", SamplingParams(n=2), request_id="r") as generation:
            await generation.receive()
            assert (await server.client.request("DELETE", "/v1/requests/r")).status == 200
            async for _ in generation:
                pass
        told = await server.scrape()
    assert told["request_success_total{finished_reason=cancelled}"] == 2
    assert told["request_success_total{finished_reason=abort}"] == 0


async def test_refusals_are_counted_by_reason_and_are_in_nothing_else() -> None:  # FAN-10
    async with serving(options=FEW_PLACES) as server:
        async with server.engine.generate("x") as running:
            await running.receive()
            for stream in (False, True):
                assert (await server.post(n=3, stream=stream)).status == 429
                assert (await server.post(prompt=[1, 999], stream=stream)).status == 400
            server.engine.begin_drain()
            assert (await server.post()).status == 503
            told = await server.scrape()
    assert told["requests_refused_total{reason=queue_full}"] == 2
    assert told["requests_refused_total{reason=server_stopping}"] == 1
    assert told["requests_refused_total{reason=engine_closed}"] == 0
    assert told["request_params_n_count"] == 0
    assert sum(value for name, value in told.samples.items() if name.startswith("request_success")) == 0


def test_the_reasons_of_refusals_are_the_codes_of_their_errors() -> None:
    for error, reason in REFUSALS.items():
        assert error_row(error(RuntimeError("x"))).code == reason


async def test_the_series_are_the_same_whatever_happens() -> None:
    async with serving(say("a"), options=FEW_PLACES) as server:
        metrics = Metrics(server.engine)
        before = await server.scrape()
        for i in range(5):
            await server.post(n=1 + i % 3, user=f"user-{i}")
            await server.client.request("GET", f"/path-{i}")
        for error in (ParamError("x", f"p{i}", f"code-{i}") for i in range(3)):
            metrics.request_refused(error)
        metrics.request_refused(InternalError("x"))
        metrics.request_refused(ChoiceFailedError("x", "r", 1))
        after = await server.scrape()
        alone = Scrape(metrics.exposition("")[0].decode())
    assert before.samples.keys() == after.samples.keys() == alone.samples.keys()


async def test_counters_never_go_down() -> None:
    async with serving(say("abc")) as server:
        last: dict[str, float] = {}
        for n in (1, 3, 2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(server.post, n=n, prompt="x" * 40))
                for _ in range(6):
                    await trio.sleep(0.007)
                    scrape = await server.scrape()
                    now = {
                        name: value
                        for name, value in scrape.samples.items()
                        if re.search(r"_(total|count|sum|bucket)(\{|$)", name)
                    }
                    assert all(now[name] >= value for name, value in last.items())
                    last = now
        assert last["request_success_total{finished_reason=stop}"] == 6


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        ("application/openmetrics-text;version=1.0.0,*/*;q=0.5", "application/openmetrics-text", parse_openmetrics),
    ],
)  # fmt: skip
async def test_the_format_is_the_one_asked_for(accept: str, content_type: str, parse: Any) -> None:
    async with serving(say("a")) as server:
        await server.post()
        response = await server.client.request("GET", "/metrics", headers={"Accept": accept})
    assert response.headers["content-type"].startswith(content_type)
    families = {family.name: family for family in parse(response.body.decode())}
    (sample, *_) = families["trioserve_generation_tokens"].samples
    assert (sample.name, sample.labels, sample.value) == (
        "trioserve_generation_tokens_total",
        {"model_name": "tiny-chat"},
        2,
    )


async def test_two_engines_in_a_process_count_for_themselves() -> None:
    async with serving(say("a")) as one, serving(say("b")) as other:
        await one.post(n=2)
        assert (await one.scrape())["request_params_n_count"] == 1
        assert (await other.scrape())["request_params_n_count"] == 0


async def test_the_manual_lists_every_metric() -> None:
    async with serving() as server:
        families = (await server.scrape()).families.values()
    listed = set(re.findall(r"^``(trioserve_\w+)``", MANUAL.read_text(), re.MULTILINE))
    assert listed == {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


async def test_the_engine_can_be_looked_at_while_it_works() -> None:
    async with serving() as server:
        headers = {"X-Request-Id": "mine"}
        body = json.dumps({"model": "tiny-chat", "prompt": "go", "n": 3, "max_tokens": 900, "stream": True}).encode()
        async with server.client.open("POST", "/v1/completions", body=body, headers=headers) as exchange:
            await exchange.receive()
            response = await server.client.request("GET", "/v1/engine")
            shown = json.loads(response.body)
            (request,) = shown.pop("requests")
            assert request.pop("id").startswith("cmpl-")
            assert request.pop("age_s") > 0
            assert request.pop("completion_tokens") >= 0
            assert request == {
                "alias": "mine",
                "n": 3,
                "best_of": 3,
                "prompts": 1,
                "prompt_tokens": 3,
                "cached_tokens": 0,
                "choices": 3,
                "choices_finished": 0,
            }
        await trio.sleep(0.02)
        after = json.loads((await server.client.request("GET", "/v1/engine")).body)
        assert after["scheduler"] == attrs.asdict(server.engine.statistics().scheduler)
    assert response.headers["content-type"] == "application/json"
    assert after["requests"] == []  # FAN-27
    assert {name: shown[name] for name in ("object", "model", "device", "draining", "page_size", "page_count")} == {
        "object": "engine",
        "model": "tiny-chat",
        "device": "fake",
        "draining": False,
        "page_size": 16,
        "page_count": 1024,
    }
