"""What goes wrong around a start on a real node, and what is told of it."""

import asyncio
from typing import Any

import pytest

from nodeenv import NodeEnvironment
from support.cluster import Cluster, Manifest
from support.engines import model, the_engine, told_once
from support.operator_process import condition, has

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


def with_pod(resource: Manifest, spec: dict[str, Any]) -> Manifest:
    resource["spec"]["podTemplate"] = {"spec": spec}
    return resource


async def test_an_engine_that_takes_too_much_memory_is_told_as_such(cluster: Cluster) -> None:
    limited = {"name": "vllm", "resources": {"limits": {"memory": "128Mi"}}}
    await cluster.create(with_pod(model(cluster, eat="1", speed="1"), {"containers": [limited]}))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True"), within=90)
    assert crashed["status"]["lastCrash"]["exitCode"] in (1, 137)
    assert "memory" in condition(crashed, "Crashed")["message"]


async def test_a_kubelet_that_starts_anew_in_the_middle_of_a_start_changes_nothing(cluster: Cluster, environment: NodeEnvironment) -> None:
    await cluster.create(model(cluster, speed="2"))
    await cluster.wait_for("VLLMDeployment", "llama", lambda r: (r.get("status", {}).get("startup") or {}).get("stage"), within=60)
    before = await the_engine(cluster)
    await asyncio.to_thread(environment.node.restart_kubelet, kill=True)
    done = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=120)
    after = await the_engine(cluster)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert condition(done, "Crashed")["status"] == "False"
    assert (await cluster.get("Deployment", "llama"))["metadata"]["generation"] == 1
    await told_once(cluster)


async def test_in_a_restricted_namespace_it_says_which_setting_the_engine_needs(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": labels}})
    await cluster.create(model(cluster, speed="50"))
    await cluster.wait_for("VLLMDeployment", "llama", lambda r: "runAsNonRoot" in condition(r, "Ready").get("message", ""), within=60)
    settings = {"spec": {"podTemplate": {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 2000}}}}}
    await cluster.patch("VLLMDeployment", "llama", settings)
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)


async def test_gpus_that_others_have_taken_are_missed_by_name(cluster: Cluster) -> None:
    everything = model(cluster, speed="50")
    everything["spec"]["parallelism"] = {"tensor": 8}
    await cluster.create(everything)
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
    second = model(cluster)
    second["metadata"]["name"] = "second"
    await cluster.create(second)
    await cluster.wait_for("VLLMDeployment", "second", lambda r: "nvidia.com/gpu" in condition(r, "Ready").get("message", ""), within=60)
    await cluster.delete("VLLMDeployment", "llama")
    await cluster.wait_for("VLLMDeployment", "second", has("Ready", "True"), within=120)
