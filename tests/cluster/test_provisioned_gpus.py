"""GPUs that could be had, on a real API server: a NodePool of Karpenter, and a node pool that a ConfigMap lists."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, RefusedError
from support.gpus import node_pool
from support.operator_process import OperatorProcess, llama, pinned_plan
from support.verdicts import has_plan, plan_verdict

pytestmark = pytest.mark.cluster

DEFINITION = "nodepools.karpenter.sh"
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


@pytest.fixture
async def karpenter(served: Cluster) -> AsyncIterator[Manifest]:
    """A NodePool for L40S, in a cluster that has Karpenter's CRD meanwhile."""
    names = {"kind": "NodePool", "listKind": "NodePoolList", "plural": "nodepools", "singular": "nodepool"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}]
    spec = {"group": "karpenter.sh", "names": names, "scope": "Cluster", "versions": versions}
    metadata = {"name": DEFINITION}
    await served.create({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec})
    pool = node_pool("spot", gpu_name=["l40s"], gpu_count=["1", "4"], arch=["amd64"])
    async with asyncio.timeout(60):
        while True:  # the API server answers 404 until it serves the kind
            try:
                yield await served.create(pool)
                break
            except RefusedError as error:
                if error.status != 404:
                    raise
                await asyncio.sleep(0.1)
    await served.delete("CustomResourceDefinition", DEFINITION)
    await served.wait_until_gone("CustomResourceDefinition", DEFINITION)


async def test_nodes_that_would_be_added_are_planned_for_after_those_that_exist(served: Cluster, karpenter: Manifest) -> None:
    assert karpenter["metadata"]["name"] == "spot"
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pools", "namespace": served.namespace}}
    await served.create({**config, "data": {"b200": "8 x NVIDIA-B200 pool=b200", "wrong": "many"}})

    async def planned(name: str, *products: str) -> tuple[Manifest, Manifest]:
        await served.create(llama(served.namespace, name, accelerator={"products": list(products)}))
        resource = await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60)
        return await pinned_plan(served, resource), resource

    async with OperatorProcess(served.kubeconfig, served.namespace, instance_types_config_map=f"{served.namespace}/pools") as operator:
        await operator.until_ready(within=60)
        await served.wait_for_event("pools", "InstanceTypeIgnored")
        plan, _ = await planned("there", "NVIDIA-L40S", "NVIDIA-H100-80GB-HBM3")
        assert (plan["product"], plan.get("provisioner")) == ("NVIDIA-H100-80GB-HBM3", None)
        plan, resource = await planned("added", "NVIDIA-L40S")
        assert plan["provisioner"] == "NodePool spot"
        assert "on a node that NodePool spot would add" in plan_verdict(resource).message
        deployment = await served.wait_for("Deployment", "added", lambda it: it["spec"]["replicas"] == 1)
        terms = str(deployment["spec"]["template"]["spec"]["affinity"])
        assert "karpenter.k8s.aws/instance-gpu-name" in terms
        plan, _ = await planned("listed", "NVIDIA-B200")
        assert plan["provisioner"] == "node pool b200"
        assert "Traceback" not in operator.log, operator.log
