"""Starts on a real node: containers, logs and probes of a kubelet; the operator from its image, installed by the chart."""

import asyncio
from typing import Any

import pytest

from nodeenv import NodeEnvironment
from nodeenv.configuration import LOG_LIMIT_KIBIBYTES
from support.cluster import Cluster, Manifest
from support.engines import eventually, fetch, has_stage, model, nothing_moved, seconds_to_serve, the_engine, until_ready
from support.kubectl import Kubectl
from support.operator_pods import kill_operator
from support.operator_process import condition, has, problem

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

CHATTER = str(LOG_LIMIT_KIBIBYTES * 2)


async def until_rotated(cluster: Cluster, environment: NodeEnvironment) -> None:
    """Return when the kubelet has put the beginning of the engine's log aside."""

    async def is_rotated() -> bool:
        return len(environment.node.logs_of(cluster.namespace)) > 1

    await eventually(is_rotated, within=60)


async def test_it_shows_the_stages_of_a_first_start_and_the_second_is_warm(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.create(model(cluster, speed="20"))
    stages: list[str] = []

    def note(resource: Manifest) -> bool:
        stage = (resource.get("status", {}).get("startup") or {}).get("stage")
        if stage and stage not in stages:
            stages.append(stage)
        return bool(has("Ready", "True")(resource))

    reading = asyncio.create_task(cluster.wait_for("VLLMDeployment", "llama", note, within=120))

    async def page() -> str:
        text = await kubectl.run("describe", "vllm", "llama")
        return text if "KernelWarmup" in text and "Completed:" in text else ""

    described = await eventually(page, within=60)
    assert "Stage:" in described
    await reading
    assert len(stages) >= 4, stages
    first = await the_engine(cluster)
    cold_seconds = await seconds_to_serve(cluster, first)

    await cluster.delete("Pod", first["metadata"]["name"])
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False"), within=60)
    warm = await until_ready(cluster)
    assert warm["status"]["cache"].get("warmStartSeconds") is not None, warm["status"]["cache"]
    assert await seconds_to_serve(cluster, await the_engine(cluster)) * 5 < cold_seconds


async def test_it_serves_through_the_service_as_the_condition_says(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="200"))
    ready = await until_ready(cluster)
    assert f"http://llama.{cluster.namespace}.svc:8000/v1" in condition(ready, "Available")["message"]
    pod = await the_engine(cluster)
    assert "Llama-3.1-8B-Instruct" in await fetch(cluster, pod, "/v1/models")
    assert "vllm:num_requests_running" in await fetch(cluster, pod, "/metrics")
    service = f"/api/v1/namespaces/{cluster.namespace}/services/llama:http/proxy/health"
    assert await cluster.read(service) == ""


async def test_a_kubelet_that_starts_anew_in_the_middle_of_a_start_changes_nothing(cluster: Cluster, environment: NodeEnvironment) -> None:
    await cluster.create(model(cluster, speed="20"))
    await cluster.wait_for("VLLMDeployment", "llama", has_stage(), within=60)
    before = await the_engine(cluster)
    await asyncio.to_thread(environment.node.restart_kubelet, kill=True)
    done = await until_ready(cluster)
    await nothing_moved(cluster, before)
    assert condition(done, "Crashed") == {}
    await asyncio.to_thread(environment.await_node)  # the device plugin has registered again


async def test_an_operator_killed_in_the_middle_of_a_start_goes_on_where_it_was(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="15"))
    await cluster.wait_for("VLLMDeployment", "llama", has_stage(), within=60)
    before = await the_engine(cluster)
    await kill_operator(cluster)
    done = await until_ready(cluster)
    await nothing_moved(cluster, before)
    assert condition(done, "Crashed") == {}


async def test_a_log_that_is_rotated_in_the_middle_of_a_start_loses_nothing(cluster: Cluster, environment: NodeEnvironment) -> None:
    await cluster.create(model(cluster, speed="20", chatter=CHATTER))
    before: Manifest = await eventually(lambda: the_engine(cluster), within=60)
    await until_rotated(cluster, environment)
    # the graphs are captured after the rotation
    await cluster.wait_for("VLLMDeployment", "llama", has_stage("CUDAGraphCapture"), within=120)
    done = await until_ready(cluster)
    await nothing_moved(cluster, before)
    assert condition(done, "Crashed") == {}


async def test_a_crash_after_a_rotation_is_reported_by_name_although_the_operator_was_away(
    cluster: Cluster, environment: NodeEnvironment
) -> None:
    crash: dict[str, Any] = {"crash": "NcclUnhandledSystemError", "crash_at": "Graph capturing finished"}
    await cluster.create(model(cluster, chatter=CHATTER, speed="20", **crash))
    await until_rotated(cluster, environment)
    await kill_operator(cluster)
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "NcclUnhandledSystemError"), within=120)
    assert "with exit code 1 " in condition(crashed, "Crashed")["message"]


async def test_a_node_that_is_lost_is_reported_and_forgotten_when_it_is_back(cluster: Cluster, environment: NodeEnvironment) -> None:
    await cluster.create(model(cluster, speed="200"))
    await until_ready(cluster)
    before = await the_engine(cluster)
    await asyncio.to_thread(environment.node.stop_kubelet)
    try:
        lost = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NodeLost"), within=90)
        assert environment.node.name in problem(lost)
    finally:
        await asyncio.to_thread(environment.node.start_kubelet_again)
    await until_ready(cluster)
    await nothing_moved(cluster, before)
    await asyncio.to_thread(environment.await_node)
