"""What becomes free after a plan was made, on a real API server with its scheduler."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.verdicts import plan_verdict

pytestmark = pytest.mark.cluster

H100, H200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"


@pytest.fixture
async def everywhere(served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]]) -> AsyncIterator[Cluster]:
    """An operator for all namespaces, which may list all Pods, in a cluster of eight H100 and eight H200."""
    gpu_nodes("h200")
    await sim.script(path="ok", pull="0", load="0")
    async with OperatorProcess(served.kubeconfig, lease=f"{served.namespace}/vllm-operator") as operator:
        await operator.until_ready(within=60)
        yield served
    assert "Traceback" not in operator.log, operator.log


async def fill(cluster: Cluster, node: str, gpus: int) -> None:
    """A Pod of somebody else takes GPUs of a node."""
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"fill-{node}", "namespace": cluster.namespace}}
    await cluster.create({**pod, "spec": {"nodeName": node, "containers": [container]}})


async def free(cluster: Cluster, node: str) -> None:
    await cluster.delete("Pod", f"fill-{node}")
    await cluster.wait_until_gone("Pod", f"fill-{node}")


async def diff(cluster: Cluster, name: str) -> str:
    command = (sys.executable, "-m", "vllm_operator", "plan", "--diff", "-n", cluster.namespace, name)
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    page, _ = await process.communicate()
    return page.decode()


def says(type: str, *words: str) -> Callable[[Manifest], bool]:
    return lambda resource: all(each in condition(resource, type).get("message", "") for each in words)


async def test_a_plan_that_never_ran_takes_the_gpu_that_becomes_free(everywhere: Cluster) -> None:
    for node in ("gpu-h100-sxm-0", "gpu-h200-0"):
        await fill(everywhere, node, 8)
    await everywhere.create(llama(everywhere.namespace, "late"))
    words = f"has 1 GPU free ({H100}); `kubectl vllm gpus` shows who uses them. "
    words += "As soon as another GPU that fits is free, the operator takes it."
    waiting = await everywhere.wait_for("VLLMDeployment", "late", says("Ready", words), within=60)
    assert (await pinned_plan(everywhere, waiting))["product"] == H100
    await free(everywhere, "gpu-h200-0")
    serving = await everywhere.wait_for("VLLMDeployment", "late", has("Ready", "True"), within=60)
    plan = await pinned_plan(everywhere, serving)
    assert plan["product"] == H200
    assert plan["chosenAgain"].startswith("No Pod of the previous plan had run, too few NVIDIA H100 80GB (sm_90) were free at ")
    event = await everywhere.wait_for_event("late", "Planned")
    assert event["message"].startswith(plan["chosenAgain"])
    revision = await everywhere.wait_for(
        "ControllerRevision",
        serving["status"]["revision"],
        lambda it: {"vllm-operator.dev/ran", "vllm-operator.dev/served"} <= set(it["metadata"].get("annotations") or ()),
    )
    await free(everywhere, "gpu-h100-sxm-0")
    await asyncio.sleep(12)  # two looks at what is free
    again = await everywhere.get("VLLMDeployment", "late")
    assert again["status"]["revision"] == revision["metadata"]["name"], "it serves, so it stays"


async def test_a_plan_that_serves_stays_and_the_status_says_how_to_move(everywhere: Cluster) -> None:
    await fill(everywhere, "gpu-h100-sxm-0", 7)
    await fill(everywhere, "gpu-h200-0", 8)
    await everywhere.create(llama(everywhere.namespace, "steady", cache={"hostPath": "/var/cache/vllm"}))
    first = await everywhere.wait_for("VLLMDeployment", "steady", has("Ready", "True"), within=60)
    await everywhere.patch("VLLMDeployment", "steady", {"spec": {"replicas": 2}})
    words = f"has 1 GPU free ({H100}); `kubectl vllm gpus` shows who uses them."
    await everywhere.wait_for("VLLMDeployment", "steady", says("Ready", words), within=60)
    assert "A new plan would be the same." in await diff(everywhere, "steady")
    await free(everywhere, "gpu-h200-0")
    command = f"kubectl annotate vllm steady -n {everywhere.namespace} --overwrite vllm-operator.dev/replan=$(date +%s)"
    words = f"The plan is for {H100}, and {H200} is free now."
    told = await everywhere.wait_for("VLLMDeployment", "steady", says("Ready", words, command), within=30)
    assert told["status"]["revision"] == first["status"]["revision"]
    assert plan_verdict(told).reason == "PlanDrifted"
    page = await diff(everywhere, "steady")
    assert "A new plan would differ:" in page
    assert f"new:        {H200} (sm_90)" in page
    await everywhere.patch("VLLMDeployment", "steady", {"metadata": {"annotations": {"vllm-operator.dev/replan": "1"}}})
    moved = await everywhere.wait_for(
        "VLLMDeployment", "steady", lambda it: has("Ready", "True")(it) and it["status"].get("readyReplicas") == 2, within=180
    )
    assert (await pinned_plan(everywhere, moved))["product"] == H200


async def test_objects_that_are_applied_together_do_not_all_get_the_last_free_gpu(everywhere: Cluster) -> None:
    await fill(everywhere, "gpu-h100-sxm-0", 7)
    await fill(everywhere, "gpu-h200-0", 6)
    names = [f"m{number}" for number in range(3)]
    await asyncio.gather(*(everywhere.create(llama(everywhere.namespace, name)) for name in names))
    resources = [await everywhere.wait_for("VLLMDeployment", name, has("Ready", "True"), within=60) for name in names]
    products = Counter([(await pinned_plan(everywhere, each))["product"] for each in resources])
    assert products == {H100: 1, H200: 2}
