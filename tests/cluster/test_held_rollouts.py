"""Rollouts that wait for room, and volumes that one node only can mount or that are too small, on a real API server and scheduler."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama
from support.verdicts import cache_verdict

pytestmark = pytest.mark.cluster

H100, H200 = {"products": ["NVIDIA-H100-80GB-HBM3"]}, {"products": ["NVIDIA-H200"]}
MANY = {"volume": {"accessMode": "ReadWriteMany"}}
CLAIM = "PersistentVolumeClaim"


@pytest.fixture
async def operator_of_all(served: Cluster) -> AsyncIterator[OperatorProcess]:
    """An operator that may list the Pods of all namespaces, so it knows the free GPUs."""
    async with OperatorProcess(served.kubeconfig, lease=f"{served.namespace}/vllm-operator", priming_patience_seconds="1") as operator:
        await operator.until_ready(within=180)
        yield operator
        assert "Traceback" not in operator.log, operator.log


async def take(cluster: Cluster, node: str, gpus: int) -> None:
    """Somebody else uses GPUs of a node."""
    container = {"name": "other", "image": "other", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": cluster.namespace}}
    await cluster.create({**pod, "spec": {"nodeName": node, "containers": [container]}})


async def serve(cluster: Cluster, sim: Simulator, **spec: Any) -> Manifest:
    """A VLLMDeployment serves; return its Deployment."""
    await sim.script(path="ok", pull="0", load="0")
    await cluster.create(llama(cluster.namespace, **spec))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    return await cluster.get("Deployment", "llama")


async def node_of(cluster: Cluster, pod: str) -> str:
    return str((await cluster.get("Pod", pod))["spec"]["nodeName"])


@pytest.mark.parametrize("cache", [MANY, {}], ids=["any node can mount the volume", "one node can"])
async def test_the_serving_pod_stays_until_there_is_room_for_its_successor(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator_of_all: OperatorProcess, cache: dict[str, Any]
) -> None:
    [other] = gpu_nodes("h200")
    await take(served, other, 8)
    before = await serve(served, sim, accelerator=H100, cache=cache)
    pod = await the_pod(served, selector="app.kubernetes.io/component=engine")
    await served.patch("VLLMDeployment", "llama", {"spec": {"accelerator": H200}})
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"))
    said = "The rollout has not begun: 1 new Pod needs 1 NVIDIA H200 141GB (sm_90), and none is free for it. 1 replica keeps serving"
    assert condition(told, "Ready")["message"].startswith(said)
    assert (await served.wait_for_event("llama", "RolloutHeld"))["message"] == condition(told, "Ready")["message"]
    await operator_of_all.kill()
    await operator_of_all.start()
    await operator_of_all.until_says("serving", times=2, within=180)
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]
    assert "deletionTimestamp" not in (await served.get("Pod", pod))["metadata"]
    assert await served.exists("Deployment", "llama.primer") == bool(cache), "one that could mount the volume waits for a GPU"
    await served.delete("Pod", "other")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert await node_of(served, await the_pod(served, selector="app.kubernetes.io/component=engine")) == other


async def test_a_rollout_that_needs_the_gpus_of_the_pod_that_it_replaces_begins(
    served: Cluster, sim: Simulator, operator_of_all: OperatorProcess
) -> None:
    await serve(served, sim, parallelism={"tensor": 8})
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    done = await served.wait_for("VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and it["status"]["observedGeneration"] == 2)
    assert "vLLM 0.24.0" in done["status"]["plan"]
    skipped = await served.wait_for_event("llama", "CachesNotCompiled")
    assert "only (ReadWriteOnce), which has too few GPUs for another Pod." in skipped["message"]


async def test_proceed_stops_the_serving_pod(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator_of_all: OperatorProcess
) -> None:
    [other] = gpu_nodes("h200")
    await take(served, other, 8)
    await serve(served, sim, accelerator=H100)
    await served.patch("VLLMDeployment", "llama", {"spec": {"accelerator": H200, "rollout": {"onUnschedulable": "Proceed"}}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unschedulable"))


async def test_a_rolling_update_does_not_leave_the_node_of_its_volume(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator_of_all: OperatorProcess
) -> None:
    [other] = gpu_nodes("h200")
    before = await serve(served, sim, accelerator=H100, replicas=2)
    await served.patch("VLLMDeployment", "llama", {"spec": {"accelerator": H200}})
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"))
    assert "and the serving Pods use it there. 2 replicas keep serving the previous spec." in condition(told, "Ready")["message"]
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]
    await served.patch("VLLMDeployment", "llama", {"spec": {"rollout": {"strategy": "Recreate"}}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    pods = await served.wait_for_pods(2, selector="app.kubernetes.io/component=engine")
    assert [await node_of(served, pod) for pod in pods] == [other, other]


async def test_a_rollout_that_is_scaled_to_one_replica_meanwhile_goes_on(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    """One replica is recreated and two are not. A Deployment whose strategy and number change together stops between two ReplicaSets."""
    await serve(served, sim, replicas=2, cache={"storage": "EmptyDir"})
    await sim.script(load="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    await served.wait_for("Deployment", "llama", lambda it: it["status"].get("updatedReplicas") == 1)
    await sim.script(load="0")
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}})
    await served.wait_for("Deployment", "llama", lambda it: it["status"]["replicas"] == it["status"].get("updatedReplicas") == 1)
    await sim.change(await the_pod(served, selector="app.kubernetes.io/component=engine"), load="0")
    done = await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"]["observedGeneration"] == 3 and has("Ready", "True")(it))
    assert ("vLLM 0.24.0" in done["status"]["plan"], done["status"]["readyReplicas"]) == (True, 1)
    await served.wait_for("Deployment", "llama", lambda it: it["spec"]["strategy"]["type"] == "Recreate")


async def test_a_second_replica_starts_on_the_node_of_the_volume(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator_of_all: OperatorProcess
) -> None:
    gpu_nodes("h100-sxm", name="spare")
    await serve(served, sim)
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}})
    await served.wait_for("VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and it["status"].get("readyReplicas") == 2)
    pods = await served.wait_for_pods(2, selector="app.kubernetes.io/component=engine")
    assert len({await node_of(served, pod) for pod in pods}) == 1


async def test_a_second_replica_for_which_that_node_has_no_gpus_is_refused(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator_of_all: OperatorProcess
) -> None:
    gpu_nodes("h100-sxm", name="spare")
    await serve(served, sim, parallelism={"tensor": 8})
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}})
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unschedulable"))
    assert "(ReadWriteOnce). Lower spec.replicas to 1, or use several nodes" in condition(told, "Ready")["message"]
    assert (await served.get("Deployment", "llama"))["spec"]["replicas"] == 1
    # the way out that the quick start names
    await served.patch("VLLMDeployment", "llama", {"spec": {"cache": {"storage": "ClaimPerReplica"}}})
    await served.wait_for("VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and it["status"].get("readyReplicas") == 2)
    pods = await served.wait_for_pods(2, selector="app.kubernetes.io/component=engine")
    assert len({await node_of(served, pod) for pod in pods}) == 2


async def test_the_volume_of_the_weights_grows_with_the_model(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    before = await serve(served, sim, model={"uri": "hf://Qwen/Qwen3-8B"})
    await served.annotate(CLAIM, "llama-weights", resize="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"model": {"uri": "hf://Qwen/Qwen3-32B"}}})
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ClaimTooSmall"))
    said = "PersistentVolumeClaim llama-weights has 30 GiB, and the weights of Qwen/Qwen3-32B take 59.6 GiB. It is growing to 90 GiB"
    assert cache_verdict(told).message.startswith(said)
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]
    await served.annotate(CLAIM, "llama-weights", resize=None)
    await served.wait_for("VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and it["status"]["observedGeneration"] == 2)
    assert (await served.get("Deployment", "llama"))["spec"]["template"] != before["spec"]["template"]


async def test_a_volume_that_cannot_grow_is_told_before_a_download(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await serve(served, sim, model={"uri": "hf://Qwen/Qwen3-8B"})
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama")
    storage_class, merge = "/apis/storage.k8s.io/v1/storageclasses/sim-volume", "application/merge-patch+json"
    await served.request("PATCH", storage_class, body={"allowVolumeExpansion": False}, content_type=merge)
    try:
        await served.create(llama(served.namespace, model={"uri": "hf://Qwen/Qwen3-32B"}))
        told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ClaimTooSmall"))
        assert "has 30 GiB, and the weights of Qwen/Qwen3-32B take 59.6 GiB." in cache_verdict(told).message
        assert "Set allowVolumeExpansion on StorageClass sim-volume, if its driver can resize." in cache_verdict(told).message
        assert not await served.exists("Deployment", "llama")
    finally:
        await served.request("PATCH", storage_class, body={"allowVolumeExpansion": True}, content_type=merge)
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
