"""The dashboards and the alerts of the chart on a real Prometheus, which scrapes the operator and engines of two versions."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import generate_dashboards
from support import engine_metrics
from support.cluster import PATIENCE, Cluster, Simulator, the_pod
from support.operator_process import OperatorProcess, has, llama
from support.prometheus import Prometheus
from support.promtool import ALERTS

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

RECORDING = Path(__file__).parents[1] / "corpus" / "h200" / "llama-bf16-cold.log"
RUNNING = b"INFO 11-21 12:00:00 [api_server.py:1] vLLM API server version 0.20.1\n"
LOADING = b"INFO 11-21 12:00:01 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n"


def queries(namespace: str, name: str) -> Iterator[tuple[str, str]]:
    """Panel and query of each target of each dashboard, with values for its variables."""
    values = {"$__rate_interval": "5m", "$__range": "1h", "$namespace": namespace, "$name": name}
    for uid in generate_dashboards.DASHBOARDS:
        for panel in generate_dashboards.dashboard(uid)["panels"]:
            for target in panel["targets"]:
                yield f"{uid}: {panel['title']}", re.sub(r"\$\w+", lambda variable: values[variable[0]], target["expr"])


async def serve_start_and_crash(cluster: Cluster, sim: Simulator, name: str) -> None:
    """A VLLMDeployment that serves, whose second replica goes on starting; and another one that crashes."""
    await sim.script(path="ok", pull="0", load="hold")
    shared = {"volume": {"accessMode": "ReadWriteMany"}}
    await cluster.create(llama(cluster.namespace, name, cache=shared))
    first = await the_pod(cluster)
    await cluster.wait_until_runs(first)
    await sim.replay(first, RECORDING, speed=50).play(exits=False)
    await sim.change(first, load="0")
    await cluster.wait_for("VLLMDeployment", name, has("Ready", "True"))
    await cluster.wait_for("VLLMDeployment", name, lambda it: "coldStartSeconds" in it["status"].get("cache", {}))
    await cluster.patch("VLLMDeployment", name, {"spec": {"replicas": 2}})
    starting = await the_pod(cluster, but=[first])
    await cluster.wait_until_runs(starting)
    sim.log(starting).write(RUNNING + LOADING)
    await cluster.wait_for("VLLMDeployment", name, lambda it: it["status"].get("startup", {}).get("stage") == "WeightLoad")
    await sim.script(path="crash", crash_after="0", backoff="600", load="0")
    await cluster.create(llama(cluster.namespace, "broken"))
    await cluster.wait_for("VLLMDeployment", "broken", has("Crashed", "True"))


async def until_all_answer(ask: Callable[[str], list[dict[str, Any]]], asked: dict[str, str]) -> None:
    """Wait until each query has an answer with a number."""
    unanswered = asked
    try:
        async with asyncio.timeout(PATIENCE):
            while unanswered:
                answers = {query: await asyncio.to_thread(ask, query) for query in unanswered}
                unanswered = {
                    query: panel for query, panel in unanswered.items() if not any(it["value"][1] != "NaN" for it in answers[query])
                }
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"panels without data: {unanswered}") from None


@pytest.mark.timeout(300)
async def test_every_panel_has_data_with_engines_of_the_oldest_and_the_newest_version(
    served: Cluster, sim: Simulator, operator: OperatorProcess, tmp_path: Path
) -> None:
    await serve_start_and_crash(served, sim, "llama")
    jobs: list[dict[str, Any]] = [{"job_name": "operator", "static_configs": [{"targets": [f"127.0.0.1:{await operator.port()}"]}]}]
    # the operator names the namespace of an object; labels of the target must not hide it
    jobs[0]["honor_labels"] = True
    with ExitStack() as running:
        for version in engine_metrics.VERSIONS:
            place = {"namespace": f"of-{version}", "name": "llama", "pod": "llama-x1"}
            target = f"127.0.0.1:{running.enter_context(engine_metrics.serve(version))}"
            jobs.append({"job_name": version, "static_configs": [{"targets": [target], "labels": place}]})
        prometheus = Prometheus(tmp_path / "prometheus", jobs, rule_files=[ALERTS])
        running.callback(prometheus.stop)
        await asyncio.to_thread(prometheus.start)
        asked = {query: panel for panel, query in queries(served.namespace, "llama") if "vllm_operator_" in query}
        for version in engine_metrics.VERSIONS:
            asked |= {query: panel for panel, query in queries(f"of-{version}", "llama") if "vllm_operator_" not in query}
        await until_all_answer(prometheus.query, asked)
        # one that both versions lack has none, or this test would say nothing
        assert await asyncio.to_thread(prometheus.query, "vllm:gpu_cache_usage_percent") == []
        rules = await asyncio.to_thread(prometheus.rules)
    assert rules
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] == "err"} == {}
