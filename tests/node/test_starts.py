"""Starts on a real node: containers, logs and probes of a kubelet; the operator from its image, installed by the chart."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, is_ready
from support.engines import model, the_engine, told_once
from support.operator_process import condition, has

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

SYSTEM = "vllm-system"
OPERATOR = "app.kubernetes.io/name=vllm-operator"


async def kill_operator(cluster: Cluster) -> None:
    """Delete the operator's Pod without grace; return when the next one is there."""
    [pod] = await cluster.list_all("Pod", namespace=SYSTEM, selector=OPERATOR)
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}"
    await cluster.request("DELETE", path, params={"gracePeriodSeconds": "0"})
    async with asyncio.timeout(60):
        while True:
            pods = await cluster.list_all("Pod", namespace=SYSTEM, selector=OPERATOR)
            if [it for it in pods if it["metadata"]["uid"] != pod["metadata"]["uid"] and is_ready(it)]:
                return
            await asyncio.sleep(0.2)


def seconds_to_ready(pod: Manifest) -> float:
    """From the start of the container until the Pod was Ready, as the kubelet tells."""
    [container] = pod["status"]["containerStatuses"]
    [ready] = [it for it in pod["status"]["conditions"] if it["type"] == "Ready"]
    begun, done = container["state"]["running"]["startedAt"], ready["lastTransitionTime"]
    return (datetime.fromisoformat(done) - datetime.fromisoformat(begun)).total_seconds()


async def test_it_tells_the_stages_of_a_first_start_and_the_second_is_warm(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="2"))
    stages: list[str] = []

    def note(resource: Manifest) -> bool:
        stage = (resource.get("status", {}).get("startup") or {}).get("stage")
        if stage and stage not in stages:
            stages.append(stage)
        return bool(has("Ready", "True")(resource))

    cold = await cluster.wait_for("VLLMDeployment", "llama", note, within=90)
    assert len(stages) >= 3, stages
    assert condition(cold, "Starting")["status"] == "False"
    first = await the_engine(cluster)

    await cluster.delete("Pod", first["metadata"]["name"])
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False"), within=30)
    warm = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
    assert condition(warm, "CacheWarm")["status"] == "True", condition(warm, "CacheWarm")
    assert seconds_to_ready(await the_engine(cluster)) < seconds_to_ready(first)


CRASHES = {
    "a damaged cache": {"recording": "damaged-cache", "speed": "100"},
    "no compiler": {"recording": "no-compiler", "speed": "100"},
}


@pytest.mark.parametrize("name", CRASHES)
async def test_a_crash_is_told_by_name_with_its_remedy(cluster: Cluster, name: str) -> None:
    await cluster.create(model(cluster, **CRASHES[name]))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True"), within=90)
    crash: dict[str, Any] = crashed["status"]["lastCrash"]
    assert crash["signature"]
    assert crash["remedy"]
    assert crash["exitCode"] == 1
    # it stays told while the container waits for its next turn, and each crash makes one event at most
    again = await cluster.wait_for("Pod", (await the_engine(cluster))["metadata"]["name"], has_restarted, within=60)
    assert again["status"]["containerStatuses"][0]["restartCount"] >= 2
    assert await told_once(cluster)


def has_restarted(pod: Manifest) -> bool:
    return any(status["restartCount"] >= 2 for status in pod["status"].get("containerStatuses", ()))


async def test_an_operator_killed_in_the_middle_of_a_start_goes_on_where_it_was(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="1"))
    await cluster.wait_for("VLLMDeployment", "llama", lambda r: (r.get("status", {}).get("startup") or {}).get("stage"), within=60)
    before = await the_engine(cluster)
    await kill_operator(cluster)
    done = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=120)
    after = await the_engine(cluster)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (await cluster.get("Deployment", "llama"))["metadata"]["generation"] == 1
    await told_once(cluster)
    assert condition(done, "Crashed")["status"] == "False"


async def test_an_image_that_does_not_exist_is_told(cluster: Cluster) -> None:
    manifest = model(cluster)
    manifest["spec"]["engine"]["image"] = "docker.io/library/no-such-image:test"
    await cluster.create(manifest)
    told = await cluster.wait_for(
        "VLLMDeployment", "llama", lambda r: "no-such-image" in condition(r, "Ready").get("message", ""), within=60
    )
    assert condition(told, "Ready")["status"] == "False"
