"""Policies for GPUs on a real API server: prices from a ConfigMap, and what the Pods on the nodes leave free."""

from collections.abc import Callable
from typing import Any

import pytest

from support.cluster import Cluster
from support.operator_process import OperatorProcess, has, llama, pinned_plan

pytestmark = pytest.mark.cluster


async def test_prices_and_free_gpus_decide_and_the_status_says_why(served: Cluster, gpu_nodes: Callable[..., list[str]]) -> None:
    [node] = gpu_nodes("h200")
    products = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]
    data = {"NVIDIA-H100-80GB-HBM3": "3.93", "NVIDIA-H200": "1.20", "NVIDIA-L4": "cheap"}
    prices: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": served.namespace}}
    await served.create({**prices, "data": data})
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "7"}}}
    other: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": served.namespace}}
    await served.create({**other, "spec": {"nodeName": node, "containers": [container]}})

    async def chosen(name: str, policy: str) -> tuple[str, str]:
        await served.create(llama(served.namespace, name, accelerator={"policy": policy, "products": products}))
        resource = await served.wait_for("VLLMDeployment", name, has("Planned", "True"), within=60)
        product: str = (await pinned_plan(served, resource))["product"]
        return product, resource["status"]["pinnedPlan"]["compared"]

    async with OperatorProcess(served.kubeconfig, served.namespace, prices_config_map=f"{served.namespace}/prices") as operator:
        await operator.until_ready(within=60)
        await served.wait_for_event("prices", "PriceIgnored")
        assert await chosen("cheap", "LeastCost") == (
            "NVIDIA-H200",
            "1 x NVIDIA H200 141GB (sm_90): chosen; 1.20 per hour | 1 x NVIDIA H100 80GB (sm_90): fits; 3.93 per hour",
        )
        product, compared = await chosen("free", "MostFree")
        assert product == "NVIDIA-H100-80GB-HBM3"
        assert compared.startswith("1 x NVIDIA H100 80GB (sm_90): chosen; room for 8 replicas | ")
        assert (await chosen("small", "SmallestThatFits"))[0] == "NVIDIA-H100-80GB-HBM3"
        assert "Traceback" not in operator.log, operator.log
