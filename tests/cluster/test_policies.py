"""Policies for GPUs on a real API server: what the Pods on the nodes leave free."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, llama, pinned_plan
from support.verdicts import has_plan

pytestmark = pytest.mark.cluster


async def test_free_gpus_decide_and_the_status_says_why(served: Cluster, gpu_nodes: Callable[..., list[str]]) -> None:
    [node] = gpu_nodes("h200")
    products = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "7"}}}
    other: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": served.namespace}}
    await served.create({**other, "spec": {"nodeName": node, "containers": [container]}})

    async def chosen(name: str, policy: str) -> tuple[str, list[str]]:
        await served.create(llama(served.namespace, name, accelerator={"policy": policy, "products": products}))
        resource = await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60)
        plan = await pinned_plan(served, resource)
        return plan["product"], [f"{each['gpu']}: {each['verdict']}" for each in plan["candidates"]]

    async with OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await operator.until_ready(within=60)
        product, compared = await chosen("free", "MostFree")
        assert product == "NVIDIA-H100-80GB-HBM3"
        assert compared[0] == "1 x NVIDIA H100 80GB (sm_90): chosen; free for 8 replicas"
        assert (await chosen("small", "SmallestThatFits"))[0] == "NVIDIA-H100-80GB-HBM3"
        assert "Traceback" not in operator.log, operator.log


async def test_a_gpu_that_is_in_use_is_passed_over_and_the_plan_stays_when_it_becomes_free(
    served: Cluster, gpu_nodes: Callable[..., list[str]]
) -> None:
    [node] = gpu_nodes("l40s")
    products = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"]
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    other: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": served.namespace}}
    await served.create({**other, "spec": {"nodeName": node, "containers": [container]}})

    async def planned(name: str) -> Manifest:
        accelerator = {"products": products, "policy": "SmallestThatFits"}
        await served.create(llama(served.namespace, name, accelerator=accelerator))
        return await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60)

    # an operator for a list of namespaces does not list the Pods of all
    await served.patch("Namespace", served.namespace, {"metadata": {"labels": {"shard": served.namespace}}})
    async with OperatorProcess(served.kubeconfig, lease=f"{served.namespace}/vllm-operator") as operator:
        await operator.until_ready(within=60)
        first = await planned("first")
        plan = await pinned_plan(served, first)
        assert plan["product"] == "NVIDIA-H100-80GB-HBM3"
        assert any("no NVIDIA L40S (sm_89) was free" in note for note in plan["notes"])
        assert ("1 x NVIDIA L40S (sm_89)", "fits, but none was free") in [(each["gpu"], each["verdict"]) for each in plan["candidates"]]
        await served.delete("Pod", "other")
        await served.wait_until_gone("Pod", "other")
        assert (await pinned_plan(served, await planned("second")))["product"] == "NVIDIA-L40S"
        again = await served.get("VLLMDeployment", "first")
        assert again["status"]["revision"] == first["status"]["revision"]
        assert "Traceback" not in operator.log, operator.log


async def test_plan_live_sees_what_the_operator_sees(served: Cluster, gpu_nodes: Callable[..., list[str]]) -> None:
    [node] = gpu_nodes("l40s")
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": served.namespace}}
    await served.create({**pod, "spec": {"nodeName": node, "containers": [container]}})
    data = {"spot": "4 x NVIDIA-L4 cloud.google.com/gke-nodepool=spot"}
    pools: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pools", "namespace": served.namespace}}
    await served.create({**pools, "data": data})
    labels = {"app.kubernetes.io/name": "vllm-operator"}
    setting = {"name": "VLLM_OPERATOR_INSTANCE_TYPES_CONFIG_MAP", "value": "pools"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "operator", "env": [setting]}]}}
    deployment: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "operator", "labels": labels}}
    deployment["metadata"]["namespace"] = served.namespace
    await served.create({**deployment, "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}})
    await served.create(llama(served.namespace, "other", accelerator={"policy": "SmallestThatFits"}))
    command = (sys.executable, "-m", "vllm_operator", "plan", "-n", served.namespace, "other")
    environment = {**os.environ, "KUBECONFIG": str(served.kubeconfig)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    page, _ = await process.communicate()
    assert process.returncode == 0
    assert "1 x NVIDIA L40S (sm_89): fits, but none was free" in page.decode()
    assert "fits; node pool spot would add a node" in page.decode()
