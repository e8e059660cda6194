"""A node with a broken GPU, on a real API server, scheduler and Deployment controller: its Pod leaves it for another node."""

from collections.abc import Callable

import pytest

from support.cluster import Cluster, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama
from support.stories import RUNNING, own_events

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

ECC = (
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] EngineCore encountered a fatal error.\n"
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] Traceback (most recent call last):\n"
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
)


async def break_gpu(cluster: Cluster, sim: Simulator, on_bad_node: str) -> tuple[str, str]:
    """Create an object whose first Pod crashes again and again because of its GPU, and later ones do not; return the Pod and its node."""
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="1")
    await cluster.create(llama(cluster.namespace, cache={"storage": "EmptyDir"}, remediation={"onBadNode": on_bad_node}))
    pod = await the_pod(cluster)
    await cluster.wait_until_runs(pod)
    for run in range(9):
        log = sim.log(pod, run=run)
        log.write(RUNNING + ECC)
        log.exit()
    await sim.script(path="ok", load="0", pull="0")
    await sim.change(pod, crash_after="0.5")
    return pod, (await cluster.get("Pod", pod))["spec"]["nodeName"]


async def test_a_pod_leaves_a_node_with_a_broken_gpu(
    served: Cluster, gpu_nodes: Callable[..., list[str]], sim: Simulator, operator: OperatorProcess
) -> None:
    gpu_nodes("h100-sxm", name="another")
    pod, bad = await break_gpu(served, sim, "Avoid")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    elsewhere = await served.get("Pod", await the_pod(served, but=(pod,)))
    assert {elsewhere["spec"]["nodeName"], bad} == {"another", "gpu-h100-sxm-0"}
    assert [node["name"] for node in told["status"]["avoidedNodes"]] == [bad]
    assert (told["status"]["lastCrash"]["node"], condition(told, "RolledBack")) == (bad, {})
    assert (await own_events(served))["NodeAvoided"] == 1
    generation = (await served.get("Deployment", "llama"))["metadata"]["generation"]
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    assert (await served.get("VLLMDeployment", "llama"))["status"] == told["status"]
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == generation


async def test_a_pod_stays_where_no_other_node_has_a_gpu(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    pod, bad = await break_gpu(served, sim, "Avoid")
    told = await served.wait_for(
        "VLLMDeployment", "llama", lambda it: "No other nodes have enough GPUs" in condition(it, "Crashed").get("message", ""), within=60
    )
    assert f"without node {bad} nothing starts" in condition(told, "Crashed")["message"]
    assert "avoidedNodes" not in told["status"]
    assert await the_pod(served) == pod
