"""Replicas that share no volume, on a real API server: a primer publishes the caches of a new version before the rollout."""

import json

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, has, llama
from vllm_operator.api.labels import PUBLISHER

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

ARTIFACT = {"repository": "registry.example/team/caches", "publish": "WhenPrimed"}
CACHE = {"storage": "EmptyDir", "artifact": ARTIFACT}
PRIMER = "app.kubernetes.io/instance=llama,app.kubernetes.io/component=primer"
DIGEST = f"sha256:{'1' * 64}"


async def change_version(cluster: Cluster, sim: Simulator) -> tuple[Manifest, str]:
    """A replica serves, and the version changes; return the Deployment that serves and the Pod of the primer."""
    await sim.script(path="ok", pull="0", load="0")
    await cluster.create(llama(cluster.namespace, cache=CACHE))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    before = await cluster.get("Deployment", "llama")
    await sim.script(load="hold")
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    return before, await the_pod(cluster, selector=PRIMER)


async def report(cluster: Cluster, sim: Simulator, primer: str, result: dict[str, str]) -> None:
    """The engine of a primer is ready, and the container beside it has ended."""
    await sim.script(load="0")
    await sim.change(primer, load="0")
    pod = await cluster.wait_for("Pod", primer, has("Ready", "True"))
    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(result)}
    statuses = [it | ({"state": {"terminated": ended}} if it["name"] == PUBLISHER else {}) for it in pod["status"]["containerStatuses"]]
    await cluster.patch("Pod", primer, {"status": {"containerStatuses": statuses}}, subresource="status")


async def test_the_rollout_begins_when_the_new_caches_are_published(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    before, primer = await change_version(served, sim)
    held = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RollingOut"))
    assert held["status"]["readyReplicas"] == 1
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]
    slices = [item for item in await served.list_all("EndpointSlice") if item["metadata"]["name"].startswith("llama")]
    assert [len(item.get("endpoints") or []) for item in slices] == [1], "the primer serves no requests"
    await operator.kill()
    await operator.start()
    await report(served, sim, primer, {"result": "Published", "tag": "tag-1", "digest": DIGEST})
    await served.wait_until_gone("Deployment", "llama.primer")
    done = await served.wait_for("VLLMDeployment", "llama", has("CachePublished", "True", "Published"), within=30)
    assert "vLLM 0.24.0" in done["status"]["plan"]
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=30)


async def test_a_version_that_is_changed_back_meanwhile_begins_no_rollout(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    before, _ = await change_version(served, sim)
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.20.1"}}})
    await served.wait_until_gone("Deployment", "llama.primer")
    await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"]["observedGeneration"] == 3)
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]


async def test_the_primer_is_deleted_with_its_object(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await change_version(served, sim)
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama.primer")


async def test_without_a_free_gpu_the_rollout_begins_cold(served: Cluster, sim: Simulator) -> None:
    async with OperatorProcess(served.kubeconfig, served.namespace, priming_patience_seconds="1") as operator:
        await operator.until_ready()
        await sim.script(path="ok", pull="0", load="0")
        await served.create(llama(served.namespace, cache=CACHE, parallelism={"tensor": 8}))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
        done = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("cache", {}).get("primingSkipped"), within=30)
        assert done["status"]["cache"]["primingSkipped"] == "the helper Pod found no GPU within 1 s."
        await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"]["observedGeneration"] == 2)
